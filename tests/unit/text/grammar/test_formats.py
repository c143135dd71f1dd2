"""Patterns in place of formats."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest

from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.formats import PATTERNS, spell_formats
from drivetrain.text.grammar.lark import json_terms
from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary

URI = PATTERNS["uri"]
IS_URI = jsonschema_rs.validator_for({"format": "uri"}, validate_formats=True).is_valid


@pytest.mark.parametrize("begin", ["http:", "http://", "a:", "x", "ftp:/", "mailto:a@b", "HTTP://u:p@h:80/", ":"])
def test_a_pattern_means_what_a_validator_takes(begin: str) -> None:
    rng = random.Random(5)
    taken = 0
    for _ in range(3000):
        text = begin + "".join(rng.choice("ab/:@?#[%20.-~A9 é\\") for _ in range(rng.randrange(9)))
        assert bool(re.fullmatch(URI, text)) == IS_URI(text), text
        taken += IS_URI(text)
    assert taken > 100 or begin in (":", "x")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"format": "uri"}, {"pattern": URI}),
        ({"format": "uuid"}, {"format": "uuid"}),
        ({"format": "a colour"}, {}),
        ({"format": "uri", "pattern": "a"}, {"pattern": "a", "allOf": [{"pattern": URI}]}),
        ({"format": "uri", "pattern": "a", "allOf": [{}]}, {"pattern": "a", "allOf": [{}, {"pattern": URI}]}),
        ({"properties": {"format": {"format": "uri"}}}, {"properties": {"format": {"pattern": URI}}}),
        ({"anyOf": [{"items": {"format": "uri"}}]}, {"anyOf": [{"items": {"pattern": URI}}]}),
        ({"$defs": {"enum": {"format": "uri"}}}, {"$defs": {"enum": {"pattern": URI}}}),
        ({"additionalProperties": {"format": "uri"}}, {"additionalProperties": {"pattern": URI}}),
        ({"enum": [{"format": "uri"}]}, {"enum": [{"format": "uri"}]}),
        ({"default": {"format": "uri"}}, {"default": {"format": "uri"}}),
        ({"format": ["uri"]}, {"format": ["uri"]}),
        ({"properties": 5}, {"properties": 5}),
    ],
)
def test_where_a_format_is_one(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert spell_formats(schema) == expected


def test_both_a_pattern_and_a_format_hold() -> None:
    schema = spell_formats({"type": "string", "format": "uri", "pattern": "^http.*b$"})
    grammar = CompiledGrammar(f"start: {json_terms(schema)}\n", Vocabulary(ByteTokenizer(), frozenset({257})))
    assert grammar.fault == ""
    for text, fits in (("http://ab", True), ("ftp://ab", False), ("http://a", False), ("http://a b", False)):
        matcher = grammar.matcher()
        assert (matcher.take(list(json.dumps(text).encode())) and matcher.may_end) is fits, text


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("date", ["2023-02-28", "2023-02-29", "2024-02-29", "1900-02-29", "2000-02-29", "2024-04-31"]),
        ("time", ["23:59:60Z", "22:59:60Z", "23:59:59+01:00", "23:59:59", "24:00:00Z"]),
        (
            "date-time",
            ["2024-02-29T23:59:60z", "2023-02-29T00:00:00Z", "2024-01-01T12:30:60Z", "2024-01-01t00:00:00.5Z"],
        ),
        ("uri-reference", ["a b", "/a", "//h:1/x?y#z", "a:b", "1:b", "./1:b", ""]),
        ("json-pointer", ["/a~0", "a", "/~2", "", "/"]),
        ("relative-json-pointer", ["0#", "01", "1/a", "-1", "0"]),
    ],
)
def test_formats_of_our_own_are_a_validators(name: str, texts: list[str]) -> None:
    is_valid = jsonschema_rs.validator_for({"format": name}, validate_formats=True).is_valid
    found = {text: re.fullmatch(PATTERNS[name], text) is not None for text in texts}
    assert found == {text: is_valid(text) for text in texts}
    assert len(set(found.values())) == 2
