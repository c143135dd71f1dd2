"""Every request field in one table: its meaning, its range, who honours it. A field is honoured or refused here.

`check` is the first thing that happens to a request. It needs nothing but the request and the capabilities, looks at
sizes before contents, and so a bad request never reaches a template, a tokenizer or an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from drivetrain.core.budget import check_answer
from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.request import GenerateRequest, Overflow

MAX_INT = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_SALT_CHARS = 256

Rule = Callable[[str, Any], None]


class HonouredBy(StrEnum):
    """Who does the work. The worker's fields hold on every engine, `TOKENS` ones where it gives token ids."""

    WORKER = "worker"
    TOKENS = "tokens"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`neutral` asks for nothing, so it is honoured everywhere."""

    by: HonouredBy
    rule: Rule
    meaning: str
    neutral: Any = None


def integer(low: int, high: int = MAX_INT) -> Rule:
    def rule(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(f"{name} must be an integer, not {_short(value)}", param=name)
        if not low <= value <= high:
            raise InvalidRequest(f"{name} is {_short(value)}; it must be from {low} to {high}", param=name)

    return rule


def number(low: float, high: float, *, above: bool = False) -> Rule:
    """A finite number from `low` to `high`; with `above`, `low` itself is refused."""

    def rule(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidRequest(f"{name} must be a number, not {_short(value)}", param=name)
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            bounds = f"above {low:g} and up to {high:g}" if above else f"from {low:g} to {high:g}"
            raise InvalidRequest(f"{name} is {_short(value)}; it must be {bounds}", param=name)

    return rule


def boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {_short(value)}", param=name)


def string(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {_short(value)}", param=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} holds a lone surrogate, which is not text", param=name) from None


def non_empty_string(name: str, value: Any) -> None:
    string(name, value)
    if not value:
        raise InvalidRequest(f"{name} is an empty string", param=name)


def salt(name: str, value: Any) -> None:
    non_empty_string(name, value)
    _at_most(name, len(value), MAX_SALT_CHARS, "characters")


def tuple_of(rule: Rule, *, non_empty: bool = False) -> Rule:
    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, (tuple, list)):
            raise InvalidRequest(f"{name} must be a list, not {_short(value)}", param=name)
        if non_empty and not value:
            raise InvalidRequest(f"{name} is empty", param=name)
        for i, item in enumerate(value):
            rule(f"{name}[{i}]", item)

    return check_all


def token_map(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must map token ids to numbers, not {_short(value)}", param=name)
    bounded = number(-100, 100)
    for key, bias in value.items():
        token_id(name, key)
        bounded(name, bias)


def sequence_biases(name: str, value: Any) -> None:
    tuple_of(_anything)(name, value)
    for i, pair in enumerate(value):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidRequest(f"{name}[{i}] must be a pair of token ids and a number", param=name)
        id_list(non_empty=True)(f"{name}[{i}][0]", pair[0])
        number(-100, 100)(f"{name}[{i}][1]", pair[1])


def decay(name: str, value: Any) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InvalidRequest(f"{name} must be a pair: start index and factor", param=name)
    integer(0)(f"{name}[0]", value[0])
    number(0, 100, above=True)(f"{name}[1]", value[1])


def overflow(name: str, value: Any) -> None:
    if value not in tuple(Overflow):
        raise InvalidRequest(f"{name} is {_short(value)}; it must be one of {', '.join(Overflow)}", param=name)


def string_map(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(x, str) for pair in value.items() for x in pair):
        raise InvalidRequest(f"{name} must map strings to strings", param=name)


def _anything(name: str, value: Any) -> None:
    """Checked where it is parsed (`core/messages.py`)."""


token_id = integer(0)


def id_list(*, non_empty: bool = False) -> Rule:
    """Token ids; a list of hundreds of thousands of good ones is judged in milliseconds."""
    each = tuple_of(token_id, non_empty=non_empty)

    def rule(name: str, value: Any) -> None:
        ints = isinstance(value, (tuple, list)) and set(map(type, value)) == {int}
        if not ints or min(value) < 0 or max(value) > MAX_INT:
            each(name, value)

    return rule


_WORKER, _TOKENS, _ENGINE = HonouredBy.WORKER, HonouredBy.TOKENS, HonouredBy.ENGINE

PARAMETERS: Mapping[str, Parameter] = {
    "messages": Parameter(_WORKER, tuple_of(_anything, non_empty=True), "the chat so far"),
    "prompt": Parameter(_WORKER, string, "a prompt that the application wrote whole"),
    "prompt_token_ids": Parameter(_TOKENS, id_list(non_empty=True), "the prompt as token ids"),
    "images": Parameter(_ENGINE, tuple_of(_anything), "images that belong to `prompt`, in order", neutral=()),
    "max_tokens": Parameter(_WORKER, integer(0), "the most tokens to sample for each choice"),
    "min_tokens": Parameter(_ENGINE, integer(0), "no stop of any kind before so many tokens", neutral=0),
    "n": Parameter(_ENGINE, integer(1), "how many choices", neutral=1),
    "seed": Parameter(_ENGINE, integer(-MAX_SEED - 1, MAX_SEED), "same seed, same text; choice i uses seed + i"),
    "stop": Parameter(_WORKER, tuple_of(non_empty_string), "strings that end a choice; not in its text", neutral=()),
    "stop_token_ids": Parameter(_TOKENS, id_list(), "ids that end a choice, compared as ids", neutral=()),
    "stop_sequences": Parameter(
        _TOKENS,
        tuple_of(id_list(non_empty=True)),
        "stop words given as id lists, matched as ids and as the text they spell",
        neutral=(),
    ),
    "ignore_eos": Parameter(_ENGINE, boolean, "the model's own end tokens do not end a choice", neutral=False),
    "include_stop_str_in_output": Parameter(_WORKER, boolean, "keep the stop in the text", neutral=False),
    "echo": Parameter(_WORKER, boolean, "the text begins with the prompt", neutral=False),
    "logprobs": Parameter(_ENGINE, integer(0), "logprobs of the text's tokens, with so many alternatives"),
    "prompt_logprobs": Parameter(_ENGINE, integer(0), "the same for the prompt's tokens; needs echo"),
    "temperature": Parameter(_ENGINE, number(0, 2), "0 is greedy"),
    "top_p": Parameter(_ENGINE, number(0, 1, above=True), "smallest set with this probability", neutral=1.0),
    "top_k": Parameter(_ENGINE, integer(0), "the k likeliest; 0 is off", neutral=0),
    "min_p": Parameter(_ENGINE, number(0, 1), "drop tokens below this share of the likeliest", neutral=0.0),
    "typical_p": Parameter(_ENGINE, number(0, 1, above=True), "locally typical sampling", neutral=1.0),
    "top_h": Parameter(_ENGINE, number(0, 1, above=True), "entropy-bounded sampling", neutral=1.0),
    "epsilon_cutoff": Parameter(_ENGINE, number(0, 0.999), "drop tokens below this probability", neutral=0.0),
    "eta_cutoff": Parameter(_ENGINE, number(0, 0.999), "entropy-scaled cut-off", neutral=0.0),
    "repetition_penalty": Parameter(
        _ENGINE, number(0, 10, above=True), "above 1 discourages what was said", neutral=1.0
    ),
    "encoder_repetition_penalty": Parameter(
        _ENGINE, number(0, 10, above=True), "above 1 favours tokens of the prompt", neutral=1.0
    ),
    "presence_penalty": Parameter(_ENGINE, number(-2, 2), "taken off tokens already sampled", neutral=0.0),
    "frequency_penalty": Parameter(_ENGINE, number(-2, 2), "taken off for each time sampled", neutral=0.0),
    "no_repeat_ngram_size": Parameter(_ENGINE, integer(0), "no n-gram of this size twice", neutral=0),
    "encoder_no_repeat_ngram_size": Parameter(_ENGINE, integer(0), "none of the prompt's n-grams", neutral=0),
    "guidance_scale": Parameter(_ENGINE, number(0, 100), "classifier-free guidance", neutral=1.0),
    "exponential_decay_length_penalty": Parameter(_ENGINE, decay, "from an index on, favour EOS more and more"),
    "logit_bias": Parameter(_ENGINE, token_map, "added to the logits of token ids", neutral={}),
    "sequence_bias": Parameter(_ENGINE, sequence_biases, "added where an id sequence would complete", neutral=()),
    "bad_words_ids": Parameter(_ENGINE, tuple_of(id_list(non_empty=True)), "id sequences never sampled", neutral=()),
    "suppress_tokens": Parameter(_ENGINE, id_list(), "ids never sampled", neutral=()),
    "begin_suppress_tokens": Parameter(_ENGINE, id_list(), "ids not sampled first", neutral=()),
    "context_length": Parameter(_WORKER, integer(1), "a smaller context than the model's, for this request"),
    "overflow": Parameter(_WORKER, overflow, "what to do when prompt and answer do not fit"),
    "timeout_s": Parameter(_WORKER, number(0, 1e9, above=True), "seconds until the request is ended"),
    "request_id": Parameter(_WORKER, non_empty_string, "the caller's name for this request"),
    "cache_salt": Parameter(_ENGINE, salt, "beginnings of prompts are shared only under an equal salt"),
    "trace_context": Parameter(_WORKER, string_map, "the caller's trace headers"),
}

WORKER_PARAMETERS = frozenset(name for name, p in PARAMETERS.items() if p.by is HonouredBy.WORKER)
TOKEN_PARAMETERS = frozenset(name for name, p in PARAMETERS.items() if p.by is HonouredBy.TOKENS)
ENGINE_PARAMETERS = frozenset(name for name, p in PARAMETERS.items() if p.by is HonouredBy.ENGINE)


_INSTEAD = "its capabilities list what is, and another engine may take it"
_NAMES = tuple(field.name for field in fields(GenerateRequest))
_values = attrgetter(*_NAMES)


def check(request: GenerateRequest, capabilities: Capabilities) -> None:
    """Raise `InvalidRequest` or `Unsupported`, naming the field, unless all of the request can be honoured."""
    stated = {name: value for name, value in zip(_NAMES, _values(request), strict=True) if value is not None}
    _check_sizes(stated, capabilities.limits)
    for name, value in stated.items():
        parameter = PARAMETERS[name]
        parameter.rule(name, value)
        if name not in capabilities.parameters and value != parameter.neutral:
            raise Unsupported(f"{name} is not supported by this model and engine; {_INSTEAD}", param=name)
    _check_input(request, capabilities)
    _check_limits(request, capabilities)
    _check_combinations(request)
    check_answer(request, capabilities, len(request.prompt_token_ids or ()))


_ID_FIELDS = (
    "logit_bias", "sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "stop_token_ids",
    "stop_sequences", "stop", "images",
)  # fmt: skip


def _check_sizes(stated: Mapping[str, Any], limits: Limits) -> None:
    """How long each list is, before anything in it is looked at."""
    for name, value in stated.items():
        if not isinstance(value, (tuple, list, Mapping)):
            continue
        if name in _ID_FIELDS:
            level = [value]
            while level:
                _at_most(name, sum(map(len, level)), limits.max_ids, "entries")
                level = [item for items in level for item in items if isinstance(item, (tuple, list))]
        elif name == "prompt_token_ids":
            _at_most(name, len(value), limits.max_prompt_chars, "entries")
        elif name == "messages":
            _at_most(name, len(value), limits.max_messages, "entries")


def _check_input(request: GenerateRequest, capabilities: Capabilities) -> None:
    inputs = {
        "messages": request.messages,
        "prompt": request.prompt,
        "prompt_token_ids": request.prompt_token_ids,
    }
    given = [name for name, value in inputs.items() if value is not None]
    if len(given) != 1:
        what = " and ".join(given) or "none of them was given"
        raise InvalidRequest(
            f"exactly one of messages, prompt and prompt_token_ids is needed, not {what}",
            param=given[-1] if given else "messages",
        )
    if not capabilities.generation:
        raise Unsupported("this model gives embeddings, not text", param=given[0])
    if request.messages is not None and not capabilities.chat:
        raise Unsupported("this model takes a prompt, not messages", param="messages")
    if request.has_images and not capabilities.vision:
        raise Unsupported("this model does not see images", param="images" if request.images else "messages")
    if request.images and request.prompt is None:
        raise InvalidRequest("images goes with prompt; put those of a chat into its messages", param="images")


def _check_limits(request: GenerateRequest, capabilities: Capabilities) -> None:
    limits = capabilities.limits
    _at_most("n", request.n or 1, limits.max_n)
    stops = len(request.stop or ()) + len(request.stop_sequences or ())
    _at_most("stop", stops, limits.max_stops, "entries")
    _at_most("stop", max(map(len, request.stop or ()), default=0), limits.max_stop_chars, "characters")
    _at_most("stop_token_ids", len(request.stop_token_ids or ()), limits.max_stops, "entries")
    _at_most("logprobs", request.logprobs or 0, limits.max_logprobs)
    _at_most("prompt_logprobs", request.prompt_logprobs or 0, limits.max_logprobs)
    _at_most("timeout_s", request.timeout_s or 0, limits.max_timeout_s)
    _at_most("prompt", len(request.prompt or ""), limits.max_prompt_chars, "characters")
    chars = sum(len(message.text) for message in request.messages or ())
    _at_most("messages", chars, limits.max_prompt_chars, "characters")
    images = len(request.images or ()) + sum(len(message.images) for message in request.messages or ())
    _at_most("images" if request.images else "messages", images, limits.max_images, "images")


def _check_combinations(request: GenerateRequest) -> None:
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest("max_tokens is 0; that makes sense only with echo", param="max_tokens")
    if request.echo and request.messages is not None:
        raise InvalidRequest("echo goes with prompt, not with messages", param="echo")
    if request.echo and request.has_images:
        raise InvalidRequest("echo cannot repeat a prompt with images", param="echo")
    if request.prompt_logprobs is not None and not request.echo:
        raise InvalidRequest("prompt_logprobs is part of the echoed text: set echo too", param="prompt_logprobs")
    if request.max_tokens is not None and (request.min_tokens or 0) > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, more than max_tokens {request.max_tokens}", param="min_tokens"
        )


def _at_most(name: str, value: float, limit: float, unit: str = "") -> None:
    if value > limit:
        shown = f"{value:,} {unit}".strip()
        raise InvalidRequest(f"{name} is {shown}; the limit is {limit:,}", param=name)


def _short(value: object) -> str:
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return "an integer of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
