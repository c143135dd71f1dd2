"""Which fields of a request a loaded model honours. Every other field is refused here, by name.

`check` needs only the request, whose values were validated when it was made, and the capabilities. So a request that
cannot be honoured never reaches a template, a tokenizer or an engine.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from drivetrain.core.budget import check_answer
from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import check_call_ids
from drivetrain.core.request import GenerateRequest, HonouredBy, Parameter
from drivetrain.core.tools import ToolChoice, ToolMode, check_choice

PARAMETERS: Mapping[str, Parameter] = {f.name: f.metadata["parameter"] for f in fields(GenerateRequest)}

WORKER_PARAMETERS = frozenset(name for name, p in PARAMETERS.items() if p.by is HonouredBy.WORKER)
TOKEN_PARAMETERS = frozenset(name for name, p in PARAMETERS.items() if p.by is HonouredBy.TOKENS)
ENGINE_PARAMETERS = frozenset(name for name, p in PARAMETERS.items() if p.by is HonouredBy.ENGINE)


MAX_RECEIPT_CHARS = 8 * 2**20
"""Of a full receipt's messages and images: it is made and sealed on the event loop."""

PARTS = 8
"""Of all messages together, for each message that there may be: they are walked on the event loop."""

CHAT_ONLY = ("tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "max_reasoning_tokens")
"""What only a chat can be asked for."""

_INSTEAD = "see its capabilities, or try another engine"

_OURS = ("native", "transformers")
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "bad_words_ids": (*_OURS, "vllm"),
    "begin_suppress_tokens": ("llamacpp", *_OURS),
    **dict.fromkeys(
        (
            "dry_multiplier",
            "dry_base",
            "dry_allowed_length",
            "dry_range",
            "dry_sequence_breakers",
            "xtc_probability",
            "xtc_threshold",
        ),
        ("llamacpp", *_OURS),
    ),
    "encoder_no_repeat_ngram_size": _OURS,
    "encoder_repetition_penalty": _OURS,
    "epsilon_cutoff": _OURS,
    "eta_cutoff": _OURS,
    "exponential_decay_length_penalty": _OURS,
    "frequency_penalty": (*_OURS, "vllm"),
    "guidance_scale": ("transformers",),
    "images": ("llamacpp", "transformers", "vllm"),
    "no_repeat_ngram_size": _OURS,
    "presence_penalty": (*_OURS, "vllm"),
    "prompt_logprobs": (*_OURS, "vllm"),
    "sequence_bias": _OURS,
    "top_h": _OURS,
    "typical_p": ("llamacpp", *_OURS),
}
"""For each parameter that not every engine has: those that have it. A test holds it against what they say."""

LACKS = {
    "suffix": "its vocabulary is not known to have the special tokens for filling in the middle",
    "reproducibility": "what runs beside an answer rounds its numbers otherwise; "
    "transformers on a CPU in float32, with yield_cores off, is exact",
}
"""Why a model cannot honour it, where more can be said than that."""


def check(request: GenerateRequest, capabilities: Capabilities) -> None:
    """Raise `InvalidRequest` or `Unsupported`, naming the field, unless the whole request can be honoured."""
    given = request.given()
    _check_sizes(given, capabilities.limits)
    if request.tools or request.tool_choice:
        check_choice(request.tools or (), request.tool_choice or ToolChoice())
    if "constraint" not in capabilities.parameters and (place := _strict_place(request)):
        raise Unsupported(f"{place} is not supported by this model and engine; {_INSTEAD}", param=place)
    for name in unsupported(given, capabilities):
        raise not_supported(name)
    _check_input(request, capabilities)
    _check_limits(request, capabilities)
    _check_combinations(request)
    check_answer(request, capabilities, len(request.prompt_token_ids or ()))


def not_supported(name: str) -> Unsupported:
    why = f": {LACKS[name]}" if name in LACKS else f" and engine; {_elsewhere(name)}"
    return Unsupported(f"{name} is not supported by this model{why}", param=name)


def _elsewhere(name: str) -> str:
    if name not in ELSEWHERE:
        return _INSTEAD
    *engines, last = ELSEWHERE[name]
    told = f"{', '.join(engines)} and {last} honour" if engines else f"{last} honours"
    return f"{told} it, where the model can"


