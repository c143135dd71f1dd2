"""The typed keywords are the fields of a request; `python tests/unit/core/test_core_options.py` writes them anew."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import drivetrain
from drivetrain.core import options
from drivetrain.core.constraint import Constraints
from drivetrain.core.kinds import (
    Boolean,
    CountOrBoolean,
    Ids,
    Integer,
    Kind,
    ListOf,
    Number,
    OneOf,
    Pair,
    String,
    StringMap,
    TokenMap,
)
from drivetrain.core.messages import Images, Messages
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.receipt_kind import Receipts
from drivetrain.core.tools import JsonObject, ToolChoices, Tools
from drivetrain.worker.face import Face

FILE = Path(options.__file__)

TAKEN: dict[type[Kind], str] = {
    Messages: "Sequence[Message | Mapping[str, Any]]",
    Images: "Sequence[ImageGiven]",
    String: "str",
    Integer: "int",
    Number: "float",
    Boolean: "bool",
    CountOrBoolean: "int | bool",
    Ids: "Sequence[int]",
    Constraints: "Constraint | Mapping[str, Any] | type[Any]",
    Tools: "Sequence[Tool | Mapping[str, Any]]",
    ToolChoices: "ToolChoice | str | Mapping[str, Any]",
    JsonObject: "Mapping[str, Any]",
    TokenMap: "Mapping[int, float] | Mapping[str, float]",
    StringMap: "Mapping[str, str]",
    Receipts: 'bool | Literal["full"] | ReceiptWish',
}
"""What a caller may give where a kind judges it."""


def taken(kind: Kind) -> str:
    match kind:
        case ListOf():
            several = f"Sequence[{taken(kind.item)}]"
            return f"{taken(kind.item)} | {several}" if kind.or_one else several
        case Pair():
            return f"tuple[{taken(kind.first)}, {taken(kind.second)}]"
        case OneOf():
            return f"{kind.choices.__name__} | Literal[{', '.join(map(json.dumps, kind.choices))}]"
        case _:
            return TAKEN[type(kind)]


def written(source: str) -> str:
    """The module with the fields as the table has them."""
    before, line, _ = source.partition('    """None is the same as leaving it out."""\n\n')
    return before + line + "".join(f"    {name}: {taken(one.kind)} | None\n" for name, one in PARAMETERS.items())


def test_the_keywords_are_those_of_the_table() -> None:
    source = FILE.read_text()
    assert source == written(source)
    assert list(get_type_hints(options.GenerateOptions)) == list(PARAMETERS)


def test_every_face_has_them() -> None:
    for face in (Face, drivetrain.Worker, drivetrain.sync.Worker):
        for method in (face.stream, face.generate):
            request = inspect.signature(method).parameters["request"]
            assert (request.kind, request.annotation) == (request.VAR_KEYWORD, "Unpack[GenerateOptions]")


GOOD = """
import drivetrain

async def use(worker: drivetrain.Worker, blocking: drivetrain.sync.Worker) -> None:
    asked: drivetrain.GenerateOptions = {"prompt": "x", "stop": None}
    asked["top_p"] = 0.9
    await worker.generate(**asked)
    await worker.generate(messages=[{"role": "user", "content": "x"}], stop="a", logit_bias={1: -1})
    blocking.generate(prompt="x", stop=["a"], temperature=0, logprobs=True, overflow="error", images=[b"", "a.png"])
    worker.stream(prompt_token_ids=[1, 2], constraint={"regex": "a"}, tool_choice="auto", seed=1)
"""


@pytest.mark.slow
def test_a_type_checker_knows_them(tmp_path: Path) -> None:
    bad = {
        'blocking.generate(prompt="x", max_token=3)': 'Unexpected keyword argument "max_token"',
        'worker.stream(prompt="x", temperature="hot")': 'Argument "temperature"',
        'blocking.stream(prompt="x", overflow="wrap")': 'Argument "overflow"',
    }
    file = tmp_path / "use.py"
    file.write_text(GOOD + "".join(f"    {line}\n" for line in bad))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--cache-dir", str(tmp_path), str(file)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(found) == len(bad), done.stdout + done.stderr
    assert all(words in line for words, line in zip(bad.values(), found, strict=True)), found


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
