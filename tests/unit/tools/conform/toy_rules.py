"""What the toy server takes in a request: the rule of each field. Anything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toy_model import SIZE

CONTEXT = 4096


class Refused(Exception):
    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str = "invalid") -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    def rule(value: Any) -> bool:
        return type(value) in {int, float} and low <= value <= high and not (above and value == low)

    return rule


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < SIZE for i in value)


def _stop(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return isinstance(stops, list) and len(stops) <= 16 and all(isinstance(s, str) and s for s in stops)


def _bias(value: Any) -> bool:
    return isinstance(value, dict) and all(
        key.isdigit() and int(key) < SIZE and _number(-100, 100)(bias) for key, bias in value.items()
    )


def _message(value: Any) -> bool:
    role = value.get("role") if isinstance(value, dict) else None
    return isinstance(role, str) and role in _ROLES and _ROLES[role](value)


def _content(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, str) or (isinstance(content, list) and all(map(_part, content)))


def _calls(message: dict[str, Any]) -> bool:
    return isinstance(message.get("tool_calls"), list) or _content(message)


_ROLES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "system": _content, "developer": _content, "user": _content, "tool": _content, "assistant": _calls,
}  # fmt: skip


def _part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "text":
        return isinstance(part.get("text"), str)
    return part.get("type") == "image_url" and isinstance(part.get("image_url"), dict)


def prompts(value: Any) -> list[Any]:
    """One entry a prompt: a text or ids. Empty for what is none."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        return []
    if all(type(i) is int for i in value):
        value = [value]
    texts, lists = all(isinstance(p, str) for p in value), all(p and _ids(p) for p in value)
    return value if texts or lists else []


def documents(value: Any) -> list[str]:
    """Empty for what is none."""
    if not isinstance(value, list):
        return []
    found: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in value]
    return found if all(isinstance(text, str) for text in found) else []


SHARED: dict[str, Callable[[Any], bool]] = {
    "model": _is(str), "max_tokens": _whole(1, CONTEXT), "temperature": _number(0, 2), "stream": _is(bool),
    "stream_options": _is(dict), "n": _whole(1, 16), "seed": _whole(-(2**63), 2**63 - 1), "stop": _stop,
    "top_p": _number(0, 1, above=True), "presence_penalty": _number(-2, 2), "frequency_penalty": _number(-2, 2),
    "logit_bias": _bias, "top_k": _whole(0, 10**6), "min_p": _number(0, 1), "min_tokens": _whole(0, CONTEXT),
    "repetition_penalty": _number(0, 10, above=True), "stop_token_ids": _ids, "ignore_eos": _is(bool),
    "include_stop_str_in_output": _is(bool), "overflow": lambda v: v in {"error", "truncate_left"},
    "timeout_s": _number(0, 3600, above=True), "return_token_ids": _is(bool), "user": _is(str),
    "metadata": _is(dict), "store": lambda v: v is False, "response_format": _is(dict), "choice": _is(list),
    "structured_outputs": _is(dict), "regex": _is(str), "grammar": _is(str),
    "tools": _is(list), "tool_choice": _is((str, dict)),  # type: ignore[arg-type]
    "parallel_tool_calls": _is(bool), "receipt": lambda v: isinstance(v, bool) or v == "full",
}  # fmt: skip
CHAT = SHARED | {
    "messages": lambda v: isinstance(v, list) and bool(v) and all(map(_message, v)),
    "max_completion_tokens": _whole(1, CONTEXT), "logprobs": _is(bool), "top_logprobs": _whole(0, 20),
    "reasoning_effort": _is(str), "max_reasoning_tokens": _whole(0, CONTEXT),
}  # fmt: skip
COMPLETIONS = SHARED | {
    "prompt": lambda v: bool(prompts(v)), "prompt_token_ids": _ids, "echo": _is(bool), "suffix": _is(str),
    "best_of": _whole(1, 16), "logprobs": lambda v: type(v) is int and 0 <= v <= 20, "max_tokens": _whole(0, CONTEXT),
}  # fmt: skip
EMBEDDINGS: dict[str, Callable[[Any], bool]] = {
    "model": _is(str), "input": lambda v: bool(prompts(v)), "encoding_format": lambda v: v in {"float", "base64"},
    "dimensions": _whole(1, 16),
}  # fmt: skip
RERANK: dict[str, Callable[[Any], bool]] = {
    "model": _is(str), "query": _is(str), "documents": lambda v: bool(documents(v)), "top_n": _whole(1, 10**6),
    "return_documents": _is(bool),
}  # fmt: skip
SCORE: dict[str, Callable[[Any], bool]] = {
    "model": _is(str),
    "text_1": _is(str),
    "text_2": lambda v: bool(documents(v)),
}
TOKENIZE: dict[str, Callable[[Any], bool]] = {
    "model": _is(str), "prompt": _is(str), "messages": CHAT["messages"],
}  # fmt: skip
DETOKENIZE: dict[str, Callable[[Any], bool]] = {"model": _is(str), "tokens": _ids}


def check(body: Any, rules: dict[str, Callable[[Any], bool]], *needed: str) -> dict[str, Any]:
    """The body without nulls. Raises `Refused`."""
    if not isinstance(body, dict):
        raise Refused("the body must be an object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name not in rules:
            raise Refused(f"{name[:100]} is not a parameter", name[:100])
        if not rules[name](value):
            raise Refused(f"{name} has a bad value", name)
    for name in needed:
        if name not in given:
            raise Refused(f"{name} is missing", name)
    if given.get("model", "toy") != "toy":
        raise Refused("there is no such model", "model", 404, "model_not_found")
    return given


def check_together(body: dict[str, Any]) -> None:
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if body.get("max_tokens", limit) != limit:
        raise Refused("max_tokens and max_completion_tokens disagree", "max_tokens")
    if limit == 0 and not body.get("echo"):
        raise Refused("max_tokens is 0", "max_tokens")
    if limit is not None and body.get("min_tokens", 0) > limit:
        raise Refused("min_tokens is above max_tokens", "min_tokens")
    if "stream_options" in body and not body.get("stream"):
        raise Refused("stream_options needs stream", "stream_options")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise Refused("top_logprobs needs logprobs", "top_logprobs")
    if body.get("response_format", {}).get("type", "text") not in {"text", "json_object", "json_schema"}:
        raise Refused("response_format has an unknown type", "response_format")
