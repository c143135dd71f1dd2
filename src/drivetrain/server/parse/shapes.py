"""Objects inside a body that are told apart by one field, mostly `type`: items, parts of a message, blocks.

Each type has a `Body` of its own, so that an unknown field is refused by its place, as at the top of a body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, LeaveOut, Schema, String, shown
from drivetrain.server.parse.body import Body


@dataclass(frozen=True, slots=True)
class Tagged(Kind):
    """An object of one of these types, as its judged fields and its type.

    An object without a type is of the `usual` one. `refused` types are known, but cannot be served, for a reason.
    `tag` is the field that says which it is.
    """

    types: Mapping[str, Body]
    usual: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    tag: str = "type"
    others: str = ""
    """Why any other type is refused, where there are too many to name."""

    @property
    def takes(self) -> str:
        return f"an object whose {self.tag} is one of {', '.join(self.types)}"

    def judge(self, name: str, value: Any) -> dict[str, Any]:
        return self._judged(name, value, None)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> dict[str, Any]:
        return self._judged(name, value, leave_out)

    def _judged(self, name: str, value: Any, leave_out: LeaveOut) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self.refuse(name, value)
        kind, place = value.get(self.tag), f"{name}.{self.tag}"
        kind = self.usual if kind is None else kind
        if isinstance(kind, str) and kind not in self.types and (why := self.refused.get(kind, self.others)):
            raise Unsupported(f"{place} is {shown(kind)}: {why}", param=place)
        if not isinstance(kind, str) or kind not in self.types:
            raise InvalidRequest(f"{place} is {shown(kind)}; it must be one of {', '.join(self.types)}", param=place)
        fields = {key: item for key, item in value.items() if key != self.tag}
        return {**self.types[kind].judge_part(name, fields, leave_out), self.tag: kind}

    def schema(self) -> Schema:
        return {"anyOf": [self._schema_of(kind, body) for kind, body in self.types.items()]}

    def _schema_of(self, kind: str, body: Body) -> Schema:
        schema = body.schema()
        is_usual = kind == self.usual
        tag = {"enum": [kind, None]} if is_usual else {"const": kind}
        required = schema["required"] if is_usual else [self.tag, *schema["required"]]
        return {**schema, "properties": {self.tag: tag, **schema["properties"]}, "required": required}


@dataclass(frozen=True, slots=True)
class Several(Kind):
    """A list of such objects. If `text_as` is given, a string stands for one object of this type with this `text`."""

    item: Tagged
    text_as: str | None = None
    non_empty: bool = False

    @property
    def takes(self) -> str:
        return "a list of objects" if self.text_as is None else "a string or a list of objects"

    def judge(self, name: str, value: Any) -> tuple[dict[str, Any], ...]:
        return self._judged(name, value, None)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> tuple[dict[str, Any], ...]:
        """What cannot be served is left out one by one."""
        return self._judged(name, value, leave_out)

    def _judged(self, name: str, value: Any, leave_out: LeaveOut) -> tuple[dict[str, Any], ...]:
        if self.text_as is not None and isinstance(value, str):
            return ({"type": self.text_as, "text": _TEXT.judge(name, value)},)
        if not isinstance(value, (list, tuple)):
            raise self.refuse(name, value)
        if self.non_empty and not value:
            raise InvalidRequest(f"{name} is an empty list", param=name)
        judged = []
        for i, item in enumerate(value):
            try:
                judged.append(self.item._judged(f"{name}[{i}]", item, leave_out))
            except Unsupported as exc:
                if leave_out is None:
                    raise
                leave_out(exc.param or name)
        if self.non_empty and not judged:
            raise InvalidRequest(f"{name} has nothing that can be served", param=name)
        return tuple(judged)

    def schema(self) -> Schema:
        several: Schema = {"type": "array", "items": self.item.schema(), **({"minItems": 1} if self.non_empty else {})}
        return several if self.text_as is None else {"anyOf": [_TEXT.schema(), several]}


_TEXT = String()
