"""Values of the contract as JSON, and back by the annotations of their types.

A field that the reading side does not know is dropped, so that old and new versions understand each other.
"""

from __future__ import annotations

import base64
import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

_SCALARS = frozenset({int, str, float, bool})
"""The same in JSON: long lists of them are not walked."""


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
    raise TypeError(f"{type(value).__name__} has no form in JSON")


encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def plain(value: Any) -> Any:
    """As the objects, lists and scalars of JSON."""
    return json.loads(encode(value))


def shaped(hint: Any, value: Any) -> Any:
    """The JSON value as the annotation says."""
    if value is None or hint is Any or hint in _SCALARS:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return shaped(_member(arguments, value), value)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(shaped(kind, item) for kind, item in zip(arguments, value, strict=True))
    if origin in (tuple, list, frozenset):
        return origin(value if arguments[0] in _SCALARS else (shaped(arguments[0], item) for item in value))
    if origin is not None and issubclass(origin, Mapping):
        key, item_hint = arguments
        return {int(k) if key is int else k: shaped(item_hint, item) for k, item in value.items()}
    if hint is bytes:
        return base64.b64decode(value)
    if issubclass(hint, Enum):
        return hint(value)
    hints = _hints(hint)
    return hint(**{name: shaped(hints[name], item) for name, item in value.items() if name in hints})


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
