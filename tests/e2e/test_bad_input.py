"""Bad input at the command line: one typed line with the remedy, an exit code that is not 0, nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny import pictures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run(home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = os.environ | {"DRIVETRAIN_HOME": str(home)}

    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "drivetrain", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, input=stdin, check=False)

    return run


@pytest.fixture
def model(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A good model, for a test to break."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), folder)
    return folder


def refused(done: subprocess.CompletedProcess[str], home: Path, *words: str) -> None:
    assert done.returncode not in (0, 70)
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("drivetrain:")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len(errors[0]) < 600
    for word in words:
        assert word in errors[0]
    left = [path for path in home.rglob("*") if path.is_file() and "locks" not in path.parts] if home.exists() else []
    assert left == []


def test_a_missing_folder(run: Callable[..., subprocess.CompletedProcess[str]], home: Path) -> None:
    refused(run("generate", "./no-such-model", "--prompt", "x"), home, "no such folder")


def test_truncated_weights(run: Callable[..., subprocess.CompletedProcess[str]], home: Path, model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(run("generate", str(model), "--prompt", "x"), home, "model.safetensors")


def test_a_config_that_asks_for_code(
    run: Callable[..., subprocess.CompletedProcess[str]], home: Path, model: Path
) -> None:
    (model / "theirs.py").write_text(f"open({str(model / 'was-here')!r}, 'w')\n")
    config = json.loads((model / "config.json").read_text()) | {
        "model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M"},
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    refused(run("generate", str(model), "--prompt", "x"), home, "trust_remote_code")
    assert not (model / "was-here").exists()


def test_a_broken_template(run: Callable[..., subprocess.CompletedProcess[str]], home: Path, model: Path) -> None:
    (model / "chat_template.jinja").write_text("{% for message in messages %}")
    refused(run("generate", str(model), "--message", "x"), home, "template", "family")


def test_an_unreadable_image(
    run: Callable[..., subprocess.CompletedProcess[str]],
    home: Path,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes(pictures.png(pictures.circle())[:60])
    folder = str(checkpoint("llava"))
    refused(run("generate", folder, "--message", "What is it?", "--image", str(cut)), home, "image")
    refused(
        run("generate", folder, "--message", "What is it?", "--image", str(tmp_path / "none.png")), home, "none.png"
    )


def test_a_prompt_of_ten_megabytes(
    run: Callable[..., subprocess.CompletedProcess[str]], home: Path, model: Path
) -> None:
    refused(run("generate", str(model), "--prompt", "-", stdin="word " * 2_000_000), home, "10,000,000", "4,000,000")
