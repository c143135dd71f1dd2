"""What Python callers see of a result: its calls, and what `print` shows of it."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from drivetrain.core.answer import AnswerMessage, ToolCall
from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason, Metrics, Result, Usage


def result(*choices: Choice) -> Result:
    return Result("id", "m", choices, Usage(12, 3456), Metrics(total_s=1.5))


def test_the_calls_of_a_choice() -> None:
    call = ToolCall(0, "add", '{"a": 1}')
    assert Choice(0, "x", message=AnswerMessage("x", None, (call,))).tool_calls == (call,)
    assert Choice(0, "x").tool_calls == ()


def test_print_shows_one_screen() -> None:
    made = result(Choice(0, "Hello.", (1, 2), finish_reason=FinishReason.STOP))
    assert str(made) == "m: 12 + 3,456 tokens in 1.50 s\n[0] stop\nHello."
    calls = tuple(ToolCall(i, "f", '{"a": "' + "x" * 9000) for i in range(50))
    long = Choice(0, "x" * 100_000, message=AnswerMessage("é" * 100_000, "thought", calls))
    shown = str(result(*[long] * 40))
    assert len(shown) < 40_000
    assert "… (100,000 characters)" in shown
    assert "[0] not finished" in shown
    assert shown.endswith("and 35 more choices")
    assert "token_ids" in repr(made)


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("given", [Person, {"json_schema": Person}])
def test_a_class_of_pydantic_is_its_schema(given: object) -> None:
    made = GenerateRequest(prompt="x", constraint=given).constraint  # type: ignore[arg-type]
    assert isinstance(made, Constraint)
    assert made.form is ConstraintForm.JSON_SCHEMA
    assert json.loads(made.source) == Person.model_json_schema()


def test_another_class_is_refused() -> None:
    for given in (int, {"json_schema": int}):
        with pytest.raises(InvalidRequest) as caught:
            GenerateRequest(prompt="x", constraint=given)  # type: ignore[arg-type]
        assert caught.value.param == "constraint"
