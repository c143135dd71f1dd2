"""Request parameters as flags and as `/set` values, made from the table in `core/parameters.py`."""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.cli.options import flag, kind_of, number, whole_number
from drivetrain.core.build import build_request
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.parameters import MAX_INT, PARAMETERS, check
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.worker.settings import Settings

_HINTS = typing.get_type_hints(GenerateRequest)
_DEST = "request_"
_INPUTS = ("messages", "prompt", "prompt_token_ids", "images")
_NOT_OFFERED = frozenset({*_INPUTS, "trace_context"})
_CHAT_HAS_NO = frozenset({"n", "echo", "prompt_logprobs", "logprobs", "request_id"})

GENERATE = tuple(name for name in PARAMETERS if name not in _NOT_OFFERED)
CHAT = tuple(name for name in GENERATE if name not in _CHAT_HAS_NO)


def add_request(parser: argparse.ArgumentParser, names: tuple[str, ...] = GENERATE) -> None:
    group = parser.add_argument_group("request", "What is left out comes from the settings, the weights or the family.")
    for name in names:
        _add_flag(group, name)


def read_request(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were given, under their own names."""
    return {
        name.removeprefix(_DEST): value
        for name, value in vars(args).items()
        if name.startswith(_DEST) and value is not None
    }


def read_value(name: str, text: str) -> Any:
    """A parameter's value from what was typed. Raises `InvalidRequest`; its range is judged by `check_alone`."""
    read, _ = _READERS.get(kind_of(_HINTS[name]), (_json, ""))
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
    options = {"dest": _DEST + name, "default": None, "help": PARAMETERS[name].meaning.replace("%", "%%")}
    kind = kind_of(_HINTS[name])
    if kind is bool:
        group.add_argument(flag(name), action=argparse.BooleanOptionalAction, **options)
    elif kind is Overflow:
        group.add_argument(flag(name), choices=[*map(str, Overflow)], **options)
    elif name == "stop":
        group.add_argument(flag(name), action="append", metavar="TEXT", **options)
    else:
        read, metavar = _READERS.get(kind, (_json, "JSON"))
        group.add_argument(flag(name), type=read, metavar=metavar, **options)


def token_ids(text: str) -> list[int]:
    return [whole_number(part) for part in text.split(",") if part.strip()]


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not JSON") from None
    return {_key(key): item for key, item in value.items()} if isinstance(value, dict) else value


def _key(text: str) -> Any:
    """The keys of `logit_bias` are token ids, which JSON can only spell as strings."""
    return int(text) if text.lstrip("-").isdecimal() else text


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def _text(text: str) -> str:
    """A JSON string where it is one, so that `"\\n"` can be typed; else as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (whole_number, "N"),
    float: (number, "X"),
    bool: (_boolean, ""),
    str: (str, "TEXT"),
    Overflow: (str, ""),
    tuple[str, ...]: (_text, "TEXT"),
    tuple[int, ...]: (token_ids, "IDS"),
}
