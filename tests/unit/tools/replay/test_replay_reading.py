"""Receipts are found in files, lines, folders and answers, and each that is not valid is told by its place."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.receipt import ChoiceRecord, PromptRecord, Receipt
from drivetrain.core.sealing import FORM, document, ids_sha256, sealed
from drivetrain.tools.replay import reading
from drivetrain.tools.replay.reading import Entry, read_entries

RECEIPT = Receipt(
    form=FORM,
    request_id="r",
    created=0,
    model="m",
    weights=None,
    engine="native",
    device="cpu",
    dtype="float32",
    settings={},
    versions={},
    family="template",
    template=None,
    prompt=PromptRecord(sha256=ids_sha256([1]), tokens=1, ids=(1,)),
    parameters={},
    constraint=None,
    tools=None,
    choices=(ChoiceRecord(0, (2,), "stop"),),
)


def made(name: str) -> dict[str, Any]:
    return document(sealed(replace(RECEIPT, request_id=name), None))


def read(*paths: Path) -> list[tuple[str, str]]:
    return [(Path(entry.where).name, named(entry)) for entry in read_entries(paths, None)]


def named(entry: Entry) -> str:
    return entry.fault if entry.receipt is None else entry.receipt.request_id


def test_where_they_may_stand(tmp_path: Path) -> None:
    one, answer, lines = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "more" / "c.jsonl"
    lines.parent.mkdir()
    one.write_text(json.dumps(made("one"), indent=2))
    answer.write_text(json.dumps({"id": "x", "choices": [], "receipt": made("two")}))
    lines.write_text("\n".join([json.dumps(made("three")), "", json.dumps({"receipts": [made("4"), made("5")]}), ""]))
    (tmp_path / "notes.txt").write_text("not looked at")
    assert read(tmp_path) == [
        ("a.json", "one"), ("b.json", "two"), ("c.jsonl:1", "three"), ("c.jsonl:3[0]", "4"), ("c.jsonl:3[1]", "5"),
    ]  # fmt: skip
    assert read(lines, one)[-1] == ("a.json", "one")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not JSON"), (b"[1]", "it is a list"), (b"{}", "its form is None"), (b"\xff", "it is not UTF-8"),
        (b'{"receipts": [1]}', "it is no object"), (b'{"receipts": []}', "its form is None"),
        (b'{"receipt": null}', "it is no object"), (json.dumps({**made("x"), "model": "y"}).encode(), "its digest"),
    ],
)  # fmt: skip
def test_what_is_none_is_told_and_the_others_are_read(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    (tmp_path / "b.json").write_text(json.dumps(made("good")))
    (where, fault), (_, good) = read(tmp_path)
    assert where == "a.json"
    assert fault.startswith("the receipt is not valid: ")
    assert words in fault
    assert good == "good"


def test_what_is_too_long_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the line behind it is read."""
    good = json.dumps(made("good"))
    monkeypatch.setattr(reading, "MAX_BYTES", len(good))
    (tmp_path / "a.json").write_text(good + " " * 10**6)
    (tmp_path / "b.jsonl").write_text("\n".join([good, "x" * 5 * len(good), " " * 2 * len(good) + "x", good]))
    (tmp_path / "c.json").write_text(good)
    long = f"the receipt is not valid: it has more than {len(good):,} bytes"
    assert read(tmp_path) == [
        ("a.json", long), ("b.jsonl:1", "good"), ("b.jsonl:2", long), ("b.jsonl:3", long), ("b.jsonl:4", "good"),
        ("c.json", "good"),
    ]  # fmt: skip
    pieces: list[int] = []

    class Noted(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            pieces.append(-1 if size is None else size)
            return super().readline(size)

    assert [len(line) for line in reading._lines(Noted(b"x" * 10_000))] == [len(good) + 1]
    assert set(pieces) == {len(good) + 1}


def test_a_path_without_any_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(InvalidSetting):
            read_entries([path], None)
