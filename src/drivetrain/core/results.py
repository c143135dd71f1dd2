"""What comes back: usage, metrics, logprobs, choices and the whole result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from drivetrain.core.answer import AnswerMessage, ToolCall
from drivetrain.core.receipt import Receipt


class FinishReason(StrEnum):
    """Why a choice ended. A choice cut short by an error has no reason: the error is its ending."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    """As `STOP`, with at least one call that has no flaw."""


MatchedStop = str | int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """`completion_tokens` counts sampled tokens up to and including the one that ended each choice.

    `told` means that another server gave these figures. If it gives neither figures nor token ids, the pieces of text
    that came are counted, and the prompt's tokens are unknown: 0. `reasoning_tokens` are among the `completion_tokens`.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    told: bool = False
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token_id: int
    token: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of the text: its logprob in the raw distribution and where its text begins.

    `text_offset` counts characters of the choice's text, echo included. `logprob` is None only for the first
    token of an echoed prompt, which nothing predicts.
    """

    token_id: int
    token: str
    bytes: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on one device: used by tensors (on a CPU: by this process), cached by the allocator, in total, and free."""

    device: str
    allocated_bytes: int
    cached_bytes: int
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What an engine counts by itself, from its start on. None: it does not know, or does nothing of the kind."""

    preemptions: int = 0
    """How often a running request gave up its memory and was recomputed."""
    mask_s: float | None = None
    """The processor's time to compute what grammars allow next."""
    accepted_tokens: int | None = None
    """Proposed by the engine to itself, so that several are computed at once, and right."""
    refused_tokens: int | None = None
    """Proposed, and wrong."""

    def plus(self, other: EngineCounts) -> EngineCounts:
        return self._with(other, lambda a, b: b if a is None else a if b is None else a + b)

    def since(self, earlier: EngineCounts) -> EngineCounts:
        return self._with(earlier, lambda a, b: a if a is None or b is None else max(0, a - b))

    def or_more(self, other: EngineCounts) -> EngineCounts:
        return self._with(other, lambda a, b: b if a is None else a if b is None else max(a, b))

    def _with(self, other: EngineCounts, joined: Callable[[Any, Any], Any]) -> EngineCounts:
        names = [one.name for one in fields(self)]
        return EngineCounts(**{name: joined(getattr(self, name), getattr(other, name)) for name in names})


NOTHING_COUNTED = EngineCounts()


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The blocks of a KV cache: held by requests, of these by several, kept for later prompts, and in all."""

    held: int
    shared: int
    kept: int
    total: int

    @property
    def free(self) -> int:
        return self.total - self.held - self.kept


@dataclass(frozen=True, slots=True)
class ComputeThreads:
    """Threads that compute, and as many as would if no other process wanted the cores."""

    now: int
    most: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """The times of one request in seconds, and the worker's memory at its end.

    `tokens_per_s` covers the time from the first token to the last; None if fewer than two tokens came or no time
    passed.
    """

    queue_s: float = 0.0
    prompt_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0
    tokens_per_s: float | None = None
    started_at: float = 0.0
    memory: tuple[DeviceMemory, ...] = ()
    average_memory: tuple[DeviceMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """`token_ids` are all the sampled ids, the one that ended the choice included; `logprobs` cover the text.

    `message` is what the answer to a chat says: content, reasoning and calls. It is None if the text is all content.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    matched_stop: MatchedStop | None = None
    message: AnswerMessage | None = None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Those that the answer to a chat makes."""
        return self.message.tool_calls if self.message is not None else ()

    def __str__(self) -> str:
        """Short enough for a screen."""
        said = self.text if self.message is None else self.message.content or ""
        shown = said if len(said) <= SHOWN_CHARS else f"{said[:SHOWN_CHARS]}… ({len(said):,} characters)"
        calls = [f"{call.name}({call.arguments[:SHOWN_CHARS]})" for call in self.tool_calls[:SHOWN_PARTS]]
        return "\n".join(filter(None, (f"[{self.index}] {self.finish_reason or 'not finished'}", shown, *calls)))


SHOWN_CHARS, SHOWN_PARTS = 800, 5
"""What `print` shows of an answer's text, and how many choices and calls."""


@dataclass(frozen=True, slots=True)
class Partial:
    """What a failed request got done: every choice it had begun, and the usage so far."""

    choices: tuple[Choice, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Result:
    request_id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    metrics: Metrics
    prompt_token_ids: tuple[int, ...] | None = None
    truncated_tokens: int = 0
    receipt: Receipt | None = None
    """If the request asked for one, and the answer is whole."""

    @property
    def text(self) -> str:
        return self.choices[0].text

    def __str__(self) -> str:
        """Short enough for a screen; `repr` has all."""
        used = f"{self.usage.prompt_tokens:,} + {self.usage.completion_tokens:,} tokens"
        more = len(self.choices) - SHOWN_PARTS
        rest = [f"and {more} more choices"] if more > 0 else []
        head = f"{self.model}: {used} in {self.metrics.total_s:.2f} s"
        return "\n".join([head, *map(str, self.choices[:SHOWN_PARTS]), *rest])


@dataclass(frozen=True, slots=True)
class Embeddings:
    model: str
    vectors: tuple[tuple[float, ...], ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ranking:
    """`scores` says for each document, in the order in which they were sent, how well it fits: from 0 to 1."""

    model: str
    scores: tuple[float, ...]
    usage: Usage

    @property
    def order(self) -> tuple[int, ...]:
        """The indices of the documents, the best one first; of equal ones, the one that was sent first."""
        return tuple(sorted(range(len(self.scores)), key=lambda index: -self.scores[index]))
