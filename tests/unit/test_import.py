"""What importing costs, told by the modules that are loaded: heavy ones come when a model is loaded, not before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "tokenizers", "numpy", "jinja2", "PIL", "huggingface_hub", "safetensors"}


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize(
    "code",
    [
        "import drivetrain",
        "import drivetrain.core.engine, drivetrain.core.parameters",
        "import drivetrain; drivetrain.Delta; drivetrain.errors.Cancelled; drivetrain.Message",
        "import drivetrain; drivetrain.Worker; drivetrain.sync.Worker",
        "import drivetrain.cli.main",
    ],
)
def test_nothing_heavy(code: str) -> None:
    assert not HEAVY & loaded_by(code)


def test_of_opentelemetry_only_its_api() -> None:
    """The SDK and its exporters come when somebody asks for traces."""
    script = "import drivetrain.cli.serve.command, drivetrain.assembly.opening, drivetrain.server.app, sys; "
    script += "print(*{'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('opentelemetry.')})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"opentelemetry.trace", "opentelemetry.metrics"} <= set(done.stdout.split())
    assert not {"opentelemetry.sdk", "opentelemetry.exporter"} & set(done.stdout.split())


def test_importing_alone_loads_nothing_of_ours_but_the_package() -> None:
    script = "import drivetrain, sys, json; print(json.dumps([m for m in sys.modules if m.startswith('drivetrain.')]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_public_names() -> None:
    import drivetrain

    assert sorted(drivetrain.__all__) == [
        "AnswerMessage", "AnswerParser", "ChoiceFinished", "Delta", "Finished", "GenerateOptions", "ImagePart",
        "Message", "Receipt", "Result", "Started", "TextPart", "ToolCall", "Worker", "errors", "parse_answer", "sync",
    ]  # fmt: skip
    assert all(getattr(drivetrain, name) is not None for name in drivetrain.__all__)
    with pytest.raises(AttributeError):
        drivetrain.nothing  # noqa: B018 - the access is the test
