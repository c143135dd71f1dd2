"""From the bytes of a request to a checked body: JSON, null as omitted, later and unknown fields, types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.server.settings import UnknownFields

B = TypeVar("B", bound=BaseModel)

IGNORED_HEADER = "x-drivetrain-ignored-fields"
MAX_IGNORED_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Read(Generic[B]):
    """A checked body, and the names of the fields in it that were ignored because nobody knows them."""

    body: B
    ignored: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        if not self.ignored:
            return {}
        names = ", ".join(ascii(name)[1:-1] for name in self.ignored)
        return {IGNORED_HEADER: names[:MAX_IGNORED_CHARS]}


def read_body(data: bytes, model: type[B], *, unknown: str) -> Read[B]:
    """Raises `InvalidRequest` or `Unsupported`, naming the field."""
    given = _object(data)
    known = model.model_fields.keys() | LATER.keys()
    values = {name: value for name, value in given.items() if value is not None or name not in known}
    for name in [name for name in values if name in LATER and name not in model.model_fields]:
        if not LATER[name](values.pop(name), values):
            raise Unsupported(f"{name} is not supported yet; leave it out", param=name)
    strange = [name for name in values if name not in model.model_fields]
    if strange and unknown == UnknownFields.REFUSE:
        raise Unsupported(f"{_short(strange[0])} is not a parameter of this endpoint", param=strange[0])
    for name in strange:
        del values[name]
    try:
        return Read(model.model_validate(values), tuple(strange))
    except ValidationError as exc:
        raise _refusal(exc) from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as exc:
        raise InvalidRequest(f"the body is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def _refusal(exc: ValidationError) -> InvalidRequest:
    """The first field at fault, in one line. A field of several types gets what each of them missed."""
    details = exc.errors(include_url=False, include_input=False, include_context=False)
    name = str(details[0]["loc"][0])
    if details[0]["type"] == "missing":
        return InvalidRequest(f"{name} is missing", param=name)
    reasons = list(dict.fromkeys(_reason(d) for d in details if d["loc"][0] == name))
    return InvalidRequest(f"{name}: {' or '.join(reasons[:4])}", param=_place(details[0]))


def _reason(detail: ErrorDetails) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _place(detail: ErrorDetails) -> str:
    name, *rest = map(str, detail["loc"])
    return ".".join([name, *rest]) if name == "stream_options" else name


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


Neutral = Callable[[Any, Mapping[str, Any]], bool]
"""Whether a value of a feature that is not built asks for nothing, given the other fields."""


def _never(value: Any, _: Mapping[str, Any]) -> bool:
    return False


def _is(*neutral: Any) -> Neutral:
    return lambda value, _: any(value == n and type(value) is type(n) for n in neutral)


LATER: dict[str, Neutral] = {
    "tools": _is([]),
    "tool_choice": _is("none"),
    "parallel_tool_calls": _is(True, False),
    "functions": _is([]),
    "function_call": _is("none"),
    "response_format": _is({"type": "text"}),
    "modalities": _is(["text"]),
    "audio": _never,
    "prediction": _never,
    "reasoning_effort": _is("none"),
    "verbosity": _never,
    "web_search_options": _never,
    "suffix": _is(""),
    "best_of": lambda value, values: type(value) is int and value == values.get("n", 1),
    "logits_processors": _is([]),
    "guided_json": _never,
    "guided_regex": _never,
    "guided_choice": _never,
    "guided_grammar": _never,
    "structured_outputs": _never,
    "receipt": _is(False),
    "regex": _never,
    "grammar": _never,
    "choice": _never,
}
"""Fields that others honour and we do not yet. Accepted where they ask for nothing, refused by name otherwise."""
