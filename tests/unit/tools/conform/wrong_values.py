"""Wrong servers for the cases of parameters, refusals, logprobs and usage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from toy_rules import CHAT, COMPLETIONS, CONTEXT, DETOKENIZE, EMBEDDINGS, RERANK, TOKENIZE
from toy_server import Faults
from wrongs import Make, Wrong, asked, choices, ignores, reword, says, usage

from drivetrain.tools.conform.cases import refusals
from drivetrain.tools.conform.survey import UNKNOWN_FIELD

# Parameters


def _changing_text() -> Faults:
    numbers = itertools.count()
    return choices(lambda choice, body: reword(choice, lambda text: f"{text}{next(numbers)}"))()


PARAMETERS = (
    Wrong(
        "always another text",
        _changing_text,
        {"parameters.greedy_repeats": "different texts", "parameters.seed_repeats": "same seed"},
    ),
    Wrong(
        "always cold",
        asked(lambda b: b.update(temperature=0)),
        {"parameters.temperature": "is ignored", "parameters.seeds_differ": "same text"},
    ),
    Wrong("no seeds", ignores("seed"), {"parameters.seed_repeats": "same seed"}),
    Wrong("one seed", asked(lambda b: b.update(seed=1)), {"parameters.seeds_differ": "four seeds"}),
    Wrong(
        "no biases, no penalties",
        ignores("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        says("is ignored", "parameters", "logit_bias_forces", "presence_penalty", "frequency_penalty")
        | {"parameters.repetition_penalty": "is ignored"},
    ),
    Wrong(
        "no cut-offs",
        ignores("top_k", "top_p", "min_p"),
        says("greedy is", "parameters", "top_k", "top_p", "min_p"),
    ),
    Wrong(
        "no lengths, no ids",
        ignores("min_tokens", "ignore_eos", "overflow", "return_token_ids"),
        {
            "parameters.min_tokens": "has 1 tokens",
            "parameters.ignore_eos": "with ignore_eos",
            "parameters.overflow": "do not fit",
            "parameters.return_token_ids": "is ignored",
        },
    ),
    Wrong(
        "nothing is banned",
        asked(lambda b: -100 in b.get("logit_bias", {}).values() and b.pop("logit_bias")),
        {"parameters.logit_bias_bans": "banned token"},
    ),
)

# Refusals

_RULES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/rerank": RERANK,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
_GOOD: dict[str, Any] = {
    "model": "toy",
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
    "query": "Hi",
    "documents": ["Hi"],
    "tokens": [65],
}


def _repair(path: str, body: Any) -> Any:
    """Take out what is wrong, but for fields of no API, and put in what is missing, without a word."""
    rules = _RULES.get(path)
    if rules is None or not isinstance(body, dict):
        return body
    kept = {name: value for name, value in body.items() if name in rules and value is not None}
    kept = {name: value for name, value in kept.items() if rules[name](value)}
    kept |= {name: value for name, value in body.items() if name == UNKNOWN_FIELD}
    if path == "/tokenize":
        return kept if kept.keys() & {"prompt", "messages"} else {"prompt": "Hi"}
    good = {name: value for name, value in _GOOD.items() if name in rules}
    if "prompt_token_ids" in kept:
        good.pop("prompt")
    if kept.get("max_tokens") == 0 or kept.get("min_tokens", 0) > kept.get("max_tokens", CONTEXT):
        kept.pop("max_tokens")
    for name, needs in (("stream_options", "stream"), ("top_logprobs", "logprobs")):
        if not kept.get(needs):
            kept.pop(name, None)
    return good | kept


_ALL_REFUSALS = {case.id: "was accepted" for case in refusals.CASES if case.id != "refusals.temperature_nan"}

REPAIRS = (
    Wrong(
        "repairs",
        lambda: Faults(request=_repair),
        _ALL_REFUSALS
        | says("was accepted", "chat", "messages_null", "messages_string", "messages_empty", "messages_number")
        | says("was accepted", "chat", "messages_no_role", "messages_unknown_role", "messages_content")
        | says("was accepted", "chat", "messages_part")
        | says("was accepted", "completions", "prompt_empty_list", "prompt_empty_ids")
        | says("was accepted", "completions", "prompt_number", "prompt_mixed", "prompt_negative_id", "prompt_huge_id")
        | says("was accepted", "stops", "refuse_empty", "refuse_empty_in_list", "refuse_number")
        | says("was accepted", "parameters", "unused", "logit_bias_beyond")
        | says("was accepted", "logprobs", "too_many", "completions_too_many")
        | {"streaming.options_alone": "was accepted", "errors.over_with_answer": "was accepted"}
        | says("was accepted", "embeddings", "refuse_input_missing", "refuse_input_number", "refuse_input_empty_list")
        | says("was accepted", "embeddings", "refuse_input_mixed", "refuse_input_huge_id", "refuse_format")
        | says("was accepted", "embeddings", "refuse_dimensions_zero")
        | says(
            "was accepted", "rerank", "refuse_documents_missing", "refuse_documents_empty", "refuse_documents_number"
        )
        | says("was accepted", "rerank", "refuse_query_missing", "refuse_top_n_zero")
        | says("was accepted", "tokens", "refuse_nothing", "refuse_number", "refuse_no_tokens", "refuse_negative")
        | says("was accepted", "tokens", "refuse_huge", "refuse_string"),
    ),
    Wrong(
        "takes any field",
        ignores(UNKNOWN_FIELD),
        {"parameters.unknown": "was accepted"},
    ),
    Wrong(
        "embeddings take any field",
        asked(lambda b: "input" in b and b.pop(UNKNOWN_FIELD, None)),
        {"embeddings.refuse_unknown": "was accepted"},
    ),
    Wrong(
        "rerank takes any field",
        asked(lambda b: "query" in b and b.pop(UNKNOWN_FIELD, None)),
        {"rerank.refuse_unknown": "was accepted"},
    ),
)

# Logprobs


def _logprobs(change: Callable[[list[Any], Any], Any]) -> Make:
    """Each list of entries of a chat is changed in place."""

    def each(choice: dict[str, Any], body: Any) -> None:
        if choice.get("logprobs") and "content" in choice["logprobs"]:
            change(choice["logprobs"]["content"], body)

    return choices(each)


def _lists(change: Callable[[dict[str, Any], Any], Any]) -> Make:
    """The lists of a completion's logprobs are changed in place."""

    def each(choice: dict[str, Any], body: Any) -> None:
        if choice.get("logprobs") and "tokens" in choice["logprobs"]:
            change(choice["logprobs"], body)

    return choices(each)


