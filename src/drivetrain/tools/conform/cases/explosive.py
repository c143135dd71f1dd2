"""What may cost a server more than it can afford: answered or refused in time, and the next request works."""

from __future__ import annotations

import json
from typing import Any

from drivetrain.tools.conform.answers import CHAT, read_whole
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.calling import tool
from drivetrain.tools.conform.cases.schemas import record, schema_format
from drivetrain.tools.conform.client import Broken, Unreachable
from drivetrain.tools.conform.fitting import fits
from drivetrain.tools.conform.reading import brief, message_of
from drivetrain.tools.conform.trial import REFUSAL_S, Trial
from drivetrain.tools.conform.verdict import Failed, ensure

CASES = Cases(Area.STRUCTURED, BY_FIELD, needs=CHAT)

LEVELS = 1_000
MANY_TOOLS = 5_000
DEEP = '{"type":"array","items":' * LEVELS + "{}" + "}" * LEVELS
"""Written by hand: it is too deep for a JSON library."""

_TEXT = {"type": "string"}
_BACKTRACKS = "(a+)+(a|aa)*(a*)*b"
_EQUAL = "a+b"
"""Matches the same texts, and does not backtrack: answers are judged by this one."""

_NEVER_ENDS = {"$ref": "#/$defs/link"}

EXPLOSIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "product": (
        "an allOf of nine anyOf of five",
        schema_format({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(5)]} for i in range(9)]}),
    ),
    "multiple": ("multipleOf 999983", schema_format({"type": "integer", "multipleOf": 999_983})),
    "pattern": (
        "a pattern that backtracks",
        schema_format(record("pattern", code={**_TEXT, "pattern": f"^{_BACKTRACKS}$"})),
    ),
    "cycle": (
        "a reference that leads only to itself",
        schema_format({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    ),
    "endless": (
        "an object that must hold one of its own kind, without an end",
        schema_format({**_NEVER_ENDS, "$defs": {"link": record("link", next=_NEVER_ENDS)}}),
    ),
    "long": ("minLength 1,000,000,000", schema_format(record("long", name={**_TEXT, "minLength": 10**9}))),
}  # fmt: skip

_JUDGED_BY = {"pattern": record("pattern", code={**_TEXT, "pattern": f"^{_EQUAL}$"})}
"""Where it is not the schema that was sent."""


def _bounded(name: str, what: str, response_format: dict[str, Any]) -> None:
    @CASES.case(
        f"explosive_{name}", asks=f"response_format with {what}",
        holds="4xx, or an answer that fits, in time; the next request works",
    )  # fmt: skip
    async def _check(t: Trial) -> None:
        schema = _JUDGED_BY.get(name, response_format["json_schema"]["schema"])
        await _survives(t, what, t.body(CHAT, response_format=response_format), schema)


@CASES.case("explosive_deep", asks=f"a schema of {LEVELS:,} levels", holds="4xx or 200 in time; the next request works")
async def _deep(t: Trial) -> None:
    body = json.dumps(t.body(CHAT, response_format=schema_format("DEEP")))
    await _survives(t, f"a schema of {LEVELS:,} levels", body.replace('"DEEP"', DEEP).encode())


@CASES.case(
    "explosive_regex", asks="regex with one that backtracks", holds="4xx or 200 in time; the next request works"
)
async def _regex(t: Trial) -> None:
    await _survives(t, "a regex that backtracks", t.body(CHAT, regex=_BACKTRACKS))


@CASES.case("explosive_tools", asks=f"{MANY_TOOLS:,} tools", holds="4xx or 200 in time; the next request works")
async def _tools(t: Trial) -> None:
    tools = [tool(f"open_door_{i}", record("open", open={"type": "boolean"})) for i in range(MANY_TOOLS)]
    await _survives(t, f"{MANY_TOOLS:,} tools", t.body(CHAT, tools=tools, tool_choice="required"))


async def _survives(t: Trial, what: str, body: Any, schema: Any = None) -> None:
    """An answer that the model ended must fit the schema, if there is one."""
    try:
        exchange = await t.ask("POST", t.base + CHAT.path, body, timeout_s=min(REFUSAL_S, t.client.timeout_s))
    except Unreachable:
        raise
    except Broken as exc:
        raise Failed(f"{what}: {exc}") from None
    status = exchange.status
    ensure(status == 200 or 400 <= status < 500, f"{what} has status {status}: {message_of(exchange)}"[:300])
    if status == 200 and schema is not None:
        choice = read_whole(CHAT, exchange).first
        if choice.reason != "length":
            fits(choice.text, schema, f"answer to {what}")
    after = await t.post(CHAT.path, t.body(CHAT))
    ensure(after.status == 200, f"after {what} a plain request has status {after.status}: {brief(after.reply)}")


for _name, _row in EXPLOSIVE.items():
    _bounded(_name, *_row)
