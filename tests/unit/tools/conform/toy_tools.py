"""How the toy takes tools, calls them and reasons: enough for what the cases ask."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

from toy_rules import Refused

MOST_TOOLS = 128
CUT_BELOW = 8
_TYPES = {"object", "array", "string", "boolean", "null", "number", "integer"}
EXPLOSIVE = ("multipleOf", "allOf", "(a+)+", "#/$defs/a", "#/$defs/link", 'minLength": 1000000000')
_NO_SCHEMA = ("nowhere", "([a-z", '"many"')
_numbers = itertools.count(1)

ARGUMENTS = {
    "door": '{"open": true}',
    "paint": '{"colour": "blue", "coats": 2}',
    "strict": '{"colours": ["red", "dark blue"], "primer": null, "code": "B42"}',
}
"""Fitting ones, by the title of a tool's schema."""


@dataclass
class Call:
    name: str
    arguments: str
    id: str = ""

    def __post_init__(self) -> None:
        self.id = self.id or f"call_{next(_numbers)}"

    @property
    def whole(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    def pieces(self, index: int) -> list[dict[str, Any]]:
        parts = [self.arguments[at : at + 4] for at in range(0, len(self.arguments), 4)]
        head = {**self.whole, "index": index, "function": {"name": self.name, "arguments": ""}}
        return [head, *({"index": index, "function": {"arguments": part}} for part in parts)]


def calls_for(body: dict[str, Any], limit: int) -> list[Call]:
    """One, if the choice asks for one. Below `CUT_BELOW` tokens it is cut off."""
    choice = body.get("tool_choice", "auto")
    if not body.get("tools") or choice in ("auto", "none") or _mode(choice) == "auto":
        return []
    names = _chosen(choice)
    function = next(t["function"] for t in body["tools"] if not names or t["function"]["name"] in names)
    arguments = ARGUMENTS[function["parameters"]["title"]]
    return [Call(function["name"], arguments[:5] if limit < CUT_BELOW else arguments)]


def check_tools(body: dict[str, Any]) -> None:
    """Raises `Refused`."""
    tools, choice = body.get("tools", []), body.get("tool_choice", "auto")
    if len(tools) > MOST_TOOLS:
        raise Refused("there are too many tools", "tools")
    functions = [tool.get("function") for tool in tools]
    known = [function.get("name") for function in functions]
    if not all(isinstance(name, str) and re.fullmatch(r"[\w-]+", name) for name in known):
        raise Refused("a tool has no good name", "tools")
    if len(set(known)) < len(known):
        raise Refused("two tools have one name", "tools")
    if not all(_is_schema(function.get("parameters")) for function in functions):
        raise Refused("a tool has no good schema", "tools")
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        raise Refused("tool_choice has a bad value", "tool_choice")
    if not set(_chosen(choice)) <= set(known) or (choice == "required" and not tools):
        raise Refused("tool_choice asks for what is no tool", "tool_choice")


def check_results(messages: list[dict[str, Any]]) -> None:
    made: set[str] = set()
    for message in messages:
        made |= {call["id"] for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and message.get("tool_call_id") not in made:
            raise Refused("messages has a tool_call_id that no call has", "messages")


def check_format(response_format: dict[str, Any]) -> None:
    """Raises `Refused` for a schema that is none, and for one that explodes."""
    if response_format.get("type") != "json_schema":
        return
    schema = response_format.get("json_schema", {}).get("schema")
    if not _is_schema(schema) or any(word in json.dumps(schema) for word in EXPLOSIVE):
        raise Refused("response_format has a schema that is none, or one that explodes", "response_format")


def _is_schema(schema: Any) -> bool:
    text = json.dumps(schema)
    types = set(re.findall(r'"type": "(\w+)"', text))
    return isinstance(schema, dict) and types <= _TYPES and not any(word in text for word in _NO_SCHEMA)


def _mode(choice: Any) -> str:
    return choice["allowed_tools"]["mode"] if isinstance(choice, dict) and "allowed_tools" in choice else "required"


def _chosen(choice: Any) -> list[str]:
    if not isinstance(choice, dict):
        return []
    named = choice["allowed_tools"]["tools"] if "allowed_tools" in choice else [choice]
    return [one["function"]["name"] for one in named]


# Reasoning


def thought_of(body: dict[str, Any]) -> str:
    """What is thought before the answer, if the question asks to think. A character is a token."""
    if "Think about it" not in str(body.get("messages")):
        return ""
    return "7 times 13 is 91, so it is a product of two, and no prime."[: body.get("max_reasoning_tokens", 100)]
