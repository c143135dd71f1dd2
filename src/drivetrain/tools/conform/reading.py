"""Reading the replies of unknown servers: whatever is missing or malformed becomes a sentence, never a crash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, ensure

_KINDS: dict[type, str] = {str: "a string", int: "an integer", float: "a number", list: "a list", dict: "an object"}
MAX_ERROR_BYTES = 4096
LARGEST = 2**1023


def take(document: Any, path: str, kind: type) -> Any:
    """The value at a path such as `a.b.0.c`. Raises `Failed` if it is missing or of another kind."""
    found = document
    for step in path.split("."):
        if isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, Mapping) and step in found:
            found = found[step]
        else:
            raise Failed(f"the answer has no {path}")
    if not _is(found, kind):
        raise Failed(f"{path} is {brief(found)}; it must be {_KINDS[kind]}")
    return found


def brief(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    return is_number(value) if kind is float else isinstance(value, kind)


def is_number(value: Any) -> bool:
    """False for the integers of JSON that no float can hold."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)


# Errors


def message_of(exchange: RecordedExchange) -> str:
    """What a refusal says, whatever its form, cut short."""
    try:
        document = exchange.json()
    except Failed:
        return exchange.reply[:200].decode("utf-8", "replace")
    message = (_error(document) or {}).get("message")
    return message if isinstance(message, str) else brief(document, 200)


def _error(document: Any) -> dict[str, Any] | None:
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else None


def error_of(exchange: RecordedExchange) -> dict[str, Any]:
    """The error object of a refusal. Raises `Failed` if there is none."""
    document = exchange.json()
    error = _error(document)
    if error is None:
        raise Failed(f"the answer has no error object: {brief(document, 120)}")
    ensure(take(document, "error.message", str).strip(), "error.message is empty")
    return error


def names(exchange: RecordedExchange, name: str) -> bool:
    """Whether a refusal names this field, in `error.param` or as a word in its message."""
    return param_names(exchange, name) or _mentions(message_of(exchange), name)


def param_names(exchange: RecordedExchange, name: str) -> bool:
    param = (_error(exchange.document) or {}).get("param")
    return isinstance(param, str) and re.match(rf"{re.escape(name)}(?![A-Za-z0-9_])", param) is not None


def _mentions(text: str, name: str) -> bool:
    if len(name) > 1:
        return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text) is not None
    return re.search(rf"(?:^|[\"'`]){re.escape(name)}(?:[\"'`]|\s*=|\s+(?:is|must|should)\b)", text) is not None


def honoured(exchange: RecordedExchange, fields: Mapping[str, Any]) -> None:
    """The request was accepted. Otherwise raises `NotOffered` if one of `fields` was refused by name, or `Failed`."""
    if exchange.status == 200:
        return
    if exchange.status in {400, 404, 405, 422, 501}:
        for name in fields:
            if names(exchange, name):
                raise NotOffered(f"{name} is refused by name: {message_of(exchange)}"[:300])
    raise Failed(f"{exchange.request_line} was answered with status {exchange.status}: {message_of(exchange)}"[:400])


def has_room(exchange: RecordedExchange) -> None:
    """Raises `NotRun` if the request was refused because the model's context is too small for it."""
    if exchange.status == 400 and (_error(exchange.document) or {}).get("code") == "context_length_exceeded":
        raise NotRun("the model's context is too small for this")


def refused(exchange: RecordedExchange, what: str, *fields: str) -> None:
    """It was refused with 4xx and a message that names one of the fields. `errors.shape` checks the form of errors."""
    ensure(exchange.status != 200, f"{what} was accepted; it must be refused with 400, or have its effect")
    ensure(400 <= exchange.status < 500, f"{what} was answered with status {exchange.status}; it must be a 400")
    named = not fields or any(names(exchange, name) for name in fields)
    ensure(named, f"{what} was refused without naming {fields and fields[0]}: {message_of(exchange)}"[:400])
