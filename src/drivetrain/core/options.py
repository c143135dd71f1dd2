"""The keywords of `Worker.generate` and `Worker.stream`, for editors and type checkers.

They are the fields of `GenerateRequest`, with what each one takes. What they mean is in that table; a test holds the
two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from drivetrain.core.capabilities import Reproducibility
from drivetrain.core.constraint import Constraint
from drivetrain.core.messages import ImagePart, Message
from drivetrain.core.receipt import ReceiptWish
from drivetrain.core.request import Overflow
from drivetrain.core.tools import Tool, ToolChoice

ImageGiven = ImagePart | str | bytes | PathLike[str]
"""A part of a message, or a path, a URL, a data URI or the bytes themselves."""


class GenerateOptions(TypedDict, total=False):
    """None is the same as leaving it out."""

    messages: Sequence[Message | Mapping[str, Any]] | None
    prompt: str | None
    suffix: str | None
    prompt_token_ids: Sequence[int] | None
    images: Sequence[ImageGiven] | None
    max_tokens: int | None
    min_tokens: int | None
    n: int | None
    seed: int | None
    reproducibility: Reproducibility | Literal["exact", "best_effort"] | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    stop_sequences: Sequence[Sequence[int]] | None
    max_repetitions: int | None
    ignore_eos: bool | None
    include_stop_str_in_output: bool | None
    constraint: Constraint | Mapping[str, Any] | type[Any] | None
    tools: Sequence[Tool | Mapping[str, Any]] | None
    tool_choice: ToolChoice | str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_effort: str | None
    max_reasoning_tokens: int | None
    echo: bool | None
    logprobs: int | bool | None
    prompt_logprobs: int | bool | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    typical_p: float | None
    top_h: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    repetition_penalty: float | None
    encoder_repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_range: int | None
    dry_sequence_breakers: Sequence[str] | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    guidance_scale: float | None
    exponential_decay_length_penalty: tuple[int, float] | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    sequence_bias: Sequence[tuple[Sequence[int], float]] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    receipt: bool | Literal["full"] | ReceiptWish | None
    context_length: int | None
    overflow: Overflow | Literal["error", "truncate_left", "truncate_middle", "shorten_answer"] | None
    timeout_s: float | None
    request_id: str | None
    cache_salt: str | None
    trace_context: Mapping[str, str] | None
