"""Reasoning apart from the content, on every engine: a chat template that ends in `<think>` makes any model reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.rigs import Rig, honours
from drivetrain.core.answer import AnswerMessage
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, FinishReason
from drivetrain.text.answers.parser import MessageBuilder
from drivetrain.worker.worker import EngineWorker

TURNS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
TEMPLATES = {"plain": TURNS, "begun": f"{TURNS}\n<think>\n", "closed": f"{TURNS}\n<think>\n\n</think>\n\n"}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count to ten, please. <think>"}],
    "temperature": 1.0,
    "seed": 5,
    "max_tokens": 24,
}


@pytest.fixture(params=["begun", "closed"], scope="module")
async def reasoner(rig: Rig, request: pytest.FixtureRequest) -> AsyncIterator[tuple[EngineWorker, bool]]:
    """A worker whose template writes `<think>`, or writes it and closes it again; and whether it was left open."""
    async with rig.open(template=TEMPLATES[request.param]) as made:
        yield made, request.param == "begun"


@pytest.fixture(scope="module")
def worker(reasoner: tuple[EngineWorker, bool]) -> EngineWorker:
    """The one that is looked at for what tests leave behind."""
    return reasoner[0]


def joined(deltas: list[Delta], index: int = 0) -> AnswerMessage:
    builder = MessageBuilder()
    for delta in deltas:
        for part in (delta.parts or ()) if delta.index == index else ():
            builder.add(part)
    return builder.message()


def check(choice: Choice, *, is_open: bool) -> None:
    """The model knows nothing of markers: what it says is all of one kind."""
    message = choice.message
    assert message is not None
    assert (message.reasoning if is_open else message.content or "").strip() == choice.text.strip()  # type: ignore[union-attr]
    assert (message.content if is_open else message.reasoning) is None


async def test_what_follows_the_marker_is_reasoning(reasoner: tuple[EngineWorker, bool]) -> None:
    worker, is_open = reasoner
    result = await worker.generate(**CHAT)
    check(result.choices[0], is_open=is_open)
    ended = result.choices[0].finish_reason is FinishReason.STOP  # the end itself is no reasoning if it has no text
    expected = result.usage.completion_tokens if is_open else 0
    assert expected - ended <= result.usage.reasoning_tokens <= expected


async def test_the_stream_adds_up_to_the_whole(reasoner: tuple[EngineWorker, bool]) -> None:
    worker, is_open = reasoner
    deltas = [event async for event in worker.stream(**CHAT) if isinstance(event, Delta)]
    message = joined(deltas)
    text = "".join(delta.text for delta in deltas)
    assert all(delta.parts is not None for delta in deltas)
    assert ((message.reasoning if is_open else message.content) or "").strip() == text.strip()


async def test_each_choice_is_read_by_itself(reasoner: tuple[EngineWorker, bool]) -> None:
    worker, is_open = reasoner
    if not await honours(worker, "n"):
        return
    result = await worker.generate(**{**CHAT, "max_tokens": 8}, n=3)
    assert len(result.choices) == 3
    for choice in result.choices:
        check(choice, is_open=is_open)


async def test_a_prompt_is_not_read(reasoner: tuple[EngineWorker, bool]) -> None:
    """Its text is all content."""
    worker, _ = reasoner
    result = await worker.generate(prompt="Once <think>", max_tokens=8, temperature=0)
    assert (result.choices[0].message, result.usage.reasoning_tokens) == (None, 0)


@pytest.mark.parametrize("budget", [None, 0, 5])
async def test_a_constraint_is_on_what_follows_the_reasoning(
    reasoner: tuple[EngineWorker, bool], budget: int | None
) -> None:
    """A budget closes the reasoning; what comes then is held to the constraint, and may spell markers."""
    worker, is_open = reasoner
    if not await honours(worker, "constraint"):
        return
    limits: dict[str, Any] = {} if budget is None else {"max_reasoning_tokens": budget}
    before = worker.stats.constrained["choice"]
    result = await worker.generate(
        **{**CHAT, "max_tokens": 60}, **limits, constraint={"choice": ["<think>yes</think>"]}
    )
    assert worker.stats.constrained["choice"] == before + 1
    (choice,) = result.choices
    if not is_open:
        assert (choice.text, choice.message) == ("<think>yes</think>", None)
    elif budget is not None:
        assert choice.message is not None
        assert choice.message.content == "<think>yes</think>"
        assert "</think>" in choice.text.removesuffix("<think>yes</think>")
        assert choice.finish_reason is FinishReason.STOP
    elif choice.finish_reason is FinishReason.STOP:
        assert choice.message is not None
        assert choice.message.content == "<think>yes</think>"


@pytest.mark.parametrize("reasoner", ["plain"], indirect=True)
async def test_a_marker_of_the_caller_opens_nothing(reasoner: tuple[EngineWorker, bool]) -> None:
    worker, _ = reasoner
    result = await worker.generate(**CHAT)
    message = result.choices[0].message
    assert message is not None
    assert (message.content or "", message.reasoning) == (result.text, None)
    assert result.usage.reasoning_tokens == 0
