"""What the cases of tools share: two tools, requests that ask for calls (of the first), and how a call is judged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedChoice
from drivetrain.tools.conform.calls import ParsedCall
from drivetrain.tools.conform.cases.schemas import record
from drivetrain.tools.conform.fitting import fits, parsed
from drivetrain.tools.conform.reading import brief
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CALL_TOKENS = 120
"""Enough for one call. The tools make the prompt long, and a small context has to hold both."""

ASK = "Open the door."


def tool(name: str, parameters: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "description": name.replace("_", " "), "parameters": parameters, **fields}
    return {"type": "function", "function": function}


DOOR = tool("set_door", record("door", open={"type": "boolean"}))
PAINT = tool(
    "paint_door",
    record("paint", colour={"enum": ["red", "blue"]}, coats={"type": "integer", "minimum": 1, "maximum": 3}),
)
TOOLS = [DOOR, PAINT]
"""Where one would not do: a small context has no room for more."""


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def call_fields(**fields: Any) -> dict[str, Any]:
    return {**CHAT.prompt_fields(ASK), "max_tokens": CALL_TOKENS, "tools": [DOOR], **fields}


async def both(t: Trial, **fields: Any) -> AsyncIterator[tuple[str, ParsedChoice]]:
    """The same request whole and streamed, each with the word for it."""
    yield "whole", (await t.generate(CHAT, **call_fields(**fields))).first
    yield "streamed", (await t.stream(CHAT, **call_fields(**fields))).first


async def single(t: Trial) -> dict[str, Any]:
    """The field that keeps a model from calling again and again, if the server has it."""
    takes = await t.known.takes(CHAT, "parallel_tool_calls", False)
    return {"parallel_tool_calls": False} if takes else {}


def made_calls(choice: ParsedChoice, tools: list[dict[str, Any]], how: str = "answer") -> list[ParsedCall]:
    """Calls that were asked for, each of an offered tool and with arguments that fit its schema.

    The last one may be cut off. Raises `NotRun` if that leaves none, and `Failed` if there is only text.
    """
    calls, cut = choice.calls, choice.reason == "length"
    if not calls and (choice.text or not cut):
        raise Failed(f"tools are accepted, but no tool is called: tool_choice is ignored ({how})")
    whole = calls[:-1] if cut else calls
    if not whole:
        raise NotRun("the call was not complete within max_tokens")
    for call in whole:
        check_call(call, tools)
    return whole


def check_call(call: ParsedCall, tools: list[dict[str, Any]], *, must_fit: bool = True) -> None:
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in tools}
    ensure(call.name in schemas, f"the tool {brief(call.name)} is called, which was not offered")
    what = f"arguments of {call.name}"
    if must_fit:
        fits(call.arguments, schemas[call.name], what)
    else:
        ensure(isinstance(parsed(call.arguments, what), dict), f"the {what} are {brief(call.arguments)}, no object")