def _warm(entries: list[Any], body: Any) -> None:
    heat = 1 + body.get("temperature", 1)
    for entry in entries:
        for one in (entry, *entry["top_logprobs"]):
            one["logprob"] /= heat


def _each_entry(name: str, value: Any) -> Callable[[list[Any], Any], Any]:
    def change(entries: list[Any], body: Any) -> None:
        for entry in entries:
            entry[name] = value

    return change


def _likely(entries: list[Any], body: Any) -> None:
    for entry in entries:
        for one in (entry, *entry["top_logprobs"]):
            one["logprob"] = -0.01


LOGPROBS = (
    Wrong(
        "no logprobs",
        ignores("logprobs", "top_logprobs"),
        says("are ignored", "logprobs", "shape", "completions_shape", "completions_zero"),
    ),
    Wrong(
        "four alternatives",
        _logprobs(lambda e, b: e[0]["top_logprobs"].pop()),
        {"logprobs.shape": "4 alternatives"},
    ),
    Wrong(
        "an entry is lost",
        _logprobs(lambda e, b: e.pop()),
        {"logprobs.count": "5 entries for 6", "logprobs.streamed": "whole", "logprobs.bytes": "spell"},
    ),
    Wrong("other bytes", _logprobs(_each_entry("bytes", [120])), {"logprobs.bytes": "the bytes spell"}),
    Wrong(
        "chosen ones are unlikely",
        _logprobs(_each_entry("logprob", -9.0)),
        {"logprobs.likeliest": "was chosen with"},
    ),
    Wrong("all are likely", _logprobs(_likely), {"logprobs.probabilities": "add up to"}),
    Wrong("warmed logprobs", _logprobs(_warm), {"logprobs.raw": "at temperature 0 and"}),
    Wrong(
        "logprobs for all",
        choices(lambda c, b: c["logprobs"] or c.update(logprobs={"content": [{}]})),
        {"logprobs.off": "without being asked", "chat.shape": "must be null"},
    ),
    Wrong(
        "lists of other lengths",
        _lists(lambda found, b: found["tokens"].pop()),
        {"logprobs.completions_shape": "lists of"},
    ),
    Wrong(
        "alternatives for nothing",
        _lists(lambda found, b: found["top_logprobs"][-1].update(x=-1.0, y=-2.0)),
        {"logprobs.completions_zero": "has the alternatives"},
    ),
    Wrong(
        "offsets are 0",
        _lists(lambda found, b: found.update(text_offset=[0] * len(found["tokens"]))),
        {"logprobs.completions_offsets": "has the offset 0"},
    ),
)

# Usage


def _count_all(usage: dict[str, int], body: Any) -> None:
    usage["completion_tokens"] = body.get("max_tokens", 8)
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _count_one(usage: dict[str, int], body: Any) -> None:
    usage["completion_tokens"] //= body.get("n", 1)


USAGE = (
    Wrong("a total of its own", usage(lambda u, b: u.update(total_tokens=1)), {"usage.adds_up": "is not 1"}),
    Wrong(
        "one prompt length for all",
        usage(lambda u, b: u.update(prompt_tokens=7)),
        {"usage.streamed": "streamed", "usage.prompt_grows": "twice", "usage.prompt_ids": "/tokenize"},
    ),
    Wrong("one choice counts", usage(_count_one), {"usage.several": "counted as 5"}),
    Wrong("max_tokens counts", usage(_count_all), {"usage.stopped": "all 24 tokens"}),
)
