"""Reads the calls inside a region, as `forms.py` lists the ways to write them. Arguments are given out as they come."""

from __future__ import annotations

import json
import re

from drivetrain.core.answer import Flaw
from drivetrain.text.answers.source import Reading, Source
from drivetrain.text.answers.strings import is_utf8
from drivetrain.text.answers.values import JSON, PYTHON, Dialect, ValueScanner
from drivetrain.text.answers.writers import CallWriter

_NAME = re.compile("[^\\s()\\[\\]{}<>,=\"'\ud800-\udfff]+")
_KEYS = ('"name"', '"arguments"', '"parameters"', '"id"', '"type"')


class CallReader:
    """Each reading returns what is wrong with the last call, or None. A call that is not `end`ed is left open."""

    def __init__(self, source: Source, calls: CallWriter) -> None:
        self._source = source
        self._calls = calls

    def arguments(self, name: str, dialect: Dialect) -> Reading[Flaw | None]:
        self._calls.begin(name)
        char = yield from self._source.skip()
        if char and char != "{":
            return Flaw.MALFORMED
        if (flaw := (yield from self._value(dialect))) is None:
            self._end()
        return flaw

    def json_calls(self, *, closes: bool) -> Reading[Flaw | None]:
        """If something `closes` the region, several objects may stand before that, without a list around them."""
        char = yield from self._source.skip()
        if char != "[":
            flaw = yield from self._json_call(char)
            while closes and flaw is None and (yield from self._is_before_call()):
                flaw = yield from self._json_call((yield from self._source.skip()))
            return flaw
        self._step()
        char = yield from self._source.skip()
        first = True
        while char != "]":
            if not char and not first:
                return None
            if flaw := (yield from self._json_call(char)):
                return flaw
            first = False
            char = yield from self._source.skip()
            if char == ",":
                self._step()
                char = yield from self._source.skip()
        self._step()
        return None

    def _is_before_call(self) -> Reading[bool]:
        """Whether an object comes next that begins with a key of a call, as far as the answer goes. Nothing is read."""
        mark = self._source.mark()
        is_call = False
        if (yield from self._source.accept("{", after_spaces=True)):
            key = yield from self._source.accept(_KEYS, after_spaces=True)
            is_call = key is not None or not (yield from self._source.skip())
        self._source.go_back(mark)
        return is_call

    def _json_call(self, char: str) -> Reading[Flaw | None]:
        if char != "{":
            return Flaw.MALFORMED if char else Flaw.CUT_OFF
        self._step()
        call = _JsonCall(self._calls)
        char = yield from self._source.skip()
        while char != "}":
            if flaw := (yield from self._member(call)):
                return flaw
            char = yield from self._source.skip()
            if char == ",":
                self._step()
                char = yield from self._source.skip()
                if char == "}":
                    return Flaw.MALFORMED
            elif char != "}":
                return Flaw.MALFORMED if char else Flaw.CUT_OFF
        self._step()
        if not call.finish():
            return Flaw.MALFORMED
        self._end()
        return None

    def _member(self, call: _JsonCall) -> Reading[Flaw | None]:
        """A key and its value."""
        key = yield from self._string()
        if isinstance(key, Flaw):
            return key
        if (flaw := (yield from self._expect(":"))) is not None:
            return flaw
        char = yield from self._source.skip()
        if key == "name":
            name = yield from self._string()
            return name if isinstance(name, Flaw) else call.name(name)
        if key not in ("arguments", "parameters"):
            call.has_others = call.has_others or key not in ("id", "type")
            return (yield from self._scan(ValueScanner(), []))
        if call.has_arguments:
            return Flaw.MALFORMED
        if char == '"':
            text = yield from self._string()
            return text if isinstance(text, Flaw) else call.text_arguments(text)
        if char and char != "{":
            return Flaw.MALFORMED
        call.has_arguments = True
        scanner = ValueScanner()
        yield from self._source.scan(scanner, call.arguments)
        return _flaw(scanner)

    def python_calls(self) -> Reading[Flaw | None]:
        """Behind the opening bracket."""
        char = yield from self._source.skip()
        while True:
            name = yield from self._word()
            if flaw := (yield from self._expect("(")):
                return flaw
            if not name:
                return Flaw.MALFORMED
            self._calls.begin(name)
            if flaw := (yield from self._keywords()):
                return flaw
            self._end()
            char = yield from self._source.skip()
            if char == ",":
                self._step()
                char = yield from self._source.skip()
            elif char and char != "]":
                return Flaw.MALFORMED
            if not char:
                return None
            if char == "]":
                self._step()
                return None

    def _keywords(self) -> Reading[Flaw | None]:
        """Behind the opening parenthesis, up to the closing one."""
        self._calls.arguments("{")
        char = yield from self._source.skip()
        first = True
        while char != ")":
            key = yield from self._word()
            if flaw := (yield from self._expect("=")):
                return flaw
            if not key:
                return Flaw.MALFORMED
            self._calls.arguments(f"{'' if first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._source.skip()
            if flaw := (yield from self._value(PYTHON)):
                return flaw
            first = False
            char = yield from self._source.skip()
            if char == ",":
                self._step()
                char = yield from self._source.skip()
            elif char != ")":
                return Flaw.MALFORMED if char else Flaw.CUT_OFF
        self._step()
        self._calls.arguments("}")
        return None

    def _end(self) -> None:
        """The next call's text begins here."""
        self._calls.end()
        self._source.record()

    def _step(self) -> None:
        self._source.advance(self._source.at + 1)

    def _expect(self, char: str) -> Reading[Flaw | None]:
        found = yield from self._source.skip()
        if found != char:
            return Flaw.MALFORMED if found else Flaw.CUT_OFF
        self._step()
        return None

    def _word(self) -> Reading[str]:
        parts: list[str] = []
        while (yield from self._source.peek()) and (found := _NAME.match(self._source.text, self._source.at)):
            parts.append(self._source.advance(found.end()))
        return "".join(parts)

    def _value(self, dialect: Dialect) -> Reading[Flaw | None]:
        scanner = ValueScanner(dialect)
        yield from self._source.scan(scanner, self._calls.arguments)
        return _flaw(scanner)

    def _scan(self, scanner: ValueScanner, out: list[str]) -> Reading[Flaw | None]:
        yield from self._source.scan(scanner, out.append)
        return _flaw(scanner)

    def _string(self) -> Reading[str | Flaw]:
        char = yield from self._source.peek()
        if char != '"':
            return Flaw.MALFORMED if char else Flaw.CUT_OFF
        out: list[str] = []
        flaw = yield from self._scan(ValueScanner(JSON), out)
        return str(json.loads("".join(out))) if flaw is None else flaw


def _flaw(scanner: ValueScanner) -> Flaw | None:
    if scanner.whole:
        return None
    return Flaw.MALFORMED if scanner.wrong else Flaw.CUT_OFF


class _JsonCall:
    """Name and arguments, in whichever order they come: arguments wait for the name."""

    def __init__(self, calls: CallWriter) -> None:
        self._calls = calls
        self._held: list[str] = []
        self.has_arguments = False
        self.has_others = False

    def name(self, name: str) -> Flaw | None:
        if self._calls.open or not name.strip() or not is_utf8(name):
            return Flaw.MALFORMED
        self._calls.begin(name)
        self._calls.arguments("".join(self._held))
        return None

    def arguments(self, text: str) -> None:
        if self._calls.open:
            self._calls.arguments(text)
        else:
            self._held.append(text)

    def text_arguments(self, text: str) -> Flaw | None:
        """Some models write the object as a string."""
        self.has_arguments = True
        text = text.strip()
        scanner = ValueScanner()
        if not text.startswith("{") or scanner.feed(text, 0) != len(text) or not scanner.whole:
            return Flaw.MALFORMED
        self.arguments(text)
        return None

    def finish(self) -> bool:
        """Whether the object is a call. It may leave out its arguments, but not write them under another key."""
        if not self.has_arguments and self.has_others:
            return False
        if not self.has_arguments:
            self.arguments("{}")
        return self._calls.open
