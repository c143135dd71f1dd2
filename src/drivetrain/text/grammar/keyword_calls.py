"""Keyword arguments of a Python call. Their values are JSON, which is read as Python's literals are; see below."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from drivetrain.text.grammar.lark import json_terms
from drivetrain.text.grammar.objects import CannotWrite, properties_of, separated
from drivetrain.text.grammar.spelling import GrammarText

_WORDS = {"boolean": '("True" | "False")', "null": '"None"'}
_KEY = r"/[A-Za-z_][A-Za-z0-9_]*/"


class KeywordWriter:
    """llguidance escapes in strings only what both languages write alike: no `\\/`, and no surrogates."""

    def __init__(self, grammar: GrammarText) -> None:
        self._grammar = grammar

    def arguments(self, schema: Mapping[str, Any], name: str) -> str:
        properties, extra = properties_of(schema)
        if not properties and extra is not False:
            one = self._grammar.rule(f"{name}_any", f'{_KEY} "=" {json_terms(extra)}')
            return f'({one} (", " {one})*)?'
        for each in properties:
            if not each.key.isascii() or not each.key.isidentifier() or keyword.iskeyword(each.key):
                raise CannotWrite(f"a property cannot be named {each.key!r} where arguments are Python's")
        items = [(f'"{each.key}=" {self._value(each.schema, schema)}', each.required) for each in properties]
        return separated(self._grammar, name, items, '", "')

    def _value(self, schema: Any, root: Mapping[str, Any]) -> str:
        if isinstance(schema, Mapping):
            if set(schema) <= {"type", "title", "description", "default"} and str(schema.get("type")) in _WORDS:
                return _WORDS[schema["type"]]
            schema = {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
        return json_terms(schema)
