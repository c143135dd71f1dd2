"""What crosses between a replica and a handle: JSON in bytes, so that old and new replicas understand each other.

Ray would pickle whatever it is given; of ours it carries bytes only. The types are read from the annotations of the
contract's own dataclasses and named tuples, and a field that the other side does not know is left out.
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

from drivetrain.core.errors import DrivetrainError, EngineFailed
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """Where a caller listens for the events of a request; see `event_link`."""

    host: str
    port: int
    key: str
    number: int


_EVENTS: dict[str, type] = {cls.__name__: cls for cls in (Started, Delta, ChoiceFinished, Finished)}
_ERROR = "error"
_REPLY = "reply"
_SIMPLE = frozenset({int, str, float, bool})
"""What is the same in JSON; long lists of these are not looked at one by one."""


def dumps(value: Any) -> bytes:
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def loads(hint: type[T], data: bytes) -> T:
    made: T = _shaped(hint, json.loads(data))
    return made


def dump_call(request: GenerateRequest, reply: Reply | None) -> bytes:
    return json.dumps({**_plain(request), _REPLY: _plain(reply)}, separators=(",", ":")).encode()


def load_call(data: bytes) -> tuple[GenerateRequest, Reply | None]:
    told = json.loads(data)
    reply = told.pop(_REPLY, None)
    return _shaped(GenerateRequest, told), _shaped(Reply, reply)


def dump_answer(value: Any) -> bytes:
    """What a call gave, or the error that it ended in; see `load_answer`."""
    if isinstance(value, DrivetrainError):
        return json.dumps({_ERROR: _plain_error(value)}).encode()
    return json.dumps({"value": _plain(value)}, separators=(",", ":")).encode()


def load_answer(hint: type[T], data: bytes) -> T:
    answer = json.loads(data)
    if _ERROR in answer:
        raise _error(answer[_ERROR])
    made: T = _shaped(hint, answer["value"])
    return made


def dump_events(events: Sequence[Event]) -> bytes:
    return json.dumps([_plain_event(event) for event in events], separators=(",", ":")).encode()


def dump_ending(error: DrivetrainError) -> bytes:
    """The last item of a request that failed. Of the partial only the usage goes: its text went before."""
    usage = error.partial.usage if error.partial is not None else Usage()
    return json.dumps([[_ERROR, _plain_error(error), _plain(usage)]]).encode()


def load_events(data: bytes) -> tuple[list[Event], tuple[DrivetrainError, Usage] | None]:
    """The events, and the ending with an error if that is what came."""
    events: list[Event] = []
    for item in json.loads(data):
        if type(item[0]) is int:
            events.append(Delta(item[0], item[1], tuple(item[2])))
        elif item[0] == _ERROR:
            return events, (_error(item[1]), _shaped(Usage, item[2]))
        else:
            events.append(_shaped(_EVENTS[item[0]], item[1]))
    return events, None


def _plain_event(event: Event) -> list[Any]:
    if type(event) is Delta and event.logprobs is None:
        return [event.index, event.text, event.token_ids]
    return [type(event).__name__, _plain(event)]


def _plain_error(error: DrivetrainError) -> dict[str, Any]:
    return {"code": error.code, **{name: value for name, value in vars(error).items() if name != "partial"}}


def _error(told: dict[str, Any]) -> DrivetrainError:
    """One that this side does not know is a fault of the engine as far as anybody can tell here."""
    values = dict(told)
    cls = _errors().get(values.pop("code"), EngineFailed)
    error = cls.__new__(cls, values["message"])
    error.__dict__.update(values, partial=None)
    return error


@functools.cache
def _errors() -> dict[str, type[DrivetrainError]]:
    """By code; of classes that share one, the one nearest to the root."""
    found: dict[str, type[DrivetrainError]] = {}
    todo = deque([DrivetrainError])
    while todo:
        cls = todo.popleft()
        found.setdefault(cls.code, cls)
        todo += cls.__subclasses__()
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _plain(item) for field, item in named if item is not None or field.default is not None}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):  # a named one
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        if set(map(type, value)) <= _SIMPLE:
            return list(value)
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns={})  # a field may have the name of a type


def _shaped(hint: Any, value: Any) -> Any:
    """The value as the annotation says."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None or hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _shaped(_member(arguments, value), value)
    if origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        if repeated and arguments[0] in _SIMPLE:
            return tuple(value)
        kinds = [arguments[0]] * len(value) if repeated else arguments
        return tuple(_shaped(kind, item) for kind, item in zip(kinds, value, strict=True))
    if origin is frozenset:
        return frozenset(_shaped(arguments[0], item) for item in value)
    if origin is list:
        return [_shaped(arguments[0], item) for item in value]
    if origin is not None and issubclass(origin, Mapping):
        key, item_hint = arguments
        return {int(k) if key is int else k: _shaped(item_hint, item) for k, item in value.items()}
    if hint is bytes:
        return base64.b64decode(value)
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        hints = _hints(hint)
        return hint(**{name: _shaped(hints[name], item) for name, item in value.items() if name in hints})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value


def _member(members: Sequence[Any], value: Any) -> Any:
    """Which one of a union a value is: of objects by the names of their fields, else by the JSON type."""
    return next((member for member in members if _may_be(member, value)), Any)


def _may_be(member: Any, value: Any) -> bool:
    kind = typing.get_origin(member) or member
    if isinstance(value, dict):
        return (
            set(value) <= set(_hints(kind))
            if isinstance(kind, type) and is_dataclass(kind)
            else issubclass(kind, Mapping)
        )
    if isinstance(value, list):
        return issubclass(kind, (tuple, list, frozenset))
    return isinstance(value, kind) or (issubclass(kind, (Enum, bytes)) and isinstance(value, str)) or kind is float
