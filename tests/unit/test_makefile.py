"""The environments that `make` makes: which Python is taken, what is said of others, and what is made anew."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PYTHON = """#!/bin/sh
# Stands for a Python of another version: it makes environments of itself, and notes what pip is asked for.
case "$1 $2" in
"-m venv")
  for folder; do :; done
  mkdir -p "$folder/bin" && touch "$folder/pyvenv.cfg" && cp "$0" "$folder/bin/python" ;;
"-m pip")
  echo "{version}" >>installs && exit "${{PIP_EXIT:-0}}" ;;
-c*)
  exec "{real}" -c 'import sys
sys.version_info = ({version}, 1)
sys.base_prefix = "/of/{version}"
sys._base_executable = sys.argv.pop(1)
exec(sys.argv.pop(1))' "$0" "$2" ;;
esac
"""


class Clone:
    """A folder with the Makefile and what it reads, and Pythons of several versions in the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone"
        self.pythons = folder / "bin"
        (self.folder / ".ci").mkdir(parents=True)
        self.pythons.mkdir()
        for name in ("Makefile", ".ci/environment"):
            shutil.copy(ROOT / name, self.folder / name)
        for name in ("pyproject.toml", "constraints.txt"):
            (self.folder / name).touch()
        self.venv = self.folder / ".venv"

    def python(self, version: str, name: str = "python3") -> str:
        path = self.pythons / name
        path.write_text(PYTHON.format(version=version.replace(".", ", "), real=sys.executable))
        path.chmod(0o755)
        return str(path)

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHON", "VENV", "MAKEFLAGS"}}
        environment = inherited | {"PATH": f"{self.pythons}:{os.environ['PATH']}"} | variables
        return subprocess.run(
            ["make", ".venv/.installed-server", *arguments],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def installs(self) -> list[str]:
        """The version that each `pip install` was for."""
        notes = self.folder / "installs"
        return [line.replace(", ", ".") for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_an_old_python_is_named_before_anything_is_made(clone: Clone) -> None:
    clone.python("3.10")
    done = clone.make()
    assert done.returncode == 2
    assert done.stderr.startswith("needs Python 3.11 or newer; python3 here is 3.10.1; set PYTHON=…")
    assert not clone.venv.exists()
    assert clone.installs == []


def test_newer_ones_that_are_there_are_named(clone: Clone) -> None:
    clone.python("3.10")
    clone.python("3.14", "python3.14")
    clone.python("3.10", "python3.13")  # called so, and is not
    said = clone.make().stderr
    assert "(there is python3.14" in said
    assert "python3.13" not in said


def test_no_python_at_all(clone: Clone) -> None:
    done = clone.make("PYTHON=/nowhere/python3")
    assert done.returncode == 2
    assert done.stderr.startswith("needs Python 3.11 or newer; /nowhere/python3 cannot be run here; set PYTHON=…")


def test_what_an_old_python_left_is_made_anew_by_the_right_one(clone: Clone) -> None:
    old = clone.python("3.10")
    subprocess.run([old, "-m", "venv", str(clone.venv)], check=True)
    assert clone.make().returncode == 2
    clone.python("3.11")
    done = clone.make()
    assert done.returncode == 0, done.stderr
    assert ".venv is of Python 3.10.1: it is made anew with python3, 3.11.1" in done.stderr
    assert clone.installs == ["3.11"]


def test_the_second_run_does_nothing(clone: Clone) -> None:
    clone.python("3.11")
    assert clone.make().returncode == 0
    done = clone.make()
    assert (done.returncode, done.stderr) == (0, "")
    assert clone.installs == ["3.11"]


def test_another_python_counts_where_it_is_chosen(clone: Clone) -> None:
    clone.python("3.11")
    other = clone.python("3.12", "other python")
    assert clone.make().returncode == 0
    assert clone.make(PYTHON=other).returncode == 0
    assert clone.make(f"PYTHON={other}").stderr == ""
    clone.python("3.10")
    assert clone.make().stderr == ""  # nobody chose: what is there is kept
    assert clone.installs == ["3.11", "3.12"]
    assert clone.make("PYTHON=python3").returncode == 2


@pytest.mark.parametrize("harm", ["gone", "no pip"])
def test_an_environment_that_does_not_run(clone: Clone, harm: str) -> None:
    clone.python("3.11")
    clone.make()
    (clone.venv / "bin" / "python").unlink()
    if harm == "no pip":
        (clone.venv / "bin" / "python").symlink_to("/bin/false")
    done = clone.make()
    assert ".venv does not run: it is made anew" in done.stderr
    assert clone.installs == ["3.11", "3.11"]


def test_an_installation_that_was_cut_off(clone: Clone) -> None:
    clone.python("3.11")
    assert clone.make(PIP_EXIT="1").returncode == 2
    (clone.venv / "half").touch()
    done = clone.make()
    assert ".venv was left half installed: it is made anew" in done.stderr
    assert not (clone.venv / "half").exists()
    assert clone.make().stderr == ""


def test_what_is_no_environment_stays(clone: Clone) -> None:
    clone.python("3.11")
    clone.venv.mkdir()
    (clone.venv / "letter").touch()
    done = clone.make()
    assert done.returncode == 2
    assert done.stderr.startswith(".venv is no virtual environment; move it away")
    assert (clone.venv / "letter").exists()


def test_every_environment_is_made_so() -> None:
    text = (ROOT / "Makefile").read_text()
    assert "-m venv" not in text
    stamps = re.findall(r"^(\S*)/\.installed\S*: (\S+)", text.replace("$(STAMP):", "$(VENV)/.installed:"), re.MULTILINE)
    assert len(stamps) == 8
    assert all(first == f"{folder}/.python" for folder, first in stamps)
