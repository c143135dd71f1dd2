"""The server's own rules, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
    Unsupported,
)
from drivetrain.core.parameters import PARAMETERS, check
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, TokenLogprob, TopLogprob
from drivetrain.server.errors import body_of, error_response, renamed
from drivetrain.server.format.openai import LOWEST, chat_logprobs, compact, completion_logprobs, matched_stop_json
from drivetrain.server.parse.schema import CHAT, COMPLETION, PromptForms, Refused
from drivetrain.server.rate import Rate

ANYTHING = Capabilities(parameters=frozenset(PARAMETERS), context_length=100, vision=True, embeddings=True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("x"), 400),
        (Unsupported("x"), 400),
        (ContextOverflow("x", prompt_tokens=1, limit=1), 400),
        (ModelNotFound("x"), 404),
        (Overloaded("x", retry_after_s=0.2), 429),
        (NotReady("x", retry_after_s=5), 503),
        (Cancelled("x"), 503),
        (DeadlineExceeded("x"), 504),
        (EngineFailed("x"), 500),
        (OutOfMemory("x"), 500),
        (DrivetrainError("x"), 500),
    ],
)
def test_statuses(error: DrivetrainError, status: int) -> None:
    response = error_response(error)
    assert response.status_code == status
    assert ("retry-after" in response.headers) == (status in {429, 503})


@pytest.mark.parametrize("text", ["x" * 10**6, "\x00" * 10**5, "\ud800" * 10**5, "🌍" * 10**5, '"' * 10**5])
def test_error_bodies_are_bounded(text: str) -> None:
    assert len(body_of(InvalidRequest(text, param=text))) < 4096


def test_errors_in_the_words_of_the_endpoint() -> None:
    error = renamed(InvalidRequest("logprobs is 21; the limit is 20", param="logprobs"), {"logprobs": "top_logprobs"})
    assert (error.message, error.param) == ("top_logprobs is 21; the limit is 20", "top_logprobs")
    error = renamed(InvalidRequest("messages[0] is odd", param="messages[0].role"), {"messages": "prompt"})
    assert (error.message, error.param) == ("prompt[0] is odd", "prompt[0].role")
    assert isinstance(renamed(Unsupported("a", param="a"), {"a": "b"}), Unsupported)
    overflow = ContextOverflow("prompt_token_ids has 9", prompt_tokens=9, limit=4, param="prompt_token_ids")
    overflow.request_id = "r"
    error = renamed(overflow, {"prompt_token_ids": "prompt"})
    assert isinstance(error, ContextOverflow)
    assert (str(error), error.param) == ("prompt has 9", "prompt")
    assert (error.prompt_tokens, error.limit, error.request_id) == (9, 4, "r")


def ranges() -> list[tuple[str, dict[str, Any]]]:
    """Every range that the schema tells."""
    told = [(name, field.kind.schema()) for name, field in COMPLETION.fields.items() if name in PARAMETERS]
    return [(name, schema) for name, schema in told if {"minimum", "exclusiveMinimum"} & schema.keys()]


@pytest.mark.parametrize(("name", "told"), ranges(), ids=[name for name, _ in ranges()])
def test_the_ranges_told_are_those_enforced(name: str, told: dict[str, Any]) -> None:
    def accepted(value: Any) -> bool:
        try:
            PARAMETERS[name].kind.judge(name, value)
        except InvalidRequest:
            return False
        return True

    step = 1 if "integer" in str(told) else 1e-9
    if "minimum" in told:
        assert accepted(told["minimum"])
        assert not accepted(told["minimum"] - step)
    else:
        assert not accepted(told["exclusiveMinimum"])
        assert accepted(told["exclusiveMinimum"] + step)
    assert accepted(told["maximum"])
    assert not accepted(told["maximum"] + max(step, told["maximum"] * 1e-9 if step < 1 else 1))


def test_no_field_is_both_built_and_refused() -> None:
    """Completions refuse those of chats, and chats that of completions."""
    of_chats = {"tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "max_reasoning_tokens"}
    for body, built in ((CHAT, {"suffix"}), (COMPLETION, of_chats)):
        refused = {name for name, field in body.fields.items() if isinstance(field.kind, Refused)}
        assert refused
        assert refused & PARAMETERS.keys() == built


def test_null_is_omitted() -> None:
    read = COMPLETION.judge({"model": "m", "prompt": "x", "n": None, "tools": None}, lenient=False)
    assert read == {"model": "m", "prompt": ("x",)}
    assert read.ignored == []


@pytest.mark.parametrize(
    ("given", "items"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2]], ((1,), (2,)))],
)
def test_four_forms_of_prompts(given: Any, items: Any) -> None:
    assert PromptForms().judge("prompt", given) == items


def test_probabilities_of_zero_are_json() -> None:
    entry = TokenLogprob(1, "a", b"a", float("-inf"), (TopLogprob(2, "\ufffd", b"\xf0", float("-inf")),), 0)
    chat = json.loads(compact(chat_logprobs([entry])))
    assert chat["content"][0]["logprob"] == LOWEST
    spelled = json.loads(compact(completion_logprobs([entry])))
    assert spelled["token_logprobs"] == [LOWEST]
    assert spelled["top_logprobs"] == [{"bytes:\\xf0": LOWEST, "a": LOWEST}]


def test_matched_stops() -> None:
    assert matched_stop_json(Choice(0, "")) == {}
    assert matched_stop_json(Choice(0, "", matched_stop=(1, 2))) == {"matched_stop": (1, 2)}


def test_a_rate_over_the_last_seconds() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    assert rate.look({"a": 0}) == 0
    for second in range(1, 21):
        now += 1
        assert rate.look({"a": 10 * second}) == pytest.approx(10)
    for _ in range(10):
        now += 1
        rate.look({"a": 200})
    assert rate.look({"a": 200}) == 0
    now += 1
    assert rate.look({"b": 1_000_000}) == 0  # loaded again, with what it had counted before
    now += 1
    assert rate.look({"b": 1_000_010}) == pytest.approx(2)
    assert len(rate._looks) < 10


def test_checked_before_anything_is_made_of_n() -> None:
    with pytest.raises(InvalidRequest):
        check(GenerateRequest(prompt="x", n=2**31 - 1), ANYTHING)
