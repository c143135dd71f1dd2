"""A request for text, as the application states it: each field with its meaning, its values and who honours it.

This is the one table of request parameters. Validation, the JSON schemas and the OpenAPI document, the command-line
flags, the model cards and the guide are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from drivetrain.core.capabilities import Reproducibility
from drivetrain.core.constraint import Constraint, Constraints
from drivetrain.core.kinds import (
    Boolean,
    CountOrBoolean,
    Ids,
    Integer,
    Kind,
    ListOf,
    Number,
    OneOf,
    Pair,
    String,
    StringMap,
    TokenMap,
)
from drivetrain.core.messages import ImagePart, Images, Message, Messages
from drivetrain.core.receipt import ReceiptWish
from drivetrain.core.receipt_kind import Receipts
from drivetrain.core.sampling import DRY_BREAKERS
from drivetrain.core.tools import JsonObject, Tool, ToolChoice, ToolChoices, ToolMode, Tools

MAX_SEED = 2**63 - 1
MAX_SALT_CHARS = 256
MAX_BREAKERS = 16
MAX_BREAKER_BYTES = 40
"""As many as llama.cpp compares."""


def choice_seed(seed: int, index: int) -> int:
    """Of one choice. Seeds are signed and wrap around at 64 bits."""
    return (seed + index + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - (MAX_SEED + 1)


class Overflow(StrEnum):
    """What to do if the prompt and the answer do not fit into the context together."""

    ERROR = "error"
    TRUNCATE_LEFT = "truncate_left"
    TRUNCATE_MIDDLE = "truncate_middle"
    SHORTEN_ANSWER = "shorten_answer"
    """`max_tokens` is a wish: the answer gets what the prompt leaves."""

    @property
    def cuts(self) -> bool:
        """Whether a part of the prompt may be left out."""
        return self in {Overflow.TRUNCATE_LEFT, Overflow.TRUNCATE_MIDDLE}


class HonouredBy(StrEnum):
    """Who does the work. `WORKER` fields work on every engine, `TOKENS` ones on any engine that gives token ids, and
    `VOCABULARY` ones where the model's vocabulary has what they need."""

    WORKER = "worker"
    TOKENS = "tokens"
    VOCABULARY = "vocabulary"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`neutral` asks for nothing, so it is honoured everywhere."""

    by: HonouredBy
    kind: Kind
    meaning: str
    neutral: Any = None


def parameter(by: HonouredBy, kind: Kind, meaning: str, *, neutral: Any = None) -> Any:
    return field(default=None, metadata={"parameter": Parameter(by, kind, meaning, neutral)})


_WORKER, _TOKENS, _ENGINE = HonouredBy.WORKER, HonouredBy.TOKENS, HonouredBy.ENGINE
_SHARE = Number(0, 1, above=True)
_PENALTY = Number(0.01, 10)
"""Logits are divided by it: closer to 0 they would overflow."""
_ID_LISTS = ListOf(Ids(non_empty=True))
_BIAS = Number(-100, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Exactly one of `messages`, `prompt` and `prompt_token_ids`; every other field may be left out (None).

    Values are validated on construction: a wrong one raises `InvalidRequest`, and lists become tuples. What depends on
    the model is left to `core/parameters.check`. `dataclasses.replace` validates everything again, `having` only what
    it changes.
    """

    messages: tuple[Message, ...] | None = parameter(_WORKER, Messages(), "the chat so far")
    prompt: str | None = parameter(_WORKER, String(), "the whole prompt; no template is applied")
    suffix: str | None = parameter(
        HonouredBy.VOCABULARY,
        String(),
        "the text after the answer, which fills the gap between `prompt` and this",
        neutral="",
    )
    prompt_token_ids: tuple[int, ...] | None = parameter(_TOKENS, Ids(non_empty=True), "the prompt as token ids")
    images: tuple[ImagePart, ...] | None = parameter(_ENGINE, Images(), "the images for `prompt`, in order", neutral=())

    max_tokens: int | None = parameter(_WORKER, Integer(), "the most tokens to generate for each choice")
    min_tokens: int | None = parameter(_ENGINE, Integer(), "no stop takes effect before this many tokens", neutral=0)
    n: int | None = parameter(_ENGINE, Integer(1), "how many choices to generate", neutral=1)
    seed: int | None = parameter(
        _ENGINE, Integer(-MAX_SEED - 1, MAX_SEED), "same seed, same draws; choice i uses seed + i"
    )
    reproducibility: Reproducibility | None = parameter(  # noqa: RUF009 - it makes a field
        _ENGINE,
        OneOf(Reproducibility),
        "exact: refuse what would not give the same text for the same seed, whatever else runs",
        neutral=Reproducibility.BEST_EFFORT,
    )

    stop: tuple[str, ...] | None = parameter(
        _WORKER,
        ListOf(String(non_empty=True), or_one=True),
        "strings that end a choice and are left out of its text",
        neutral=(),
    )
    stop_token_ids: tuple[int, ...] | None = parameter(
        _TOKENS, Ids(), "token ids that end a choice, matched as ids", neutral=()
    )
    stop_sequences: tuple[tuple[int, ...], ...] | None = parameter(
        _TOKENS, _ID_LISTS, "stops as lists of token ids, matched as ids and as the text they spell", neutral=()
    )
    max_repetitions: int | None = parameter(
        _TOKENS,
        Integer(),
        "end a choice once the same 1 to 64 tokens have come this many times in a row; below 2, never",
        neutral=0,
    )
    ignore_eos: bool | None = parameter(_ENGINE, Boolean(), "ignore the model's own end tokens", neutral=False)
    include_stop_str_in_output: bool | None = parameter(_WORKER, Boolean(), "keep the stop in the text", neutral=False)

    constraint: Constraint | None = parameter(  # noqa: RUF009 - it makes a field
        _ENGINE, Constraints(), "what the text must be: JSON of a schema, any JSON, a regex, a choice or a grammar"
    )

    tools: tuple[Tool, ...] | None = parameter(_WORKER, Tools(), "the functions that the model may call", neutral=())
    tool_choice: ToolChoice | None = parameter(  # noqa: RUF009 - it makes a field
        _WORKER, ToolChoices(), "auto, none, required, or the function to call; by default, auto", neutral=ToolChoice()
    )
    parallel_tool_calls: bool | None = parameter(
        _WORKER, Boolean(), "whether an answer may have several calls", neutral=True
    )
    chat_template_kwargs: Mapping[str, Any] | None = parameter(
        _WORKER, JsonObject(), "variables of the model's chat template, such as enable_thinking", neutral={}
    )
    reasoning_effort: str | None = parameter(
        _WORKER, String(non_empty=True, max_chars=64), "how much to reason, in the words of the model's chat template"
    )
    max_reasoning_tokens: int | None = parameter(
        _ENGINE, Integer(), "the most tokens of reasoning in each choice; then it is closed"
    )

    echo: bool | None = parameter(_WORKER, Boolean(), "begin the text with the prompt", neutral=False)
    logprobs: int | None = parameter(
        _ENGINE, CountOrBoolean(), "return the tokens' logprobs, with this many alternatives each"
    )
    prompt_logprobs: int | None = parameter(_ENGINE, CountOrBoolean(), "the same for the prompt's tokens; needs echo")

    temperature: float | None = parameter(_ENGINE, Number(0, 2), "sampling temperature; 0 is greedy")
    top_p: float | None = parameter(
        _ENGINE, _SHARE, "sample from the smallest set of tokens with this total probability", neutral=1.0
    )
    top_k: int | None = parameter(_ENGINE, Integer(), "sample from the k likeliest tokens; 0 turns it off", neutral=0)
    min_p: float | None = parameter(
        _ENGINE, Number(0, 1), "drop tokens below this fraction of the likeliest token's probability", neutral=0.0
    )
    typical_p: float | None = parameter(_ENGINE, _SHARE, "locally typical sampling", neutral=1.0)
    top_h: float | None = parameter(_ENGINE, _SHARE, "entropy-bounded sampling", neutral=1.0)
    epsilon_cutoff: float | None = parameter(
        _ENGINE, Number(0, 0.999), "drop tokens below this probability", neutral=0.0
    )
    eta_cutoff: float | None = parameter(_ENGINE, Number(0, 0.999), "entropy-scaled cutoff", neutral=0.0)
    xtc_probability: float | None = parameter(
        _ENGINE,
        Number(0, 1),
        "XTC: the chance, in each step, that of the tokens from `xtc_threshold` on only the least likely is kept",
        neutral=0.0,
    )
    xtc_threshold: float | None = parameter(
        _ENGINE, Number(0, 1), "the probability from which a token counts as likely for XTC", neutral=0.1
    )
    repetition_penalty: float | None = parameter(_ENGINE, _PENALTY, "above 1 discourages repetition", neutral=1.0)
    encoder_repetition_penalty: float | None = parameter(
        _ENGINE, _PENALTY, "above 1 favours tokens from the prompt", neutral=1.0
    )
    presence_penalty: float | None = parameter(
        _ENGINE, Number(-2, 2), "subtracted from the logits of tokens already sampled", neutral=0.0
    )
    frequency_penalty: float | None = parameter(
        _ENGINE, Number(-2, 2), "subtracted once for each time a token was sampled", neutral=0.0
    )
    dry_multiplier: float | None = parameter(
        _ENGINE,
        Number(0, 100),
        "DRY: what a token loses that would continue a repetition, times `dry_base` for each token of it beyond "
        "`dry_allowed_length`",
        neutral=0.0,
    )
    dry_base: float | None = parameter(
        _ENGINE, Number(1, 10), "how much more DRY takes for each further token of a repetition", neutral=1.75
    )
    dry_allowed_length: int | None = parameter(
        _ENGINE, Integer(1), "the shortest repetition whose continuation DRY discourages", neutral=2
    )
    dry_range: int | None = parameter(_ENGINE, Integer(), "how many of the last tokens DRY compares; 0: all", neutral=0)
    dry_sequence_breakers: tuple[str, ...] | None = parameter(
        _ENGINE,
        ListOf(String(non_empty=True, max_bytes=MAX_BREAKER_BYTES), most=MAX_BREAKERS),
        "texts at which a sequence ends for DRY: no repetition reaches across them",
        neutral=DRY_BREAKERS,
    )
    no_repeat_ngram_size: int | None = parameter(_ENGINE, Integer(), "no n-gram of this size occurs twice", neutral=0)
    encoder_no_repeat_ngram_size: int | None = parameter(
        _ENGINE, Integer(), "no n-gram of this size is taken from the prompt", neutral=0
    )
    guidance_scale: float | None = parameter(_ENGINE, Number(0, 100), "classifier-free guidance", neutral=1.0)
    exponential_decay_length_penalty: tuple[int, float] | None = parameter(
        _ENGINE,
        Pair(Integer(), Number(0, 100, above=True), "a pair: start index and factor"),
        "favour the end token more and more from an index on",
    )
    logit_bias: Mapping[int, float] | None = parameter(
        _ENGINE, TokenMap(_BIAS), "added to the logits of these token ids", neutral={}
    )
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] | None = parameter(
        _ENGINE,
        ListOf(Pair(Ids(non_empty=True), _BIAS, "a pair of token ids and a number")),
        "added to the logit of a token that would complete the sequence",
        neutral=(),
    )
    bad_words_ids: tuple[tuple[int, ...], ...] | None = parameter(
        _ENGINE, _ID_LISTS, "id sequences that are never sampled", neutral=()
    )
    suppress_tokens: tuple[int, ...] | None = parameter(_ENGINE, Ids(), "ids that are never sampled", neutral=())
    begin_suppress_tokens: tuple[int, ...] | None = parameter(
        _ENGINE, Ids(), "ids that are never sampled first", neutral=()
    )

    receipt: ReceiptWish | None = parameter(  # noqa: RUF009 - it makes a field
        _TOKENS, Receipts(), "return a receipt of what made the answer; full: with all that a replay needs"
    )

    context_length: int | None = parameter(
        _WORKER, Integer(1), "context length for this request, if smaller than the model's"
    )
    overflow: Overflow | None = parameter(  # noqa: RUF009 - it makes a field
        _WORKER, OneOf(Overflow), "what to do if the prompt and answer do not fit"
    )
    timeout_s: float | None = parameter(_WORKER, Number(0, 1e9, above=True), "seconds until the request times out")
    request_id: str | None = parameter(_WORKER, String(non_empty=True), "the caller's id for this request")
    cache_salt: str | None = parameter(
        _ENGINE,
        String(non_empty=True, max_chars=MAX_SALT_CHARS),
        "prompt beginnings are shared only between requests with the same salt",
    )
    trace_context: Mapping[str, str] | None = parameter(_WORKER, StringMap(), "the caller's trace headers")

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            judged = _KINDS[name].judge(name, value)
            if judged is not value:
                object.__setattr__(self, name, judged)

    @classmethod
    def of_judged(cls, values: Mapping[str, Any]) -> GenerateRequest:
        """From values that their kinds have already judged, so that nothing is judged twice."""
        request = object.__new__(cls)
        for name in _NAMES:
            object.__setattr__(request, name, values.get(name))
        return request

    def having(self, **changes: Any) -> GenerateRequest:
        """A copy with these fields changed; None clears one. Only they are judged."""
        judged = {name: None if value is None else _KINDS[name].judge(name, value) for name, value in changes.items()}
        return self.of_judged({**self.given(), **judged})

    def given(self) -> dict[str, Any]:
        """The fields that were not left out."""
        return {name: value for name, value in zip(_NAMES, _values(self), strict=True) if value is not None}

    @property
    def has_images(self) -> bool:
        return bool(self.images) or any(message.images for message in self.messages or ())

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """Those that the model is told of."""
        if self.tool_choice is not None and self.tool_choice.mode is ToolMode.NONE:
            return ()
        return self.tools or ()


_KINDS: Mapping[str, Kind] = {f.name: f.metadata["parameter"].kind for f in fields(GenerateRequest)}
_NAMES = tuple(_KINDS)
_values = attrgetter(*_NAMES)
