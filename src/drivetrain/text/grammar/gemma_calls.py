"""Arguments as Gemma 4 writes them: JSON whose keys have no quotes and whose strings have a marker for theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from drivetrain.text.grammar.lark import json_terms, literal
from drivetrain.text.grammar.objects import TYPES, CannotWrite, check_keywords, listed, properties_of, separated
from drivetrain.text.grammar.spelling import GrammarText, either
from drivetrain.text.grammar.texts import text_upto

QUOTE = '<|"|>'

_KEY = re.compile(r"[A-Za-z0-9_.$@/-]+")
_NUMBERS = ("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LISTS = ("type", "items", "minItems", "maxItems")


class GemmaWriter:
    def __init__(self, grammar: GrammarText) -> None:
        self._grammar = grammar
        self._name = ""
        self._root: Mapping[str, Any] = {}

    def arguments(self, schema: Mapping[str, Any], name: str) -> str:
        self._name, self._root = name, schema
        return self._object(schema, name)

    def _value(self, schema: Any, name: str) -> str:
        """A rule of this name for it, or what stands in its place."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise CannotWrite("a value for which nothing is allowed cannot be written")
        if "$ref" in schema:
            return self._definition(schema)
        if (values := listed(schema)) is not None:
            check_keywords(schema, ("type", "enum", "const"))
            return either(map(self._literal, values))
        if "anyOf" in schema:
            check_keywords(schema, ("anyOf",))
            return _either_of([self._value(option, f"{name}_{i}") for i, option in enumerate(schema["anyOf"])])
        declared = schema.get("type", list(TYPES))
        kinds = declared if isinstance(declared, list) else [declared]
        return _either_of([self._kind(kind, {**schema, "type": kind}, f"{name}_{kind}") for kind in kinds])

    def _kind(self, kind: str, schema: Mapping[str, Any], name: str) -> str:
        if kind == "string":
            return f"{self._grammar.terms(QUOTE)} {text_upto(self._grammar, schema, QUOTE)}"
        if kind in ("number", "integer"):
            check_keywords(schema, _NUMBERS)
            return json_terms(schema)
        if kind in ("boolean", "null"):
            check_keywords(schema, ("type",))
            return '"true" | "false"' if kind == "boolean" else '"null"'
        if kind == "array":
            return self._list(schema, name)
        if kind == "object":
            return self._object(schema, name)
        raise CannotWrite(f"there is no type {kind}")

    def _list(self, schema: Mapping[str, Any], name: str) -> str:
        check_keywords(schema, _LISTS)
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most is not None and most < least:
            raise CannotWrite("no list has as many items")
        if most == 0:
            return '"[]"'
        item = self._grammar.rule(f"{name}_item", self._value(schema.get("items", True), f"{name}_value"))
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else int(most) - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _object(self, schema: Mapping[str, Any], name: str) -> str:
        properties, extra = properties_of(schema)
        if not properties and extra is not False:
            pair = f'KEY ":" {self._grammar.rule(f"{name}_value", self._value(extra, f"{name}_other"))}'
            self._grammar.rule("KEY", "/[A-Za-z_][A-Za-z0-9_]*/")
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        items: list[tuple[str, bool]] = []
        for i, each in enumerate(properties):
            if _KEY.fullmatch(each.key) is None:
                raise CannotWrite(f"a property cannot be named {each.key!r} where keys have no quotes")
            value = self._grammar.rule(f"{name}_{i}", self._value(each.schema, f"{name}_{i}_value"))
            items.append((f'"{each.key}:" {value}', each.required))
        inside = separated(self._grammar, name, items, '","')
        return f'"{{" {inside} "}}"'

    def _anything(self) -> str:
        """Any value: the rule that it is refers to itself."""
        return self._once("anything", {"type": list(TYPES)})

    def _definition(self, schema: Mapping[str, Any]) -> str:
        check_keywords(schema, ("$ref",))
        _, _, place = str(schema["$ref"]).partition("#/")
        group, _, key = place.partition("/")
        definition = self._root.get(group, {}).get(key) if group in ("$defs", "definitions") else None
        if definition is None:
            raise CannotWrite(f"$ref {schema['$ref']!r} cannot be followed")
        name = f"{self._name}_def_{list(self._root[group]).index(key)}_{group.strip('$')}"
        return self._once(name, definition)

    def _once(self, name: str, schema: Any) -> str:
        """A rule that may refer to itself, so its name is there before its body is."""
        if name not in self._grammar:
            self._grammar.rule(name, "")
            self._grammar.change(name, self._value(schema, f"{name}_value"))
        return name

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            if QUOTE in value:
                raise CannotWrite("an enum has values that the form cannot write")
            quote = self._grammar.terms(QUOTE)
            return f"{quote} {literal(value)} {quote}"
        if isinstance(value, (list, Mapping)):
            raise CannotWrite("an enum has objects or lists")
        return literal(json.dumps(value))


def _either_of(alternatives: list[str]) -> str:
    if not alternatives:
        raise CannotWrite("a value for which nothing is allowed cannot be written")
    return either(alternatives)
