"""What crosses between a replica and a handle: JSON in bytes, so that old and new replicas understand each other.

Ray pickles whatever it is given, so it is only given bytes. `core/json_values.py` writes and reads the contract's own
dataclasses; named tuples and errors have forms here.
"""

from __future__ import annotations

import functools
import json
import typing
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from drivetrain.core.answer import AnswerEvent
from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.json_values import encode, shaped
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Where the caller listens for the events of a request; see `event_link`."""

    host: str
    port: int
    key: str
    number: int


_EVENTS: dict[str, type] = {cls.__name__: cls for cls in (Started, Delta, ChoiceFinished, Finished)}
_PARTS: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(AnswerEvent)}
_ERROR = "error"
_REPLY = "reply"


# From values to bytes


def dumps(value: Any) -> bytes:
    return encode(value).encode()


def dump_call(request: GenerateRequest, reply_to: ReplyTo | None) -> bytes:
    return dumps({**request.given(), _REPLY: reply_to})


def dump_answer(value: Any) -> bytes:
    """What a call returned, or the error that ended it; see `load_answer`."""
    return dumps({_ERROR: _plain_error(value)} if isinstance(value, DrivetrainError) else {"value": value})


def dump_events(events: Sequence[Event]) -> bytes:
    return dumps([_plain_event(event) for event in events])


def dump_failure(error: DrivetrainError) -> bytes:
    """The last item of a request that failed. Of its partial only the usage goes: the text went before."""
    usage = error.partial.usage if error.partial is not None else Usage()
    return dumps([[_ERROR, _plain_error(error), usage]])


def _plain_event(event: Event) -> list[Any]:
    if isinstance(event, Delta):  # JSON would have a list of any named tuple, with no names that another version knows
        if event.logprobs is None and event.parts is None:
            return [event.index, event.text, event.token_ids]
        plain = event._asdict()
        if (parts := plain.pop("parts")) is not None:
            plain["parts"] = [[type(part).__name__, part] for part in parts]
        return [Delta.__name__, plain]
    return [type(event).__name__, event]


def _plain_error(error: DrivetrainError) -> dict[str, Any]:
    return {"code": error.code, **{name: value for name, value in vars(error).items() if name != "partial"}}


# From bytes to values


def loads(hint: type[T], data: bytes) -> T:
    made: T = shaped(hint, json.loads(data))
    return made


def load_call(data: bytes) -> tuple[GenerateRequest, ReplyTo | None]:
    call = json.loads(data)
    reply_to = call.pop(_REPLY, None)
    return shaped(GenerateRequest, call), shaped(ReplyTo, reply_to)


def load_answer(hint: type[T], data: bytes) -> T:
    answer = json.loads(data)
    if _ERROR in answer:
        raise _error(answer[_ERROR])
    made: T = shaped(hint, answer["value"])
    return made


def load_events(data: bytes) -> tuple[list[Event], tuple[DrivetrainError, Usage] | None]:
    """The events, and the failure with the usage up to it, if that is what came."""
    events: list[Event] = []
    for item in json.loads(data):
        if type(item[0]) is int:
            events.append(Delta(item[0], item[1], tuple(item[2])))
        elif item[0] == _ERROR:
            return events, (_error(item[1]), shaped(Usage, item[2]))
        else:
            events.append(_event(item[0], item[1]))
    return events, None


def _event(name: str, plain: dict[str, Any]) -> Event:
    parts = plain.pop("parts", None)
    event: Event = shaped(_EVENTS[name], plain)
    if parts is None or not isinstance(event, Delta):
        return event
    return event._replace(parts=tuple(shaped(_PARTS[kind], part) for kind, part in parts if kind in _PARTS))


def _error(plain: dict[str, Any]) -> DrivetrainError:
    """To this side, an error of a class that it does not know is a failed engine."""
    values = dict(plain)
    cls = _error_classes().get(values.pop("code"), EngineFailed)
    error = cls.__new__(cls, values["message"])
    error.__dict__.update(values, partial=None)
    return error


@functools.cache
def _error_classes() -> dict[str, type[DrivetrainError]]:
    """By code; of classes that share one, the one nearest to the root."""
    found: dict[str, type[DrivetrainError]] = {}
    queue = deque([DrivetrainError])
    while queue:
        cls = queue.popleft()
        found.setdefault(cls.code, cls)
        queue += cls.__subclasses__()
    return found
