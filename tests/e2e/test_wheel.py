"""The built wheel alone in a new environment: what works without extras works, and what does not names its extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def drivetrain(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command of the installed wheel, away from the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(place), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "env", with_pip=True)
    scripts = place / "env" / ("Scripts" if os.name == "nt" else "bin")
    pip = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DRIVETRAIN"))}
    environment["DRIVETRAIN_HOME"] = str(place / "home")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(scripts / "drivetrain"), *arguments],
            capture_output=True,
            text=True,
            cwd=place,
            env=environment,
            check=False,
        )

    return run


def test_help_and_version(drivetrain: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = drivetrain("--help")
    assert done.returncode == 0
    for command in ("generate", "chat", "inspect", "doctor", "pull", "list", "rm"):
        assert command in done.stdout
        assert drivetrain(command, "--help").returncode == 0
    assert drivetrain("--version").stdout.strip().endswith("0.1.0")


def test_doctor_names_what_to_install(drivetrain: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = drivetrain("doctor")
    assert done.returncode == 0, done.stderr
    assert ".whl[transformers]'" in done.stdout
    assert json.loads(drivetrain("doctor", "--json").stdout)


def test_inspect_tells_what_it_can(
    drivetrain: Callable[..., subprocess.CompletedProcess[str]], checkpoint: Callable[[str], Path]
) -> None:
    done = drivetrain("inspect", "fake")
    assert done.returncode == 0, done.stderr
    done = drivetrain("inspect", str(checkpoint("llama")), "--message", "Hello")
    assert done.returncode == 0, done.stderr
    assert "<|im_start|>user" in done.stdout
    assert ".whl[native]'" in done.stdout + done.stderr


def test_generate_works_on_the_fake_and_names_the_extra_for_the_rest(
    drivetrain: Callable[..., subprocess.CompletedProcess[str]], checkpoint: Callable[[str], Path]
) -> None:
    done = drivetrain("generate", "fake", "--prompt", "x", "--max-tokens", "9", "--temperature", "0")
    assert (done.returncode, done.stdout.strip()) == (0, "The quick")
    done = drivetrain("generate", str(checkpoint("llama")), "--prompt", "x")
    assert done.returncode != 0
    assert re.search(r"pip install '\./drivetrain-[^/]+\.whl\[native\]'", done.stderr)
    assert len(done.stderr.strip().splitlines()) <= 2
    assert "Traceback" not in done.stderr
