"""Models with their own `response_template`: what is enforced is read back as it was written, by a whole worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from answers_templates import TEMPLATES

from answers_written import WRITTEN
from drivetrain.core.answer import AnswerMessage, ToolCall
from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import Unsupported
from drivetrain.core.events import Delta
from drivetrain.core.results import FinishReason
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.answers import FORMS
from drivetrain.text.answers.parser import MessageBuilder
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

ROWS = {"gpt-oss": "harmony", "gemma4": "gemma4", "qwen3.5": "qwen-xml", "smollm": "hermes", "qwen3": "hermes"}
"""The templates that models ship, and the rows that are like them."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "enum": ["  Bern "]},
        "days": {"type": "integer"},
        "note": {"type": "string"},
    },
    "required": ["place", "days", "note"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get-weather", "strict": True, "parameters": WEATHER}}
ARGUMENTS = {"place": "  Bern ", "days": 3, "note": " a\n\nß"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 0}
REQUIRED: dict[str, Any] = {**CHAT, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
YES_OR_NO = Constraint(ConstraintForm.CHOICE, '["yes", "no"]')


class _Tokenizer(ByteTokenizer):
    def __init__(self, name: str, row: str, end: str = "") -> None:
        anchor = TEMPLATES[name]["start_anchor"]
        self.response_template: Mapping[str, Any] | None = TEMPLATES[name]
        self.chat_template = (
            "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}"
            + "".join(FORMS[row].signs)
            + "{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
            + (anchor if isinstance(anchor, str) else anchor[0])
            + end
        )


@asynccontextmanager
async def says(text: str, name: str, row: str, end: str = "", ids_per_step: int = 1) -> AsyncIterator[EngineWorker]:
    script = Script(text=text, context_length=10_000, ids_per_step=ids_per_step)
    engine = FakeEngine(script, tokenizer=_Tokenizer(name, row, end))
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    async with EngineWorker(engine, spec, Settings()) as worker:
        yield worker


async def streamed(worker: EngineWorker, **fields: Any) -> AnswerMessage:
    builder = MessageBuilder()
    async for event in worker.stream(**fields):
        for part in (event.parts or ()) if isinstance(event, Delta) else ():
            builder.add(part)
    return builder.message()


def without_ids(message: AnswerMessage | None) -> AnswerMessage:
    assert message is not None
    return replace(message, tool_calls=tuple(replace(call, id="") for call in message.tool_calls))


def written(row: str, body: str) -> str:
    """Reasoning, and what comes behind it."""
    opens, closes = FORMS[row].reasoning or ("", "")
    return f"{opens}Hm.{closes}{body}"


@pytest.mark.parametrize("ids_per_step", [1, 3, 200])
@pytest.mark.parametrize("name", ROWS)
async def test_an_enforced_call_is_read_as_it_was_written(name: str, ids_per_step: int) -> None:
    call = WRITTEN[ROWS[name]][1]([("get-weather", ARGUMENTS)])
    async with says(written(ROWS[name], call), name, ROWS[name], ids_per_step=ids_per_step) as worker:
        (choice,) = (await worker.generate(**REQUIRED)).choices
        message = await streamed(worker, **REQUIRED)
    assert choice.finish_reason is FinishReason.TOOL_CALLS
    assert without_ids(choice.message) == without_ids(message)
    (heard,) = message.tool_calls
    assert isinstance(heard, ToolCall)
    assert (heard.name, heard.flaw, message.content, message.reasoning) == ("get-weather", None, None, "Hm.")
    assert json.loads(heard.arguments) == ARGUMENTS
    assert jsonschema_rs.is_valid(WEATHER, json.loads(heard.arguments))


@pytest.mark.parametrize("name", ROWS)
async def test_a_constraint_is_behind_the_reasoning(name: str) -> None:
    row = ROWS[name]
    channel = "<|channel|>final<|message|>" if row == "harmony" else ""
    async with says(written(row, f"{channel}yes"), name, row) as worker:
        (choice,) = (await worker.generate(**CHAT, constraint=YES_OR_NO)).choices
    assert choice.message is not None
    assert (choice.message.reasoning, choice.message.content) == ("Hm.", "yes")


@pytest.mark.parametrize("name", ROWS)
async def test_reasoning_keeps_to_its_budget(name: str) -> None:
    row = ROWS[name]
    opens, closes = FORMS[row].reasoning or ("", "")
    async with says(f"{opens}a long long thought{closes}Hello", name, row) as worker:
        result = await worker.generate(**CHAT, max_reasoning_tokens=3)
    message = result.choices[0].message
    assert message is not None
    assert message.reasoning == "a l"
    assert result.usage.reasoning_tokens <= 3 + len(opens) + len(closes)


@pytest.mark.parametrize("ids_per_step", [1, 3, 500])
@pytest.mark.parametrize("name", ["qwen3.5", "gemma4"])
async def test_the_same_call_a_third_time_ends_the_choice(name: str, ids_per_step: int) -> None:
    """Where the answer must be calls: a model that repeats one would do so until the limit."""
    row = ROWS[name]
    calls = [("get-weather", {**ARGUMENTS, "days": days}) for days in (1, 2, 2, 1, 1, 1, 1, 1)]
    asked = {**REQUIRED, "parallel_tool_calls": True, "max_tokens": 4000}
    async with says(written(row, WRITTEN[row][1](calls)), name, row, ids_per_step=ids_per_step) as worker:
        (choice,) = (await worker.generate(**asked)).choices
        message = await streamed(worker, **asked)
    assert (choice.finish_reason, choice.matched_stop) == (FinishReason.TOOL_CALLS, "repetition")
    assert without_ids(choice.message) == without_ids(message)
    assert [json.loads(call.arguments)["days"] for call in message.tool_calls] == [1, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("cut", range(1, 40, 3))
async def test_half_a_call_behind_whole_ones_is_not_told(cut: int) -> None:
    call = WRITTEN["qwen-xml"][1]([("get-weather", ARGUMENTS)])
    said = written("qwen-xml", f"{call}\n{call}")
    asked = {**REQUIRED, "parallel_tool_calls": True, "max_tokens": len(said.encode()) - len(call.encode()) + cut}
    async with says(said, "qwen3.5", "qwen-xml") as worker:
        (choice,) = (await worker.generate(**asked)).choices
        message = await streamed(worker, **asked)
    assert without_ids(choice.message) == without_ids(message)
    assert (choice.finish_reason, message.content) == (FinishReason.LENGTH, None)
    assert message.tool_calls[0].flaw is None


async def test_reasoning_that_the_prompt_has_begun() -> None:
    async with says("Hm.</think>yes", "qwen3", "hermes", "<think>\n") as worker:
        (choice,) = (await worker.generate(**CHAT, constraint=YES_OR_NO)).choices
    assert choice.message is not None
    assert (choice.message.reasoning, choice.message.content) == ("Hm.", "yes")


async def test_reasoning_that_the_prompt_has_closed() -> None:
    async with says("<think>Hm.</think>yes", "qwen3", "hermes", "<think>\n\n</think>\n\n") as worker:
        (choice,) = (await worker.generate(**CHAT, constraint=YES_OR_NO)).choices
        (called,) = (await worker.generate(**REQUIRED)).choices
    assert (choice.text, choice.message) == ("no", None)
    assert called.message is not None
    assert (called.message.reasoning, called.message.content) == (None, None)


async def test_without_reasoning_to_limit_the_template_reads_its_own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    mood = {"open": "<mood>", "close": "</mood>", "content": "text"}
    fields = {**TEMPLATES["qwen3"]["fields"], "mood": mood}
    monkeypatch.setitem(TEMPLATES, "moody", {**TEMPLATES["qwen3"], "fields": fields})
    async with says("<mood>calm</mood>Hello", "moody", "hermes", "<think>\n\n</think>\n\n") as worker:
        (free,) = (await worker.generate(**CHAT)).choices
        (choice,) = (await worker.generate(**CHAT, max_reasoning_tokens=3)).choices
    assert choice.message is not None
    assert (choice.message.content, dict(choice.message.extra)) == ("Hello", {"mood": "calm"})
    assert choice.message == free.message


async def test_nothing_is_enforced_that_the_template_would_not_read() -> None:
    """This one has content between markers, which the row whose signs its chat template has does not know."""
    async with says("</think><response>\nHello\n</response>", "ernie", "hermes", "<think>") as worker:
        for asked in (REQUIRED, {**CHAT, "constraint": YES_OR_NO}, {**CHAT, "max_reasoning_tokens": 3}):
            with pytest.raises(Unsupported, match="the answers of this model's own response_template"):
                await worker.generate(**asked)
        (choice,) = (await worker.generate(**CHAT, tools=[TOOL | {"function": {"name": "now"}}])).choices
    assert choice.message is not None
    assert choice.message.content == "Hello"
