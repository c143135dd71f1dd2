"""What the streams of the OpenAI API have in common: chunks of one answer, and their end."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Event
from drivetrain.core.results import Usage
from drivetrain.server.errors import body_of
from drivetrain.server.spelling import UsageSoFar, compact, usage_json
from drivetrain.server.translate import Asked

DONE = b"data: [DONE]\n\n"


class ChunkFormatter:
    """One id, one time and one model in all that is said about one request. `kind` is the `object` of a chunk."""

    content_type = "text/event-stream; charset=utf-8"
    head_first = False

    def __init__(self, model: str, asked: Asked, *, created: int, kind: str) -> None:
        self._asked = asked
        self._id = asked.id
        self._created = created
        self._model = model
        head = {"id": self._id, "object": kind, "created": self._created, "model": model}
        self._head = f"data: {compact(head)[:-1]},"
        self._usage = UsageSoFar(wanted=asked.include_usage, continuous=asked.continuous_usage)
        self._plain = not asked.logprobs and not asked.token_ids and not asked.continuous_usage

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        if len(events) == 1:
            return self._event(prompt, events[0])
        return b"".join([self._event(prompt, event) for event in events])

    def end(self, usage: Usage) -> bytes:
        if not self._asked.include_usage:
            return DONE
        return f'{self._head}"choices":[],"usage":{compact(usage_json(usage))}}}\n\n'.encode() + DONE

    def failure(self, error: DrivetrainError) -> bytes:
        return b"data: " + body_of(error) + b"\n\n" + DONE

    def _event(self, prompt: int, event: Event) -> bytes:
        raise NotImplementedError
