"""Request parameters as flags and as `/set` values, made from the table in `core/parameters.py`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from drivetrain.cli.flags.constraint_options import add_constraint, read_constraint
from drivetrain.cli.flags.options import Reader, add_flag, flag, json_object, json_value, number, prefixed, whole_number
from drivetrain.cli.flags.tool_options import tool_choice, tools_file
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import InvalidRequest, InvalidSetting
from drivetrain.core.kinds import MAX_INT, Boolean, CountOrBoolean, Ids, Integer, Kind, ListOf, Number, OneOf, String
from drivetrain.core.parameters import PARAMETERS, build_request, check
from drivetrain.core.tools import JsonObject, ToolChoices, Tools
from drivetrain.worker.settings import Settings

_DEST = "request_"
_INPUTS = ("messages", "prompt", "prompt_token_ids", "images")
_NOT_OFFERED = frozenset({*_INPUTS, "trace_context", "receipt"})
_NOT_IN_CHAT = frozenset(
    {"n", "echo", "prompt_logprobs", "logprobs", "request_id", "suffix", "tools", "tool_choice", "parallel_tool_calls"}
)
"""Nobody is there to run a tool, and a chat has no gap."""

_MEANINGS = {
    "tools": "the functions that the model may call, as a JSON list in the OpenAI format",
    "tool_choice": "auto, none, required, or the name of the function to call; by default, auto",
}

GENERATE = tuple(name for name in PARAMETERS if name not in _NOT_OFFERED)
CHAT = tuple(name for name in GENERATE if name not in _NOT_IN_CHAT)


def add_request(parser: argparse.ArgumentParser, names: tuple[str, ...] = GENERATE) -> None:
    group = parser.add_argument_group(
        "request", "Anything left out comes from the settings, the model files or the family."
    )
    for name in names:
        _add_flag(group, name)


def read_request(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were given, under their own names. Raises `InvalidRequest`."""
    return prefixed(args, _DEST) | read_constraint(args)


def refuse_in_chat(args: argparse.Namespace) -> None:
    """Raises `InvalidSetting` for what a chat cannot be asked."""
    for name in prefixed(args, _DEST):
        if name in _NOT_IN_CHAT:
            raise InvalidSetting(
                f"{flag(name)} is for one message: give TEXT too, or leave it out for a chat", param=name
            )


def read_value(name: str, text: str) -> Any:
    """A parameter's value from what was typed. Raises `InvalidRequest`; `check_alone` judges its range."""
    read, _ = _reader(PARAMETERS[name].kind)
    try:
        value = read(text)
    except argparse.ArgumentTypeError as exc:
        raise InvalidRequest(f"{name}: {exc}", param=name) from None
    return [value] if name == "stop" else value


def check_early(raw: Mapping[str, Any], settings: Settings) -> None:
    """Refuse what no model could honour before one is loaded. Raises `InvalidRequest`."""
    anything = Capabilities(
        parameters=frozenset(PARAMETERS), vision=True, context_length=MAX_INT, limits=settings.limits
    )
    check(build_request(raw), anything)


def check_alone(name: str, value: Any, capabilities: Capabilities) -> None:
    """One parameter of a chat, against the loaded model. Raises `InvalidRequest`."""
    check(build_request({"messages": [{"role": "user", "content": ""}], name: value}), capabilities)


def _add_flag(group: Any, name: str) -> None:
    kind, meaning = PARAMETERS[name].kind, _MEANINGS.get(name, PARAMETERS[name].meaning)
    if name == "stop":
        group.add_argument(flag(name), action="append", metavar="TEXT", dest=_DEST + name, default=None, help=meaning)
    elif name == "constraint":
        add_constraint(group)
    else:
        add_flag(group, name, kind, _reader, dest=_DEST + name, meaning=meaning)


def token_ids(text: str) -> list[int]:
    return [whole_number(part) for part in text.split(",") if part.strip()]


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def _text(text: str) -> str:
    """Decoded if it is a JSON string, so that `"\\n"` can be typed; otherwise unchanged."""
    try:
        value = json_value(text)
    except argparse.ArgumentTypeError:
        return text
    return value if isinstance(value, str) else text


_READERS: Mapping[type[Kind], Reader] = {
    Integer: (whole_number, "N"),
    CountOrBoolean: (whole_number, "N"),
    Number: (number, "X"),
    Boolean: (_boolean, ""),
    String: (str, "TEXT"),
    OneOf: (str, ""),
    Ids: (token_ids, "IDS"),
    Tools: (tools_file, "FILE"),
    ToolChoices: (tool_choice, "WHAT"),
    JsonObject: (json_object, "JSON"),
}


def _reader(kind: Kind) -> Reader:
    """JSON if there is nothing shorter."""
    if isinstance(kind, ListOf) and isinstance(kind.item, String):
        return _text, "TEXT"
    return _READERS.get(type(kind), (json_value, "JSON"))
