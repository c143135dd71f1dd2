"""Where compiled programs may be kept: libraries are loaded from there, so nobody else may be able to write to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.model import compiling  # noqa: E402 - as torch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is compiled there")


def obstacle() -> str:
    return compiling.obstacle(torch.device("cpu"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "drivetrain" / "compiled"


def test_a_folder_of_ones_own_serves_and_one_that_is_not_there_yet(folder: Path) -> None:
    assert compiling.root() == folder
    assert obstacle() == ""
    folder.mkdir(mode=0o700, parents=True)
    assert obstacle() == ""


def _anybody(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def _group(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o770)


def _link(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def _file(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("")


@pytest.mark.parametrize("spoil", [_anybody, _group, _link, _file])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, spoil: Callable[[Path], None]) -> None:
    spoil(folder)
    assert "nobody else can write to" in obstacle()


def test_a_folder_of_somebody_else_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700, parents=True)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert "is not a folder of this user" in obstacle()


def test_a_user_without_a_home_is_told_what_helps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert obstacle() == ""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/to/anything")
    assert "set XDG_CACHE_HOME" in obstacle()