def unsupported(given: Mapping[str, Any], capabilities: Capabilities) -> list[str]:
    """The fields that ask for something that this model and engine do not support."""
    enforced = set() if "constraint" in capabilities.parameters else _enforced(given)
    return [
        name
        for name, value in given.items()
        if name in enforced or (name not in capabilities.parameters and value != PARAMETERS[name].neutral)
    ]


def _enforced(given: Mapping[str, Any]) -> set[str]:
    """The fields by which a request with tools asks for more than what a model does by itself."""
    if not given.get("tools"):
        return set()
    choice = given.get("tool_choice") or ToolChoice()
    demands = choice.mode is not ToolMode.NONE and (choice.mode is ToolMode.REQUIRED or bool(choice.names))
    alone = given.get("parallel_tool_calls") is False
    asked = {"tool_choice": demands, "parallel_tool_calls": alone}
    return {name for name, asks in asked.items() if asks}


def _strict_place(request: GenerateRequest) -> str | None:
    """Where a request asks for arguments that always fit their schema."""
    tools = enumerate(request.offered_tools)
    return next((f"tools[{i}].function.strict" for i, tool in tools if tool.strict), None)


def asks_for_grammar(request: GenerateRequest) -> bool:
    """Whether the tools of a request ask for what only a grammar can promise."""
    return bool(request.tools) and (bool(_enforced(request.given())) or _strict_place(request) is not None)


_ID_FIELDS = (
    "logit_bias", "sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "stop_token_ids",
    "stop_sequences", "stop", "images",
)  # fmt: skip


def _check_sizes(given: Mapping[str, Any], limits: Limits) -> None:
    for name, value in given.items():
        if not isinstance(value, (tuple, list, Mapping)):
            continue
        if name in _ID_FIELDS:
            level = [value]
            while level:
                at_most(name, sum(map(len, level)), limits.max_ids, "entries")
                level = [item for items in level for item in items if isinstance(item, (tuple, list))]
        elif name == "prompt_token_ids":
            at_most(name, len(value), limits.max_prompt_chars, "entries")
        elif name == "messages":
            at_most(name, len(value), limits.max_messages, "entries")
            at_most(name, sum(len(message.content) for message in value), limits.max_messages * PARTS, "parts")


def _check_input(request: GenerateRequest, capabilities: Capabilities) -> None:
    inputs = {
        "messages": request.messages,
        "prompt": request.prompt,
        "prompt_token_ids": request.prompt_token_ids,
    }
    given = [name for name, value in inputs.items() if value is not None]
    if len(given) != 1:
        what = " and ".join(given) or "none of them"
        raise InvalidRequest(
            f"give exactly one of messages, prompt and prompt_token_ids, not {what}",
            param=given[-1] if given else "messages",
        )
    if not capabilities.generation:
        makes = "embeddings" if capabilities.embeddings else "scores of documents"
        raise Unsupported(f"this model produces {makes}, not text", param=given[0])
    if request.messages is not None and not capabilities.chat:
        raise Unsupported("this model accepts a prompt, not messages", param="messages")
    if request.has_images and not capabilities.vision:
        raise Unsupported("this model does not support images", param="images" if request.images else "messages")
    for name in CHAT_ONLY:
        if request.messages is None and (value := getattr(request, name)) and value != PARAMETERS[name].neutral:
            raise InvalidRequest(f"{name} goes with messages, not with {given[0]}", param=name)
    if request.suffix and request.prompt is None:
        raise InvalidRequest(f"suffix goes with prompt, a text, not with {given[0]}", param="suffix")
    if request.images and request.prompt is None:
        raise InvalidRequest("images needs prompt; in a chat, put images into the messages", param="images")


