"""Server-sent events from the parts of a body, as servers of the OpenAI API write them: one line per event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drivetrain.http.parser import TooLong

DONE = b"[DONE]"


def is_event_stream(content_type: str) -> bool:
    """By its name alone: upper case and parameters do not matter."""
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"


class EventParser:
    """Gives the name and the data of each line that begins with `data:` or `error:`; other lines are ignored.

    `max_bytes` bounds an unfinished line.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._half = bytearray()

    def feed(self, part: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Whole events, then perhaps `TooLong`: take them all before the next call."""
        if part.startswith(b"data: {") and not self._half and part[part.find(b"\n") :] == b"\n\n":  # the usual case
            return ((b"data", part[6:-2]),)
        return self._lines(part)

    def end(self) -> Iterable[tuple[bytes, bytes]]:
        """The event whose line was ended by the end of the body."""
        event = _event(bytes(self._half))
        return () if event is None else (event,)

    def _lines(self, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        *lines, rest = part.split(b"\n")
        for line in lines:
            if self._half:
                line = bytes(self._half + line)
                self._half.clear()
            if (event := _event(line)) is not None:
                yield event
        self._half += rest
        if len(self._half) > self._max_bytes:
            raise TooLong("an event does not end")


def _event(line: bytes) -> tuple[bytes, bytes] | None:
    if not line.startswith((b"data:", b"error:")):
        return None
    name, _, data = line.partition(b":")
    data = data.strip()
    return (name, data) if data else None
