"""What crosses between a replica and a handle: JSON in bytes, so that old and new replicas understand each other.

Ray pickles whatever it is given, so it is only given bytes. The types are read from the annotations of the contract's
own dataclasses and named tuples. A field that the reading side does not know is dropped.
"""

from __future__ import annotations

import base64
import functools
import json
import types
import typing
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from drivetrain.core.answer import AnswerEvent
from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
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
_SCALARS = frozenset({int, str, float, bool})
"""The same in JSON: long lists of them are not walked."""


# From values to bytes


def dumps(value: Any) -> bytes:
    return _encode(value).encode()


def dump_call(request: GenerateRequest, reply_to: ReplyTo | None) -> bytes:
    return dumps({**_plain(request), _REPLY: reply_to})


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


def _plain(value: Any) -> Any:
    """What JSON has no form for. A field that is None by default is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: item for field, item in named if item is not None or field.default is not None}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot cross between a replica and a handle")


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


# From bytes to values


def loads(hint: type[T], data: bytes) -> T:
    made: T = _shaped(hint, json.loads(data))
    return made


def load_call(data: bytes) -> tuple[GenerateRequest, ReplyTo | None]:
    call = json.loads(data)
    reply_to = call.pop(_REPLY, None)
    return _shaped(GenerateRequest, call), _shaped(ReplyTo, reply_to)


def load_answer(hint: type[T], data: bytes) -> T:
    answer = json.loads(data)
    if _ERROR in answer:
        raise _error(answer[_ERROR])
    made: T = _shaped(hint, answer["value"])
    return made


def load_events(data: bytes) -> tuple[list[Event], tuple[DrivetrainError, Usage] | None]:
    """The events, and the failure with the usage up to it, if that is what came."""
    events: list[Event] = []
    for item in json.loads(data):
        if type(item[0]) is int:
            events.append(Delta(item[0], item[1], tuple(item[2])))
        elif item[0] == _ERROR:
            return events, (_error(item[1]), _shaped(Usage, item[2]))
        else:
            events.append(_event(item[0], item[1]))
    return events, None


def _event(name: str, plain: dict[str, Any]) -> Event:
    parts = plain.pop("parts", None)
    event: Event = _shaped(_EVENTS[name], plain)
    if parts is None or not isinstance(event, Delta):
        return event
    return event._replace(parts=tuple(_shaped(_PARTS[kind], part) for kind, part in parts if kind in _PARTS))


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


def _shaped(hint: Any, value: Any) -> Any:
    """The JSON value as the annotation says."""
    if value is None or hint is Any or hint in _SCALARS:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _shaped(_member(arguments, value), value)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(_shaped(kind, item) for kind, item in zip(arguments, value, strict=True))
    if origin in (tuple, list, frozenset):
        return origin(value if arguments[0] in _SCALARS else (_shaped(arguments[0], item) for item in value))
    if origin is not None and issubclass(origin, Mapping):
        key, item_hint = arguments
        return {int(k) if key is int else k: _shaped(item_hint, item) for k, item in value.items()}
    if hint is bytes:
        return base64.b64decode(value)
    if issubclass(hint, Enum):
        return hint(value)
    hints = _hints(hint)
    return hint(**{name: _shaped(hints[name], item) for name, item in value.items() if name in hints})


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns={})  # a field may have the name of a type


def _member(members: Sequence[Any], value: Any) -> Any:
    """Which member of a union a value is: a tuple by its brackets, of classes the one that knows most of its fields."""
    known = [member for member in members if member is not types.NoneType]
    if len(known) == 1:
        return known[0]
    if isinstance(value, list):
        return next(member for member in known if typing.get_origin(member) is tuple)
    if isinstance(value, dict):
        classes = (member for member in known if isinstance(member, type))
        return max(classes, key=lambda member: len(value.keys() & _hints(member).keys()))
    return Any
