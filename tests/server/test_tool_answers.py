"""What a model may write in its calls to do harm, as a client gets it: text that is UTF-8, and arguments that are JSON.

The engine here takes no constraints, so that nothing holds the model back.
"""

from __future__ import annotations

import json

import pytest

from server.serving import fake, serving
from server.test_tool_attacks import answered, body, tool

UNHELD = frozenset({"constraint"})


def said(arguments: str, max_tokens: int = 8000, behind: str = "\n</tool_call>") -> tuple[str, str | None, str]:
    """Finish reason, content and arguments of one call."""
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}{behind}'
    with serving(fake(text=text, context_length=20_000, unsupported=UNHELD, ids_per_step=3)) as served:
        reason, content, calls = answered(served, body(served, tool(), max_tokens=max_tokens))
        served.works()
    ((name, given),) = calls
    assert name == "f"
    return reason, content, given


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (r'{"a": "\ud83d"}', {"a": "\ud83d"}),
        (r'{"a": "\ude00 and more"}', {"a": "\ude00 and more"}),
        (r'{"\ud83d": 1}', {"\ud83d": 1}),
        (r'{"a": "\ude00\ud83d"}', {"a": "\ude00\ud83d"}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        (r'{"a": "\u0000"}', {"a": "\0"}),
    ],
)
def test_half_a_surrogate_as_an_escape(arguments: str, value: object) -> None:
    """It stays an escape: JSON can say it, and UTF-8 cannot."""
    assert said(arguments, behind="}\n</tool_call>") == ("tool_calls", None, arguments)
    assert json.loads(arguments) == value


@pytest.mark.parametrize("behind", ["", "\\", "\\u", "\\ud", "\\ude0"])
def test_an_answer_that_ends_in_half_a_surrogate(behind: str) -> None:
    """An escape that is not whole is not given out."""
    given = said(r'{"a": "x\ud83d', behind=behind)
    assert given == ("stop", None, r'{"a": "x\ud83d')


def test_a_name_with_half_a_surrogate_is_the_name_of_no_tool() -> None:
    text = '<tool_call>{"name": "f\\ud83d", "arguments": {}}</tool_call>'
    with serving(fake(text=text, unsupported=UNHELD)) as served:
        assert answered(served, body(served, tool(), max_tokens=200)) == ("stop", text, [])
        served.works()


@pytest.mark.parametrize("tokens", range(48, 53))
def test_an_answer_that_is_cut_inside_a_character(tokens: int) -> None:
    """A token is a byte. No half of a character goes out as anything else than U+FFFD."""
    reason, _, given = said('{"a": "\U0001f600\U0001f600"}', max_tokens=tokens, behind="}\n</tool_call>")
    assert reason == "length"
    assert given.rstrip("\ufffd") in ('{"a": "', '{"a": "\U0001f600')


@pytest.mark.parametrize("arguments", ['{"a":' + "[" * 1000, '{"a":' * 1000])
def test_arguments_that_never_stop_nesting(arguments: str) -> None:
    """They are given out as far as they could be read."""
    reason, content, given = said(arguments)
    assert (reason, content) == ("stop", None)
    assert arguments.startswith(given)
    assert 100 < len(given) < len(arguments)


@pytest.mark.parametrize("arguments", ['{"a": 1e999}', '{"a": ' + "9" * 1000 + "}", '{"a": 1, "a": 2}', '{"": {}}'])
def test_arguments_that_some_clients_cannot_read_are_json(arguments: str) -> None:
    assert said(arguments, behind="}\n</tool_call>") == ("tool_calls", None, arguments)
    json.loads(arguments)


def test_two_hundred_calls() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 200
    with serving(fake(text=text, context_length=20_000, unsupported=UNHELD, ids_per_step=50)) as served:
        reason, content, calls = answered(served, body(served, tool(), max_tokens=15_000))
    assert (reason, content, calls) == ("tool_calls", None, [("f", "{}")] * 200)
