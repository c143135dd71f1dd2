"""What a worker is asked and what is kept, on the fake engine; prompts out of files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drivetrain import assembly, sync
from drivetrain.core.answer import AnswerMessage, ToolCall
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EngineRequest, ModelSpec, WeightsFormat
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.results import Choice, FinishReason, Metrics, Result, Usage
from drivetrain.engines.fake import scripted
from drivetrain.tools.diff.compare import AnswerParts
from drivetrain.tools.diff.prompts import BUILT_IN, read_prompts
from drivetrain.tools.diff.record import Questions, record
from drivetrain.worker.settings import Settings

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)


@contextmanager
def worker(**script: Any) -> Iterator[sync.Worker]:
    opening = assembly.Opening(lambda report: assembly.Worker(scripted(**script), SPEC, Settings()))
    with sync.Worker(opening) as opened:
        yield opened


def questions(*prompts: str, **changes: Any) -> Questions:
    return Questions(**{"prompts": prompts, "num_tokens": 8, "num_top": 3, **changes})


def no_progress(what: str, share: float | None) -> None:
    pass


def test_tokens_with_their_lists() -> None:
    with worker(text="abc", repeat=True) as asked:
        first, second = record(asked, questions("Hi", "Ho", num_tokens=4), "fake", no_progress)
    assert (first.prompt_ids[1:], second.prompt_ids[1:]) == (tuple(b"Hi"), tuple(b"Ho"))  # after a BOS
    assert [place.token_id for place in first.places] == list(b"abca")
    for place in first.places:
        assert place.logprob == -0.5
        assert [one.token_id for one in place.top] == [place.token_id, 32, 33]
        assert place.rank_of(33) == 3


def test_the_end_has_its_list_too() -> None:
    asked_for: list[tuple[int, int | None]] = []

    def reply(request: EngineRequest) -> bytes:
        asked_for.append((request.min_tokens, request.max_tokens))
        return b"abc"

    with worker(reply=reply) as asked:
        (found,) = record(asked, questions("Hi"), "fake", no_progress)
    end = found.places[-1]
    assert len(found.places) == 4
    assert end.logprob == -0.5
    assert end.top[0].token_id == end.token_id
    assert end.token == end.top[0].token != ""
    assert asked_for == [(0, 8), (4, 4)]


@pytest.mark.parametrize("lacks", ["min_tokens", "logprobs"])
def test_an_engine_that_cannot_tell_the_list_of_the_end(lacks: str) -> None:
    with worker(text="abc", unsupported=frozenset({lacks})) as asked:
        (found,) = record(asked, questions("Hi"), "fake", no_progress)
    assert [place.token_id for place in found.places[:3]] == list(b"abc")
    assert [place.logprob for place in found.places[:3]] == [None if lacks == "logprobs" else -0.5] * 3
    assert (found.places[3].logprob, found.places[3].top) == (None, ())


def test_an_engine_that_says_something_else_the_second_time() -> None:
    texts = itertools.cycle([b"abc", b"xyz"])
    with worker(reply=lambda request: next(texts)) as asked:
        (found,) = record(asked, questions("Hi"), "fake", no_progress)
    assert [place.token_id for place in found.places[:3]] == list(b"abc")
    assert found.places[3].top == ()


def test_greedy_bare_and_seeded() -> None:
    requests: list[EngineRequest] = []

    def reply(request: EngineRequest) -> bytes:
        requests.append(request)
        return b"abc"

    with worker(reply=reply, repeat=True) as asked:
        record(asked, questions("Hi"), "fake", no_progress)
        record(asked, questions("Hi", chat=True), "fake", no_progress)
    assert all(request.sampling.greedy and request.seeded for request in requests)
    plain, chat = (bytes(i for i in request.prompt_ids if i < 256) for request in requests)
    assert plain == b"Hi"
    assert b"Hi" in chat
    assert chat != plain


class Calling:
    """A worker whose answers have reasoning and a call."""

    capabilities = Capabilities(parameters=frozenset(), context_length=64)

    def generate(self, **request: Any) -> Result:
        said = AnswerMessage(" So\n", "Hm", (ToolCall(0, "f", '{"a": 1}'),))
        choice = Choice(0, "...", (1,), finish_reason=FinishReason.TOOL_CALLS, message=said)
        return Result("r", "m", (choice,), Usage(), Metrics())


def test_what_was_read_is_kept() -> None:
    (read,) = record(Calling(), questions("Hi", chat=True), "it", no_progress)
    assert read.parts == AnswerParts("Hm", "So", (("f", '{"a": 1}'),))
    with worker(text=" abc\n") as asked:
        (plain,) = record(asked, questions("Hi"), "fake", no_progress)
    assert (plain.parts, plain.is_plain, read.is_plain) == (AnswerParts(content="abc"), True, False)


class Stated:
    """A worker that says what it can, and keeps what it is asked."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = Capabilities(**{"parameters": frozenset(), "context_length": 64, **capabilities})
        self.asked: list[dict[str, Any]] = []

    def generate(self, **request: Any) -> Result:
        self.asked.append(request)
        raise InterruptedError


def test_penalties_that_the_weights_may_bring_are_turned_off() -> None:
    stated = Stated(parameters=frozenset({"repetition_penalty", "temperature"}))
    with pytest.raises(InterruptedError):
        record(stated, questions("Hi"), "it", no_progress)
    assert stated.asked == [{"prompt": "Hi", "temperature": 0.0, "max_tokens": 8, "repetition_penalty": 1.0}]


def test_text_alone_cannot_be_compared() -> None:
    with pytest.raises(InvalidSetting, match="it returns only text"):
        record(Stated(tokens=False), questions("Hi"), "it", no_progress)


def test_progress_is_told() -> None:
    told: list[tuple[str, float | None]] = []
    with worker(text="abc") as asked:
        record(asked, questions("a", "b"), "fake", lambda what, share: told.append((what, share)))
    assert told == [("asking fake", 0.0), ("asking fake", 0.5), ("asked fake", 1.0)]


def test_prompts_out_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("One\r\n\n  Two\u2028 \n", "utf-8", newline="")
    assert read_prompts(lines) == ("One", "  Two\u2028 ")
    strings = tmp_path / "prompts.jsonl"
    strings.write_text('"One\\nmore"\n\n"Two"\n', "utf-8")
    assert read_prompts(strings) == ("One\nmore", "Two")
    assert len(set(BUILT_IN)) == len(BUILT_IN) > 4


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"\n \n", "contains no prompt"),
        ("a.txt", b"ok\n\xff\n", "is not UTF-8 text"),
        ("a.jsonl", b'"ok"\n\n7\n', "line 3 must be a JSON string"),
        ("a.jsonl", b'""\n', "line 1 must be a JSON string that is not empty"),
        ("a.jsonl", b"plain\n", "line 1 must be a JSON string"),
    ],
)
def test_files_that_hold_no_prompts(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidSetting, match=words):
        read_prompts(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
