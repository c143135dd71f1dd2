"""What `chat_template_kwargs` and `reasoning_effort` come to, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.families.template_variables import template_variables

SWITCH, EFFORT, BOTH = {"enable_thinking"}, {"reasoning_effort"}, {"enable_thinking", "reasoning_effort"}


@pytest.mark.parametrize("reasons", [True, False])
@pytest.mark.parametrize(
    ("given", "effort", "known", "expected"),
    [
        (None, None, set(), {}),
        ({"enable_thinking": False}, None, SWITCH, {"enable_thinking": False}),
        (None, "low", EFFORT, {"reasoning_effort": "low"}),
        (None, "none", EFFORT, {"reasoning_effort": "none"}),
        (None, "low", BOTH, {"reasoning_effort": "low"}),
        (None, "none", SWITCH, {"enable_thinking": False}),
        (None, "minimal", SWITCH, {"enable_thinking": True}),
        (None, "high", {"thinking", "x"}, {"thinking": True}),
        ({"enable_thinking": True}, "high", SWITCH, {"enable_thinking": True}),
        (None, "on", EFFORT, {}),
        (None, "on", SWITCH, {"enable_thinking": True}),
        (None, "on", BOTH, {"enable_thinking": True}),
        (None, "on", set(), {}),
        ({"x": [1]}, "none", {"thinking", "x"}, {"x": [1], "thinking": False}),
    ],
)
def test_what_the_template_is_given(
    given: Any, effort: str | None, known: set[str], expected: dict[str, Any], reasons: bool
) -> None:
    assert template_variables(given, effort, known=frozenset(known), reasons=reasons) == expected


def test_an_effort_means_nothing_to_a_model_that_does_not_reason() -> None:
    assert template_variables(None, "high", known=frozenset({"x"}), reasons=False) == {}
    with pytest.raises(Unsupported, match="reasoning_effort is not supported") as caught:
        template_variables(None, "high", known=frozenset({"x"}), reasons=True)
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("enable_thinkin", {"enable_thinking", "date_string"}, "did you mean enable_thinking?"),
        ("zzz", {"enable_thinking", "date_string"}, "it reads date_string, enable_thinking"),
        ("messages", {"enable_thinking"}, "which the chat template does not read"),
        ("enable_thinking", set(), "this model's prompt form has no variables"),
        ("x" * 100_000, {f"{i:x>60}" for i in range(50)}, "which the chat template does not read"),
    ],
)
def test_a_variable_that_is_not_read_is_refused(name: str, known: set[str], said: str) -> None:
    with pytest.raises(Unsupported) as caught:
        template_variables({name: True}, None, known=frozenset(known), reasons=True)
    assert caught.value.param == f"chat_template_kwargs.{name[:60]}"
    assert said in caught.value.message
    assert len(caught.value.message) < 2000


def test_an_effort_cannot_contradict_a_variable() -> None:
    given = {"enable_thinking": True}
    with pytest.raises(InvalidRequest, match="enable_thinking is True; send one of them") as caught:
        template_variables(given, "none", known=frozenset(SWITCH), reasons=True)
    assert caught.value.param == "reasoning_effort"
    assert given == {"enable_thinking": True}
