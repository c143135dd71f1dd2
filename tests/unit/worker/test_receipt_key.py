"""The key of receipts: where it is read from, and that no message shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.worker.receipts import receipt_key
from drivetrain.worker.settings import RECEIPT_KEY_VARIABLE


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RECEIPT_KEY_VARIABLE, raising=False)


def test_there_is_none_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert receipt_key(None) is None
    monkeypatch.setenv(RECEIPT_KEY_VARIABLE, "  \n")
    assert receipt_key(None) is None


def test_the_file_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(RECEIPT_KEY_VARIABLE, "a key of the environment ")
    assert receipt_key(None) == b"a key of the environment"
    file = tmp_path / "key"
    file.write_text("a key of the file, größer\n", "utf-8")
    assert receipt_key(str(file)) == "a key of the file, größer".encode()


@pytest.mark.parametrize("content", [b"", b"\n", b"too short", b"\xff" * 30])
def test_what_is_no_key_is_refused_without_being_shown(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidSetting) as caught:
        receipt_key(str(file))
    assert caught.value.param == "receipt_key_file"
    assert "too short" not in caught.value.message


@pytest.mark.parametrize("name", ["missing", ".", "no/such/folder"])
def test_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read"):
        receipt_key(str(tmp_path / name))


def test_a_key_of_the_environment_that_is_too_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECEIPT_KEY_VARIABLE, "hunter2")
    with pytest.raises(InvalidSetting, match="has 7 characters") as caught:
        receipt_key(None)
    assert "hunter2" not in caught.value.message
