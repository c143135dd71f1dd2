"""What a `response_template` makes of the text inside a field: the content parsers and transforms that it may name.

They see a field as a whole, once it has closed. Everything that they cannot read is a `ValueError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.text.answers.patterns import Pattern, compiled
from drivetrain.text.answers.search import Found, Marker, Search, Watch

Options = Mapping[str, Any]
Parser = Callable[[str, Options], Any]

_BARE_KEY = re.compile(r"(?<=[{,])(\w+):")
_MARK_OPEN, _MARK_CLOSE = "\x01", "\x02"


def parse(name: str, text: str, options: Options) -> Any:
    try:
        return PARSERS[name](text, options)
    except (RecursionError, OverflowError) as exc:
        raise ValueError(f"{name} cannot read this") from exc


def _text(text: str, options: Options) -> str:
    return text.strip() if options.get("strip", True) else text


def _boolean(text: str, options: Options) -> bool:
    return _text(text, options).lower() in ("true", "1")


def _json(text: str, options: Options) -> Any:
    delimiters = options.get("string_delims", [])
    if delimiters and (_MARK_OPEN in text or _MARK_CLOSE in text):
        raise ValueError("the text contains control characters that stand for strings")
    strings: list[str] = []
    working = text
    for open_, close in delimiters:
        working = _take_strings(working, open_, close, strings)
    if options.get("unquoted_keys", False):
        working = _BARE_KEY.sub(r'"\1":', working)
    if strings:
        working = re.sub(f"{_MARK_OPEN}([0-9]+){_MARK_CLOSE}", lambda mark: json.dumps(strings[int(mark[1])]), working)
    try:
        return json.loads(working)
    except json.JSONDecodeError:
        if options.get("allow_non_json"):
            return _text(text, options)
        raise


def _take_strings(text: str, open_: str, close: str, strings: list[str]) -> str:
    """Put a number in the place of each delimited string."""
    parts: list[str] = []
    at = 0
    while (start := text.find(open_, at)) >= 0 and (end := text.find(close, start + len(open_))) >= 0:
        parts += (text[at:start], f"{_MARK_OPEN}{len(strings)}{_MARK_CLOSE}")
        strings.append(text[start + len(open_) : end])
        at = end + len(close)
    return "".join((*parts, text[at:]))


def _tags(text: str, options: Options) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for match in find_all(compiled(options["tag_pattern"]), text):
        groups = {name: text[start:end] for name, (start, end) in match.groups.items()}
        if "key" not in groups:
            raise ValueError("a tag has no key")
        key, value = groups["key"], _sub_value(groups.get("value", ""), options)
        if key in values and options.get("merge_duplicates", False):
            if not isinstance(values[key], list):
                values[key] = [values[key]]
            values[key].append(value)
        else:
            values[key] = value
    return values


def find_all(pattern: Pattern, text: str) -> list[Found]:
    """All matches, each from the end of the one before."""
    watch = Watch([Marker(None, pattern=pattern)])
    matches: list[Found] = []
    at, empty = 0, False
    while True:
        search = Search(watch, at, at_start=at == 0, no_empty=empty)
        found = search.feed(text, 0) or search.finish()
        if found is None:
            return matches
        matches.append(found)
        at, empty = found.end, found.start == found.end


def _lines(text: str, options: Options) -> dict[str, Any]:
    separator = options.get("kv_sep", ":")
    values: dict[str, Any] = {}
    for line in text.split(options.get("line_sep", "\n")):
        key, found, value = _text(line, options).partition(separator)
        if found:
            values[_text(key, options)] = _sub_value(_text(value, options), options)
    return values


def _sub_value(text: str, options: Options) -> Any:
    parser = options.get("value_parser")
    return text if parser is None else parse(parser.get("name", "text"), text, parser.get("args", {}))


PARSERS: dict[str, Parser] = {
    "text": _text,
    "int": lambda text, options: int(_text(text, options)),
    "float": lambda text, options: float(_text(text, options)),
    "bool": _boolean,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}

PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def transformed(transform: Any, scope: Mapping[str, Any]) -> Any:
    """The transform with each placeholder, such as `{content.args}`, replaced by what it names."""
    if isinstance(transform, Mapping):
        return {key: transformed(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [transformed(value, scope) for value in transform]
    place = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if place is None:
        return transform
    value: Any = scope
    for key in place[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"there is no {place[1]}")
        value = value[key]
    return value
