"""Formats and schemas that cannot be honoured: refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.schemas import record, schema_format
from drivetrain.tools.conform.reading import param_names
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.STRUCTURED, BY_FIELD, needs=CHAT)

FAULTS: dict[str, tuple[str, Any]] = {
    "bad_schema": ("response_format with a schema of an unknown type", schema_format({"type": "nonsense"})),
    "unknown_format": ("response_format of an unknown type", {"type": "nonsense"}),
    "format_text": ("response_format that is a text", "json_object"),
    "no_schema": ("response_format json_schema without a schema", {"type": "json_schema"}),
    "bad_schema_text": ("response_format with a schema that is a text", schema_format("an open door")),
    "bad_schema_list": ("response_format with a schema that is a list", schema_format([{"type": "object"}])),
    "bad_schema_ref": (
        "response_format with a reference to nothing",
        schema_format(record("no_ref", open={"$ref": "#/$defs/nowhere"})),
    ),
    "bad_schema_bound": (
        "response_format with minItems = many",
        schema_format(record("bad", marks={"type": "array", "minItems": "many"})),
    ),
    "bad_schema_pattern": (
        "response_format with a pattern that is no regex",
        schema_format(record("bad", code={"type": "string", "pattern": "([a-z"})),
    ),
}


def _refused(name: str, what: str, value: Any) -> None:
    @CASES.case(name, asks=what, holds="4xx that names response_format", offered="every server knows its own fields")
    async def _check(t: Trial) -> None:
        await t.refuse(CHAT, "response_format", value)


for _name, _row in FAULTS.items():
    _refused(_name, *_row)


@CASES.case("error_param", asks="what the other cases ask to be refused",
            holds="each that is refused has the status 400, and error.param begins with response_format")  # fmt: skip
async def _error_param(t: Trial) -> None:
    any_refused = False
    for what, value in FAULTS.values():
        exchange = await t.post(CHAT.path, t.body(CHAT, response_format=value))
        if not 400 <= exchange.status < 500:
            continue
        any_refused = True
        ensure(exchange.status == 400, f"{what} has status {exchange.status}, not 400")
        ensure(param_names(exchange, "response_format"), f"{what}: error.param does not name response_format")
    if not any_refused:
        raise NotRun("nothing is refused")
