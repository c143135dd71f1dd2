"""Reads arguments that stand between tags, each a JSON value or plain text, and gives out one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.answer import Flaw
from drivetrain.text.answers.forms import TaggedArguments
from drivetrain.text.answers.patterns import Pattern
from drivetrain.text.answers.schemas import ToolSchemas, as_json, is_json, types_of
from drivetrain.text.answers.search import Marker, Watch
from drivetrain.text.answers.source import Reading, Source
from drivetrain.text.answers.strings import quoted
from drivetrain.text.answers.symbols import Symbols
from drivetrain.text.answers.values import ValueScanner
from drivetrain.text.answers.writers import CallWriter


class TaggedReader:
    """For one way of writing tags. It never changes."""

    def __init__(self, tags: TaggedArguments, symbols: Symbols) -> None:
        self._symbols = symbols
        self._trims_line = tags.trims_line
        self._key, self._value = symbols.encode(tags.key), symbols.encode(tags.value)
        self._text_mark = symbols.encode(tags.text_mark)
        self._marks = tuple(map(symbols.encode, tags.marks))
        self._ends = tuple(map(symbols.encode, tags.ends))
        self._key_end = Watch([Marker(None, (symbols.encode(tags.key_end),))])
        self._close = (symbols.encode(tags.value_end),)
        loose = ((_LOOSE_KEY, tags.loose_key), (_LOOSE_END, tags.loose_end))
        patterns = [Marker(what, pattern=Pattern(text, symbols.by_spelling)) for what, text in loose if text]
        self._value_end = Watch([Marker(None, self._close), *patterns])

    def read(self, source: Source, calls: CallWriter, name: str, tools: ToolSchemas) -> Reading[Flaw | None]:
        """What is wrong with the call, or None; then its arguments are whole."""
        calls.begin(name)
        calls.arguments("{")
        first = True
        while True:
            yield from source.skip()
            tag = yield from source.accept((self._key, *self._ends))
            if tag is None:
                return self._flaw(source, self._key, *self._ends)
            if tag != self._key:
                calls.arguments("}")
                return None
            key: list[str] = []
            if (flaw := (yield from self._until(source, self._key_end, key.append))) is not None:
                return flaw
            mark = yield from source.accept(self._marks)
            if self._marks and mark is None:
                return self._flaw(source, *self._marks)
            if self._value and (yield from source.accept((self._value,), after_spaces=True)) is None:
                return self._flaw(source, self._value)
            argument = self._symbols.drop("".join(key)).strip()
            calls.arguments(f"{'' if first else ', '}{quoted(argument)}: ")
            first = False
            value = _Value(tools, name, tools.schema(name, argument), mark)
            if (flaw := (yield from self._read_value(source, calls, value))) is not None:
                return flaw

    def _read_value(self, source: Source, calls: CallWriter, value: _Value) -> Reading[Flaw | None]:
        """By its mark, or else by its schema. What should be JSON and is not is read as text."""
        types = types_of(value.schema)
        if value.mark == self._text_mark if value.mark else types == ("string",):
            return (yield from self._text(source, calls, value))
        schema = value.schema if value.mark is None else None  # what is marked as JSON stands as it is
        if (value.mark or is_json(schema)) and (found := (yield from self._json(source, schema))) is not None:
            calls.arguments(found)
            return None
        parts: list[str] = []
        flaw = yield from self._until_end(source, parts.append, value)
        if flaw is None:
            text = self._symbols.drop("".join(parts))
            calls.arguments(as_json(text.removeprefix("\n").removesuffix("\n") if self._trims_line else text, types))
        return flaw

    def _text(self, source: Source, calls: CallWriter, value: _Value) -> Reading[Flaw | None]:
        """Given out as it comes."""
        text = _Trimmed(lambda piece: calls.arguments(quoted(piece)[1:-1]), trims_line=self._trims_line)
        calls.arguments('"')
        flaw = yield from self._until_end(source, lambda piece: text.write(self._symbols.drop(piece)), value)
        if flaw is None:
            calls.arguments('"')
        return flaw

    def _json(self, source: Source, schema: Any) -> Reading[str | None]:
        """A value in which strings may spell the tag behind it. If there is none, nothing is read."""
        mark = source.mark()
        yield from source.skip()
        scanner, parts = ValueScanner(), list[str]()
        yield from source.scan(scanner, parts.append)
        if scanner.whole and (yield from source.accept(self._close, after_spaces=True)):
            declared = schema.get("type") if isinstance(schema, Mapping) else None
            return as_json("".join(parts), types_of({"type": declared}))  # those of a union may not be all
        source.go_back(mark)
        return None

    def _until_end(self, source: Source, write: Callable[[str], None], value: _Value) -> Reading[Flaw | None]:
        """Past the tag behind the value, or up to what comes next if that is missing."""
        while (found := (yield from source.find(self._value_end, write, keeps=lambda half: False))) is not None:
            if found.what is _LOOSE_END:
                return None
            if found.what is _LOOSE_KEY and value.may_be_followed_by(source.slice(*found.groups["key"])):
                return None
            passed = source.enter(found)
            if found.what is None:
                return None
            write(passed)
        return Flaw.CUT_OFF

    def _until(self, source: Source, watch: Watch, write: Callable[[str], None]) -> Reading[Flaw | None]:
        found = yield from source.find(watch, write)
        if found is None:
            return Flaw.CUT_OFF
        source.enter(found)
        return None

    def _flaw(self, source: Source, *expected: str) -> Flaw:
        """What comes next is not what was expected, or too little of it came."""
        rest = source.text[source.at :].lstrip()
        cut_off = source.ended and any(literal.startswith(rest) for literal in expected)
        return Flaw.CUT_OFF if cut_off else Flaw.MALFORMED


_LOOSE_KEY, _LOOSE_END = object(), object()


@dataclass(frozen=True, slots=True)
class _Value:
    """What is known of one before it is read. `mark` is what the model says of it."""

    tools: ToolSchemas
    tool: str
    schema: Any
    mark: str | None

    def may_be_followed_by(self, argument: str) -> bool:
        return self.tools.may_have(self.tool, argument)


class _Trimmed:
    """Passes text on without one line break at its start and one at its end."""

    def __init__(self, write: Callable[[str], None], *, trims_line: bool) -> None:
        self._write = write
        self._trims_line = trims_line
        self._begun = False
        self._held = ""

    def write(self, text: str) -> None:
        if not self._trims_line:
            self._write(text)
            return
        if not text:
            return
        if not self._begun:
            self._begun = True
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        self._write(text.removesuffix("\n"))
