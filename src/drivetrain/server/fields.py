"""The fields that an endpoint takes, as a table: it judges what was sent, once, and tells its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.build import did_you_mean
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, Schema, shown

IGNORED_HEADER = "x-drivetrain-ignored"
MAX_IGNORED_CHARS = 1000
MAX_NAME_CHARS = 100

WARN_HINT = "a server started with --unknown-fields warn leaves such fields out"


@dataclass(frozen=True, slots=True)
class Field:
    """`nothing` are values that ask for nothing, as other servers spell it: they count as left out. An inert field is
    accepted and not used."""

    kind: Kind | Body
    meaning: str
    required: bool = False
    nothing: tuple[Any, ...] = ()
    inert: bool = False

    def asks(self, value: Any) -> bool:
        """A field that is null is omitted."""
        return value is not None and not any(value == none and type(value) is type(none) for none in self.nothing)

    def schema(self) -> Schema:
        schema = self.kind.schema()
        if not self.required:
            none = [{"const": value} for value in self.nothing]
            schema = {"anyOf": [schema, *none, {"type": "null"}]}
        return {**schema, "description": self.meaning}


class Values(dict[str, Any]):
    """The judged fields of a body, without those that ask for nothing. `ignored` names what was left out of it."""

    def __init__(self, *, lenient: bool) -> None:
        super().__init__()
        self.lenient = lenient
        self.ignored: list[str] = []

    def leave_out(self, refusal: Unsupported) -> None:
        """The field that `refusal` names is not honoured: noted, or raised where the server is strict."""
        if not self.lenient:
            raise refusal
        self.ignored.append(refusal.param or "")

    @property
    def headers(self) -> dict[str, str]:
        return ignored_header(self.ignored)


def ignored_header(names: list[str] | tuple[str, ...]) -> dict[str, str]:
    if not names:
        return {}
    shown_names = (ascii(name[:MAX_NAME_CHARS])[1:-1].strip() for name in dict.fromkeys(names))
    return {IGNORED_HEADER: ", ".join(filter(None, shown_names))[:MAX_IGNORED_CHARS].rstrip(" ,")}


@dataclass(frozen=True, slots=True)
class Body:
    """What one endpoint takes. Fields are judged in the order of the table, the unknown ones first; of `one_of`,
    exactly one must be given."""

    name: str
    fields: Mapping[str, Field]
    one_of: tuple[str, ...] = ()

    def judge(self, given: Mapping[str, Any], *, lenient: bool) -> Values:
        """Stops at the first fault. Raises `InvalidRequest` or `Unsupported`, naming the field."""
        values = Values(lenient=lenient)
        self._judge_into(values, values, given, "")
        return values

    def _judge_into(self, values: Values, into: dict[str, Any], given: Mapping[str, Any], where: str) -> None:
        for name in given:
            if name not in self.fields:
                if not values.lenient:
                    raise self._unknown(name, where)
                values.ignored += [where + name] * (len(values.ignored) < MAX_IGNORED_CHARS)
        if self.one_of and sum(given.get(name) is not None for name in self.one_of) != 1:
            raise InvalidRequest(f"give either {' or '.join(self.one_of)}", param=where + self.one_of[0])
        for name, field in self.fields.items():
            value = given.get(name)
            if field.required and value is None:
                raise InvalidRequest(f"{where}{name} is missing", param=where + name)
            if field.asks(value):
                self._judge_field(values, into, field, name, value, where)

    def _judge_field(
        self, values: Values, into: dict[str, Any], field: Field, name: str, value: Any, where: str
    ) -> None:
        if isinstance(field.kind, Body):
            if not isinstance(value, dict):
                raise InvalidRequest(f"{where}{name} must be an object, not {shown(value)}", param=where + name)
            into[name] = {}
            return field.kind._judge_into(values, into[name], value, f"{where}{name}.")
        try:
            judged = field.kind.judge(where + name, value)
        except Unsupported as exc:
            return values.leave_out(exc)
        if judged is not None and not field.inert:
            into[name] = judged
        return None

    def _unknown(self, name: str, where: str) -> Unsupported:
        shown_name = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 3] + "..."
        hint = did_you_mean(name, self.fields) or "; see /openapi.json"
        return Unsupported(
            f"{where}{shown_name} is not a parameter of this endpoint{hint} ({WARN_HINT})", param=where + name
        )

    def schema(self) -> Schema:
        return {
            "title": self.name,
            "type": "object",
            "properties": {name: field.schema() for name, field in self.fields.items()},
            "required": [name for name, field in self.fields.items() if field.required],
            "additionalProperties": False,
        }
