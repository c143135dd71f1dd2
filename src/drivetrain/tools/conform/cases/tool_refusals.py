"""Tools that cannot be honoured: refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, read_whole
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.calling import DOOR, allowed, call_fields, made_calls, named, tool
from drivetrain.tools.conform.cases.schemas import record
from drivetrain.tools.conform.reading import param_names, refused
from drivetrain.tools.conform.requester import LEFT_OUT
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.TOOLS, BY_FIELD, needs=CHAT)

TOO_MANY = 1_000
DANGLING = {"$ref": "#/$defs/nowhere"}


def _strict(schema: Any) -> list[Any]:
    return [tool("set_door", record("strict", open=schema), strict=True)]


FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "refuse_choice": ("tool_choice = sometimes", "tool_choice", {"tool_choice": "sometimes"}),
    "refuse_unknown": ("tool_choice that names no tool", "tool_choice", {"tool_choice": named("no_such_tool")}),
    "refuse_allowed": (
        "allowed_tools with a name of no tool", "tool_choice", {"tool_choice": allowed("auto", "no_such_tool")},
    ),
    "refuse_required_alone": (
        "tool_choice = required without tools", "tool_choice", {"tools": LEFT_OUT, "tool_choice": "required"},
    ),
    "refuse_named_alone": (
        "tool_choice with a name, without tools", "tool_choice", {"tools": LEFT_OUT, "tool_choice": named("set_door")},
    ),
    "refuse_twice": ("two tools of one name", "tools", {"tools": [DOOR, DOOR]}),
    "refuse_nameless": ("a tool without a name", "tools", {"tools": [{"type": "function", "function": {}}]}),
    "refuse_bad_name": ("a tool with a blank and a bracket in its name", "tools", {"tools": [tool("set >", {})]}),
    "refuse_tools_object": ("tools that are no list", "tools", {"tools": DOOR}),
    "refuse_parameters": ("a tool whose schema is a text", "tools", {"tools": [tool("set_door", "open")]}),
    "refuse_strict_type": (
        "a strict tool with a schema of an unknown type", "tools", {"tools": _strict({"type": "nonsense"})},
    ),
    "refuse_strict_ref": (
        "a strict tool with a reference to nothing", "tools", {"tools": _strict(DANGLING)},
    ),
    "refuse_parallel": ("parallel_tool_calls = maybe", "parallel_tool_calls", {"parallel_tool_calls": "maybe"}),
}  # fmt: skip
"""What it is about, the field to be named, and the fields of a request that is good otherwise."""


def _refused(name: str, what: str, field: str, fields: dict[str, Any]) -> None:
    @CASES.case(name, asks=what, holds=f"4xx that names {field}")
    async def _check(t: Trial) -> None:
        refused(await t.post(CHAT.path, t.body(CHAT, **{"tools": [DOOR], **fields})), what, field)


for _name, _row in FAULTS.items():
    _refused(_name, *_row)


@CASES.case("many", asks=f"{TOO_MANY:,} tools, and tool_choice names the last",
            holds="4xx that names tools, or a call of it")  # fmt: skip
async def _many(t: Trial) -> None:
    tools = [tool(f"open_door_{i}", record("door", open={"type": "boolean"})) for i in range(TOO_MANY)]
    choice = named(tools[-1]["function"]["name"])
    exchange = await t.post(CHAT.path, t.body(CHAT, **call_fields(tools=tools, tool_choice=choice)))
    if exchange.status == 200:
        made_calls(read_whole(CHAT, exchange).first, tools[-1:])
    else:
        refused(exchange, f"{TOO_MANY:,} tools", "tools", "messages")


@CASES.case("error_param", asks="what the other cases ask to be refused",
            holds="each that is refused has the status 400 and error.param")  # fmt: skip
async def _error_param(t: Trial) -> None:
    any_refused = False
    for what, field, fields in FAULTS.values():
        exchange = await t.post(CHAT.path, t.body(CHAT, **{"tools": [DOOR], **fields}))
        if not 400 <= exchange.status < 500:
            continue
        any_refused = True
        ensure(exchange.status == 400, f"{what} has status {exchange.status}, not 400")
        param = exchange.document.get("error", {})
        ensure(param_names(exchange, field), f"{what}: error.param is {_param(param)}, not {field!r}")
    if not any_refused:
        raise NotRun("nothing is refused")


def _param(error: Any) -> str:
    return repr(error.get("param") if isinstance(error, dict) else None)[:80]
