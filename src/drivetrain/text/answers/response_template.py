"""Makes a form of a `response_template`, as models of transformers ship it in `tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.text.answers.contents import PARSERS, PLACEHOLDER, Options, find_all, parse, transformed
from drivetrain.text.answers.forms import Form, Part, Region
from drivetrain.text.answers.patterns import Pattern, compiled

_PARTS = {
    "content": Part.CONTENT,
    "thinking": Part.REASONING,
    "reasoning": Part.REASONING,
    "reasoning_content": Part.REASONING,
    "tool_calls": Part.CALLS,
}
_TOP_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional",
    "transform", "transform_each",
}  # fmt: skip
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class TemplateField:
    """How a field's text becomes its value."""

    content: str
    options: Options
    transform: Any
    transform_each: bool

    def read(self, body: str, groups: dict[str, str]) -> Any:
        value = parse(self.content, body, self.options)
        if self.transform is None:
            return value
        if not self.transform_each:
            return transformed(self.transform, {**groups, "content": value})
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ValueError("the field is not a list of objects")
        return [transformed(self.transform, {**groups, **item}) for item in value]

    def spellings(self) -> Iterable[str]:
        return (text.replace("\\", "") for text in _strings(self.options))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


class ResponseTemplate:
    """A template that was checked. It raises `InvalidRequest` for one that cannot be used."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        _check(isinstance(template, Mapping), "a response_template must be an object")
        _check(template.get("version", 1) == 1, f"the version {template.get('version')!r} is not known")
        _check(not set(template) - _TOP_KEYS, f"unknown keys: {sorted(map(str, set(template) - _TOP_KEYS))}")
        fields = template.get("fields")
        _check(isinstance(fields, Mapping) and bool(fields), "fields must be an object that is not empty")
        assert isinstance(fields, Mapping)
        regions = [_region(str(name), field) for name, field in sorted(fields.items())]
        outside = [region for region in regions if not region.opens and not region.open_pattern]
        _check(len(outside) <= 1, "only one field may have no opening")
        self._anchors, self._anchor_pattern = _marker("the template", template, "start_anchor")
        _check(bool(self._anchors or self._anchor_pattern), "start_anchor is missing")
        self.form = Form(
            name="response_template",
            models="the one that ships it",
            summary="as the template says",
            regions=tuple(region for region in regions if region not in outside),
            silent=outside[0].closes if outside else (),
            silent_pattern=outside[0].close_pattern if outside else "",
            outside=outside[0] if outside else Region(Part.NOTHING),
            line_starts=False,
            keeps_halves=True,
        )

    def begun(self, prompt: str) -> str:
        """What a prompt has already written of the answer: what follows the last start anchor."""
        if self._anchor_pattern is None:
            ends = [at + len(anchor) for anchor in self._anchors if (at := prompt.rfind(anchor)) >= 0]
            return prompt[max(ends, default=0) :]
        matches = find_all(self._anchor_pattern, prompt)
        return prompt[matches[-1].end :] if matches else prompt


def _check(holds: bool, why: str) -> None:
    if not holds:
        raise InvalidRequest(f"the response_template cannot be used: {why}", param="form")


def _region(name: str, field: Any) -> Region:
    where = f"fields.{name}"
    _check(isinstance(field, Mapping), f"{where} must be an object")
    unknown = sorted(map(str, set(field) - _FIELD_KEYS))
    _check(not unknown, f"{where} has unknown keys: {unknown}")
    opens, open_pattern = _marker(where, field, "open")
    closes, close_pattern = _marker(where, field, "close")
    join, repeats = field.get("join"), bool(field.get("repeats", False))
    _check(join is None or (isinstance(join, str) and repeats), f"{where}.join must be a string, and needs repeats")
    content, options = _content(where, field.get("content", "text"), field.get("content_args", {}))
    transform = field.get("transform")
    _check_transform(where, transform)
    _check(
        transform is not None or not any(p.names for p in (open_pattern, close_pattern) if p is not None),
        f"{where} names groups but has no transform",
    )
    part = _PARTS.get(name, Part.EXTRA)
    streams = content == "text" and transform is None and part in (Part.CONTENT, Part.REASONING)
    return Region(
        part,
        opens=opens,
        open_pattern=open_pattern.source if open_pattern else "",
        closes=closes,
        close_pattern=close_pattern.source if close_pattern else "",
        field=None if streams else TemplateField(content, options, transform, bool(field.get("transform_each"))),
        name=name,
        strips=bool(options.get("strip", True)),
        join="" if repeats and streams and join is None else join,
        repeats=repeats,
    )


def _marker(where: str, field: Mapping[str, Any], key: str) -> tuple[tuple[str, ...], Pattern | None]:
    literals, pattern = field.get(key), field.get(f"{key}_pattern")
    _check(literals is None or pattern is None, f"{where} has both {key} and {key}_pattern")
    if pattern is not None:
        _check(isinstance(pattern, str), f"{where}.{key}_pattern must be a string")
        return (), compiled(pattern)
    listed = [literals] if isinstance(literals, str) else [] if literals is None else literals
    good = isinstance(listed, list) and all(isinstance(literal, str) and literal for literal in listed)
    _check(good and (literals is None or bool(listed)), f"{where}.{key} must be a string, or a list of strings")
    return tuple(dict.fromkeys(listed)), None


def _content(where: str, content: Any, options: Any, depth: int = 0) -> tuple[str, Options]:
    known = ", ".join(PARSERS)
    _check(isinstance(content, str) and content in PARSERS, f"{where}.content is {content!r}, not one of {known}")
    _check(isinstance(options, Mapping) and depth < MAX_DEPTH, f"{where}.content_args must be an object")
    if content == "xml-inline":
        pattern = options.get("tag_pattern")
        _check(isinstance(pattern, str), f"{where}.content_args.tag_pattern is missing")
        _check("key" in compiled(pattern).names, f"{where}.content_args.tag_pattern has no group key")
    delimiters = options.get("string_delims", [])
    pairs = isinstance(delimiters, list) and all(_is_pair(pair) for pair in delimiters)
    _check(pairs, f"{where}.content_args.string_delims must be a list of pairs")
    separators = (options.get("line_sep", "\n"), options.get("kv_sep", ":"))
    _check(all(isinstance(s, str) and s for s in separators), f"{where}: line_sep and kv_sep must be strings")
    if (parser := options.get("value_parser")) is not None:
        _check(isinstance(parser, Mapping), f"{where}.content_args.value_parser must be an object")
        _content(where, parser.get("name", "text"), parser.get("args", {}), depth + 1)
    return content, options


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(s, str) and s for s in pair)


def _check_transform(where: str, transform: Any, depth: int = 0) -> None:
    _check(depth < MAX_DEPTH, f"{where}.transform is nested too deeply")
    if isinstance(transform, Mapping):
        transform = list(transform.values())
    if isinstance(transform, list):
        for value in transform:
            _check_transform(where, value, depth + 1)
    if isinstance(transform, str):
        mixed = PLACEHOLDER.search(transform) and not PLACEHOLDER.fullmatch(transform)
        _check(not mixed, f"{where}.transform mixes a placeholder with text: {transform!r}")
