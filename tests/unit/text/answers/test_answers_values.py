"""Values are read as strictly as `json` and Python read them, and come out as JSON."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.text.answers.values import GEMMA, JSON, MAX_DEPTH, PYTHON, Dialect, ValueScanner

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def scan(text: str, dialect: Dialect = JSON, size: int = 1000) -> str | None:
    scanner = ValueScanner(dialect)
    out = ""
    for i in range(0, len(text), size):
        piece = text[i : i + size]
        if scanner.feed(piece, 0) < len(piece):
            return None
        out += scanner.take()
    scanner.finish()
    return out + scanner.take() if scanner.whole else None


@given(value=values, ascii_=st.booleans(), size=st.integers(1, 5))
def test_json_comes_out_as_it_stands(value: object, ascii_: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    assert scan(text, size=size) == text


@given(value=values, at=st.integers(0, 60), char=st.sampled_from([*'{}[]",:\\x1 \n\t', ""]))
@settings(max_examples=400)
def test_what_json_refuses_is_refused(value: object, at: int, char: str) -> None:
    text = json.dumps(value)
    at = min(at, len(text))
    text = text[:at] + char + text[at + (not char) :]
    try:
        json.loads(text, parse_constant=lambda _: (_ for _ in ()).throw(ValueError()))
        good = True
    except ValueError:
        good = False
    rest = text.strip()
    assert (scan(rest) is not None) == good
    assert (scan(rest, size=1) is not None) == good


@given(value=values, size=st.integers(1, 5))
def test_python_comes_out_as_json(value: object, size: int) -> None:
    out = scan(repr(value), PYTHON, size)
    assert out is not None
    assert json.loads(out) == value


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2,]",
        "{'a': 1,}",
        "[[],]",
        r"'it\'s \x41 \u00e9 \n'",
        '"a\'b"',
        "[True, False, None, true, null]",
        "{}",
        "''",
    ],
)
def test_more_python(text: str) -> None:
    out = scan(text, PYTHON)
    assert out is not None
    assert json.loads(out) == ast.literal_eval(text.replace("true", "True").replace("null", "None"))
    assert scan(text, PYTHON, 1) == out


@pytest.mark.parametrize(
    "text", ["[,]", "{,}", "[1,,2]", "{1: 2}", "(1,)", "f'x'", "a", "1 2", "'a' 'b'", "{'a' 1}", "'a\n'"]
)
def test_python_that_is_refused(text: str) -> None:
    assert scan(text, PYTHON) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{a:1,b-c:<|"|>x "y" \n\\n<|<|"|>}', {"a": 1, "b-c": 'x "y" \n\\n<|'}),
        ('{<|"|>a b<|"|>:[{},[],null,-1.5e3]}', {"a b": [{}, [], None, -1500.0]}),
        ('{ß:"x"}', {"ß": "x"}),
        ("{a:b}", None),
        ("{a:1,}", None),
        ('{a:<|"x}', None),
    ],
)
def test_gemma(text: str, value: object) -> None:
    for size in (1, 2, 3, 100):
        out = scan(text, GEMMA, size)
        assert (out and json.loads(out)) == value


def test_half_a_surrogate_pair_is_escaped() -> None:
    out = scan(r"'\ud83d\ude00 \ud800'", PYTHON)
    assert out is not None
    out.encode()
    assert json.loads(out) == "😀 \ud800"


def test_depth_and_length_are_bounded() -> None:
    assert scan("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert scan("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) is None
    assert scan("1" * 100_000) is None