def _check_limits(request: GenerateRequest, capabilities: Capabilities) -> None:
    limits = capabilities.limits
    at_most("n", request.n or 1, limits.max_n)
    stops = len(request.stop or ()) + len(request.stop_sequences or ())
    at_most("stop", stops, limits.max_stops, "entries")
    at_most("stop", max(map(len, request.stop or ()), default=0), limits.max_stop_chars, "characters")
    at_most("stop_token_ids", len(request.stop_token_ids or ()), limits.max_stops, "entries")
    at_most("logprobs", request.logprobs or 0, limits.max_logprobs)
    at_most("prompt_logprobs", request.prompt_logprobs or 0, limits.max_logprobs)
    at_most(
        "constraint",
        len(request.constraint.source) if request.constraint else 0,
        limits.max_constraint_chars,
        "characters",
    )
    at_most("tools", len(request.tools or ()), limits.max_tools, "entries")
    tool_chars = sum(len(tool.parameters) + len(tool.description) for tool in request.tools or ())
    at_most("tools", tool_chars, limits.max_constraint_chars, "characters")
    if request.receipt is not None and request.receipt.full:
        at_most("receipt", _held_in_receipt(request), MAX_RECEIPT_CHARS, "characters of messages and images")
    at_most("timeout_s", request.timeout_s or 0, limits.max_timeout_s)
    for name in ("prompt", "suffix"):
        at_most(name, len(getattr(request, name) or ""), limits.max_prompt_chars, "characters")
    chars = sum(message.num_chars for message in request.messages or ())
    at_most("messages", chars, limits.max_prompt_chars, "characters")
    images = len(request.images or ()) + sum(len(message.images) for message in request.messages or ())
    at_most("images" if request.images else "messages", images, limits.max_images, "images")


def _held_in_receipt(request: GenerateRequest) -> int:
    """Of what a full receipt repeats. Images are base64 there."""
    images = [*(request.images or ()), *(image for message in request.messages or () for image in message.images)]
    texts = sum(message.num_chars for message in request.messages or ())
    return texts + sum(len(image.url or "") + len(image.data or b"") * 4 // 3 for image in images)


def _check_combinations(request: GenerateRequest) -> None:
    check_call_ids(request.messages or ())
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest("max_tokens is 0; that makes sense only with echo", param="max_tokens")
    if request.echo and request.messages is not None:
        raise InvalidRequest("echo works with prompt, not with messages", param="echo")
    if request.echo and request.has_images:
        raise InvalidRequest("echo cannot repeat a prompt with images", param="echo")
    if request.suffix:
        _check_infill(request)
    if request.prompt_logprobs is not None and not request.echo:
        raise InvalidRequest("prompt_logprobs is part of the echoed text: set echo too", param="prompt_logprobs")
    if request.max_tokens is not None and (request.min_tokens or 0) > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, more than max_tokens, which is {request.max_tokens}",
            param="min_tokens",
        )


def _check_infill(request: GenerateRequest) -> None:
    """A gap has a text on each side and nothing else."""
    if request.echo:
        raise InvalidRequest(
            "echo cannot be combined with suffix: put the prompt before the text yourself", param="echo"
        )
    if request.images:
        raise InvalidRequest("images cannot be combined with suffix", param="images")
    if request.overflow is not None and request.overflow.cuts:
        raise InvalidRequest("overflow cannot be combined with suffix: such a prompt is not cut", param="overflow")


def at_most(name: str, value: float, limit: float, unit: str = "") -> None:
    if value > limit:
        shown = f"{value:,} {unit}".strip()
        raise InvalidRequest(f"{name} is {shown}; the limit is {limit:,}", param=name)


_MAX_NAME_CHARS = 64
"""Longer than any name; the rest is not compared."""

_NEAR = 0.81
"""How similar two names must be: one letter added, missing or wrong, unless the name is short (`top_a`, `top_p`)."""

_FOREIGN_NAMES = {
    "dry_penalty_last_n": "dry_range",
    "enable_thinking": "chat_template_kwargs",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_strings": "stop",
    "thinking_budget": "max_reasoning_tokens",
}
"""What other APIs call our parameters."""


def build_request(raw: Mapping[str, Any]) -> GenerateRequest:
    """None means omitted. Unknown names are refused here; the request validates the values."""
    values = {name: value for name, value in raw.items() if value is not None}
    for name in values:
        if name not in PARAMETERS:
            raise Unsupported(f"{name} is not a parameter{did_you_mean(name, PARAMETERS)}", param=name)
    return GenerateRequest(**values)


def did_you_mean(name: str, honoured: Collection[str]) -> str:
    """The end of a sentence that suggests the closest name, or nothing: a wrong suggestion is worse than none."""
    ours = {foreign: own for foreign, own in _FOREIGN_NAMES.items() if own in honoured} | {own: own for own in honoured}
    near = difflib.get_close_matches(name[:_MAX_NAME_CHARS].lower(), ours, 1, _NEAR)
    return f"; did you mean {ours[near[0]]}?" if near else ""
