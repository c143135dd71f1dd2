"""The messages of Ollama's API, as the messages of a chat: pictures in base64, and calls that have no ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.answer import ToolCall
from drivetrain.core.constraint import schema_source
from drivetrain.core.earlier_calls import MAX_CALLS
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Integer, ListOf, String, shown
from drivetrain.core.messages import ImagePart, Message, Part, TextPart
from drivetrain.server.parse.body import Body, Field
from drivetrain.server.parse.schema import Object, inert
from drivetrain.server.parse.shapes import Several, Tagged
from drivetrain.server.parse.turns import refuse_begun

IMAGES = Field(ListOf(String(non_empty=True)), "pictures in base64", nothing=([],))

_FUNCTION = Body(
    "OllamaFunction",
    {
        "name": Field(String(non_empty=True), "the tool", required=True),
        "arguments": Field(Object(), "as the model gave them"),
        "index": inert(Integer()),
    },
)
_CALLS = Several(
    Tagged(
        {
            "function": Body(
                "OllamaCall",
                {
                    "function": Field(_FUNCTION, "the call", required=True),
                    "id": Field(String(), "what its result answers to", nothing=("",)),
                },
            )
        },
        usual="function",
    )
)
_SAID = {"content": Field(String(), "the text"), "images": IMAGES}

MESSAGE_LIST = Several(
    Tagged(
        {
            "system": Body("OllamaSystem", _SAID),
            "user": Body("OllamaUser", _SAID),
            "assistant": Body(
                "OllamaAssistant",
                {
                    **_SAID,
                    "thinking": Field(String(), "its reasoning"),
                    "tool_calls": Field(_CALLS, "the calls that it made"),
                },
            ),
            "tool": Body(
                "OllamaResult",
                {
                    **_SAID,
                    "tool_name": Field(String(), "the tool that was called", nothing=("",)),
                    "tool_call_id": Field(String(), "the call that it answers", nothing=("",)),
                },
            ),
        },
        tag="role",
    )
)


def said(text: str, images: Sequence[str]) -> tuple[Part, ...]:
    """Pictures come first, as the API has it."""
    pictures = [ImagePart(url=image if image.startswith("data:") else f"data:;base64,{image}") for image in images]
    return (*pictures, TextPart(text)) if text or not pictures else tuple(pictures)


def chat_of(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Raises `InvalidRequest` for the result of a call that nobody made, and `Unsupported` for a begun answer."""
    refuse_begun(len(messages) - 1, messages[-1])
    calls = _Calls()
    return tuple(_message(message, f"messages[{i}]", calls) for i, message in enumerate(messages))


def _message(given: Mapping[str, Any], where: str, calls: _Calls) -> Message:
    role, content = given["role"], said(given.get("content", ""), given.get("images", ()))
    if role == "assistant":
        made = calls.made(given.get("tool_calls", ()), f"{where}.tool_calls")
        return Message(role, content, made, reasoning=given.get("thinking", ""))
    return Message(role, content, tool_call_id=calls.answered(given, where) if role == "tool" else "")


class _Calls:
    """Those that have no result yet, in order. Ollama's clients send no ids, so a result answers the first call of its
    tool, or the first of all if it names none."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        """The tool's name, by the id."""
        self._count = 0

    def made(self, given: Sequence[Mapping[str, Any]], where: str) -> tuple[ToolCall, ...]:
        made = []
        if len(given) > MAX_CALLS:
            raise InvalidRequest(f"{where} has {len(given):,} calls; the limit is {MAX_CALLS}", param=where)
        for i, call in enumerate(given):
            function, call_id = call["function"], call.get("id") or self._new_id()
            arguments = schema_source(function.get("arguments", {}), f"{where}[{i}].function.arguments", "an object")
            self._open[call_id] = function["name"]
            self._count += 1
            made.append(ToolCall(i, function["name"], arguments, id=call_id))
        return tuple(made)

    def _new_id(self) -> str:
        """One that no open call has."""
        while f"call_{self._count}" in self._open:
            self._count += 1
        return f"call_{self._count}"

    def answered(self, given: Mapping[str, Any], where: str) -> str:
        """The call's id. A result that says nothing and follows no call has none, as in any other chat."""
        call_id, name = given.get("tool_call_id", ""), given.get("tool_name")
        if not call_id:
            call_id = next((one for one, called in self._open.items() if name in {None, called}), "")
        if not call_id and name is not None:
            place = f"{where}.tool_name"
            raise InvalidRequest(f"{place} is {shown(name)}, which no call before it waits for", param=place)
        self._open.pop(call_id, None)
        return str(call_id)
