"""The judge of schemas agrees with a validator on what the cases ask, on what fits and on what nearly does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from toy_answers import FITTING

from drivetrain.tools.conform.cases.schemas import SCHEMAS
from drivetrain.tools.conform.fitting import fits, misfit
from drivetrain.tools.conform.verdict import Failed

ODD: tuple[Any, ...] = (
    None, True, 0, 1, 1.0, 2, 7, -20, -10, 98, 98.5, 0.5, 1.5, "", "a", "oak", "AB-123\n", "AB-12",
    "2023-02-29", "0000-02-29", "abcdefghi",
    [], [True], ["oak"], ["oak", "iron", "oak", "oak"], {}, {"open": 1}, {"width": 9, "tall": True},
)  # fmt: skip


def _near(value: Any) -> Iterator[Any]:
    """The value, with each part of it left out, replaced or given company."""
    yield value
    yield from ODD
    if isinstance(value, dict):
        yield {**value, "more": True}
        for name, one in value.items():
            yield {key: other for key, other in value.items() if key != name}
            yield from ({**value, name: near} for near in _near(one))
    if isinstance(value, list):
        yield value[1:]
        yield from ([near, *value[1:]] for one in value[:1] for near in _near(one))


@pytest.mark.parametrize("title", SCHEMAS)
def test_it_agrees_with_a_validator(title: str) -> None:
    schema = SCHEMAS[title][1]
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    fitting = json.loads(FITTING[title])
    assert misfit(fitting, schema) == ""
    found = [(value, not misfit(value, schema), validator.is_valid(value)) for value in _near(fitting)]
    assert [value for value, ours, theirs in found if ours is not theirs] == []
    assert {theirs for _, _, theirs in found} == {True, False}


def test_the_place_is_told() -> None:
    with pytest.raises(Failed, match=r"answer does not fit the schema: \$\.sizes\[0\]\.width: maximum"):
        fits('{"sizes": [{"width": 10, "tall": true}]}', SCHEMAS["nested"][1], "answer")


@pytest.mark.parametrize("text", ["", "{", "NaN", "[" * 100_000])
def test_what_is_no_json_is_told(text: str) -> None:
    with pytest.raises(Failed, match="the answer is not JSON"):
        fits(text, True, "answer")


def test_a_cycle_ends() -> None:
    assert "too deep" in misfit(1, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})


def test_a_keyword_that_is_not_judged_is_our_mistake() -> None:
    with pytest.raises(NotImplementedError, match="uniqueItems"):
        misfit([1], {"uniqueItems": True})
