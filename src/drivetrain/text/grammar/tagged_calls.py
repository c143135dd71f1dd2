"""Arguments between tags, as `text/answers/tagged.py` reads them: each is JSON or text, as its schema's types say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drivetrain.text.answers.forms import CallWriting, TaggedArguments
from drivetrain.text.answers.schemas import ANNOTATIONS, as_json, is_json, types_of
from drivetrain.text.answers.strings import json_text
from drivetrain.text.grammar.lark import json_terms
from drivetrain.text.grammar.objects import CannotWrite, Property, check_keywords, listed, properties_of
from drivetrain.text.grammar.spelling import TEXT, GrammarText, either
from drivetrain.text.grammar.texts import one_of, text_upto

_NOTHING_ALLOWED = "a value for which nothing is allowed cannot be written"
_UNFIT_KEY = re.compile(r"[<>\n]|^\s|\s$|^$")


class TaggedWriter:
    def __init__(self, grammar: GrammarText, tags: TaggedArguments, writing: CallWriting) -> None:
        self._grammar = grammar
        self._tags = tags
        self._gap = f"{grammar.terms(writing.gap)}?" if writing.gap else ""
        self._line = "\n" if writing.lines else ""
        loose = [pattern for pattern in (tags.loose_key, tags.loose_end) if pattern]
        self._text = grammar.except_for(rf"(.|\n)*({'|'.join(loose)})(.|\n)*", "VALUE_TEXT") if loose else TEXT
        """What is not read as the end of a value whose tag is missing."""

    def arguments(self, schema: Mapping[str, Any], name: str) -> str:
        properties, extra = properties_of(schema)
        if not properties and extra is not False:
            return f"{self._gap} {self._grammar.rule(name, self._any(extra, schema))}*"
        written = (self._argument(each, schema) for each in properties)
        body = " ".join(text if each.required else f"({text})?" for each, text in zip(properties, written, strict=True))
        return f"{self._gap if not self._line else ''} {self._grammar.rule(name, body) if body else ''}"

    def _argument(self, each: Property, root: Mapping[str, Any]) -> str:
        if _UNFIT_KEY.search(each.key) or self._tags.key_end[0] in each.key:
            raise CannotWrite(f"a property cannot be named {each.key!r} where arguments stand between tags")
        opening = self._grammar.terms(f"{self._tags.key}{each.key}{self._tags.key_end}")
        if self._tags.text_mark:
            return f"{opening} {self._marked(each.schema, root)} {self._gap}"
        return f"{self._opened(opening)} {self._value(each.schema, root)} {self._gap}"

    def _marked(self, schema: Any, root: Mapping[str, Any]) -> str:
        """The mark that says what the value is, the value, and the tag behind it."""
        if schema is False:
            raise CannotWrite(_NOTHING_ALLOWED)
        text, types = self._marked_text(schema), types_of(schema)
        if text is not None and types == ("string",):
            return text
        marks = self._tags.json_marks
        named = {*types, *(("number",) if "integer" in types else ())}
        of_types = [mark for kind, mark in marks.items() if kind in named] or [*marks.values()]
        value = f"{json_terms(_rooted(schema, root))} {self._grammar.terms(self._tags.value_end)}"
        as_json = f"{either(map(self._grammar.terms, of_types))} {value}"
        return as_json if text is None else either((text, as_json))

    def _marked_text(self, schema: Any) -> str | None:
        """None if its strings can only be held to the schema as JSON, or if there are none."""
        if schema is True or set(schema) <= ANNOTATIONS:
            held: Mapping[str, Any] = {}
        elif "string" in types_of({"type": schema.get("type")}):
            held = {**{key: value for key, value in schema.items() if key != "nullable"}, "type": "string"}
        else:
            return None
        try:
            return f"{self._grammar.terms(self._tags.text_mark)} {text_upto(self._grammar, held, self._tags.value_end)}"
        except CannotWrite:
            return None

    def _opened(self, key: str) -> str:
        """Up to the value."""
        value = f"{self._gap} {self._grammar.terms(self._tags.value)}" if self._tags.value else ""
        return f"{key} {value} {self._grammar.terms(self._line)}"

    def _any(self, schema: Any, root: Mapping[str, Any]) -> str:
        key = f"{self._grammar.terms(self._tags.key)} {self._key()} {self._grammar.terms(self._tags.key_end)}"
        if self._tags.text_mark:
            return f"{key} {self._marked(schema, root)} {self._gap}"
        if schema is not True and schema != {}:
            raise CannotWrite("additionalProperties cannot be honoured where arguments stand between tags")
        return f"{self._opened(key)} {self._grammar.upto(self._tags.value_end, self._text)} {self._gap}"

    def _key(self) -> str:
        return self._grammar.rule("KEY", r"/[A-Za-z0-9_.\-]+/")

    def _value(self, schema: Any, root: Mapping[str, Any]) -> str:
        """The value and the tag behind it."""
        close = self._tags.value_end
        if schema is True:
            return self._grammar.upto(close, self._text)
        if not isinstance(schema, Mapping):
            raise CannotWrite(_NOTHING_ALLOWED)
        if is_json(schema):
            return f"{json_terms(_rooted(schema, root))} {self._grammar.terms(self._line)} {self._grammar.terms(close)}"
        types = types_of(schema)
        if not types:
            return self._grammar.upto(close, self._text)
        if types == ("string",) and schema.get("type") == "string":
            return text_upto(self._grammar, schema, close, self._line, self._text)
        if (values := listed(schema)) is not None:
            check_keywords(schema, ("type", "enum", "const", "nullable"))
            written = [value if isinstance(value, str) else json_text(value) or "" for value in values]
            if [as_json(text, types) for text in written] != list(map(json_text, values)):
                raise CannotWrite("an enum has values that cannot be told apart where arguments have no types")
            return one_of(self._grammar, written, close, self._line)
        _check_free(schema)
        return self._grammar.upto(close, self._text)


def _rooted(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the definitions that it may refer to."""
    return {**({} if schema is True else schema), **{key: root[key] for key in ("$defs", "definitions") if key in root}}


def _check_free(schema: Any, depth: int = 0) -> None:
    """Any text is fit for it, whichever type it is read as."""
    check_keywords(schema, ("type", "anyOf", "nullable"))
    if depth > 20 or {"object", "array"} & set(types_of({"type": schema.get("type")})):
        raise CannotWrite("a string that may be an object or a list cannot be honoured between tags")
    for option in schema.get("anyOf", ()):
        if not isinstance(option, Mapping):
            raise CannotWrite("anyOf cannot be read")
        _check_free(option, depth + 1)
