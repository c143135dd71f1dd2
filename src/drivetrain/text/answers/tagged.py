"""Reads arguments that stand between tags, each a JSON value or plain text, and gives out one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.core.answer import Flaw
from drivetrain.text.answers.forms import TaggedArguments
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
        self._ends = tuple(map(symbols.encode, tags.ends))
        self._key_end = Watch([Marker(None, (symbols.encode(tags.key_end),))])
        self._close = (symbols.encode(tags.value_end),)
        self._value_end = Watch([Marker(None, self._close)])

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
            if self._value and (yield from source.accept((self._value,), after_spaces=True)) is None:
                return self._flaw(source, self._value)
            argument = self._symbols.drop("".join(key)).strip()
            calls.arguments(f"{'' if first else ', '}{quoted(argument)}: ")
            first = False
            if (flaw := (yield from self._read_value(source, calls, tools.schema(name, argument)))) is not None:
                return flaw

    def _read_value(self, source: Source, calls: CallWriter, schema: Any) -> Reading[Flaw | None]:
        types = types_of(schema)
        if types == ("string",):
            return (yield from self._text(source, calls))
        if is_json(schema) and (value := (yield from self._json(source, schema))) is not None:
            calls.arguments(value)
            return None
        parts: list[str] = []
        flaw = yield from self._until(source, self._value_end, parts.append)
        if flaw is None:
            text = self._symbols.drop("".join(parts))
            calls.arguments(as_json(text.removeprefix("\n").removesuffix("\n") if self._trims_line else text, types))
        return flaw

    def _text(self, source: Source, calls: CallWriter) -> Reading[Flaw | None]:
        """Given out as it comes."""
        text = _Trimmed(lambda piece: calls.arguments(quoted(piece)[1:-1]), trims_line=self._trims_line)
        calls.arguments('"')
        flaw = yield from self._until(source, self._value_end, lambda piece: text.write(self._symbols.drop(piece)))
        if flaw is None:
            calls.arguments('"')
        return flaw

    def _json(self, source: Source, schema: Mapping[str, Any]) -> Reading[str | None]:
        """A value in which strings may spell the tag behind it. If there is none, nothing is read."""
        mark = source.mark()
        yield from source.skip()
        scanner, parts = ValueScanner(), list[str]()
        yield from source.scan(scanner, parts.append)
        if scanner.whole and (yield from source.accept(self._close, after_spaces=True)):
            return as_json("".join(parts), types_of({"type": schema.get("type")}))  # those of a union may not be all
        source.go_back(mark)
        return None

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
