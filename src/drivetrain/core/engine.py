"""The engine contract: load, describe, generate, close. Engines speak token ids and know no text pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import DeviceMemory, FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.core.tokenizer import Tokenizer

Progress = Callable[[str, float | None], None]
"""Called with what is being done and the share that is done (None: unknown)."""


class WeightsFormat(StrEnum):
    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    NONE = "none"


class Derived(Protocol):
    """Folders with what engines make of weights, kept with the weights."""

    def find(self, kind: str) -> Path | None:
        """The folder, if it was made."""
        ...

    def make(self, kind: str, build: Callable[[Path], None]) -> Path:
        """The folder, filled by `build` if it was not there: once, atomically, also with other processes at it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What to load. `path` is a folder or a file; `options` are the settings that this engine declares.

    `catalogue_sampling` is what the catalogue recommends where the weights come without sampling; engines pass over it.
    """

    name: str
    path: Path
    format: WeightsFormat
    options: Mapping[str, Any] = field(default_factory=dict)
    derived: Derived | None = None
    catalogue_sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What was loaded. `default_sampling` is what came with the weights (`generation_config.json`)."""

    engine: str
    capabilities: Capabilities
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    vocab_size: int
    """Ids from 0 up to here (exclusive) are taken in prompts and biases."""
    architecture: str
    device: str
    dtype: str
    encoder_decoder: bool = False
    image_token: str | None = None
    embedding_size: int = 0
    pooling: str | None = None
    stop: tuple[str, ...] = ()
    """Stop strings that come with the model, where the prompt form names none."""
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a user of this model should know, in words: what its files ask for and is not honoured."""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an engine can tell of a model before it loads any weight; None: not known then.

    `missing` says in words what could not be told, and what to do about it.
    """

    tokenizer: Tokenizer
    architecture: str
    capabilities: Capabilities | None
    context_length: int | None
    eos_ids: frozenset[int]
    default_sampling: Mapping[str, Any]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Media:
    """A prompt with images, for the model's own processor. The images are decoded and within the limits.

    They are let go once the engine has told the prompt's ids: it must not come back to them after that. An engine
    without token ids gets every prompt so, and no images.
    """

    prompt: Prompt
    images: Collection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Everything settled: the engine fills in no default of its own.

    With `media`, `prompt_ids` is empty and the engine's first item reports the expanded prompt.
    `max_tokens` None means the rest of the context, which then only the engine can know; one that is a
    default was not named by the caller, and behind a prompt with media it gives way to the room that is left.
    `stop_ids` end a choice; they are suppressed until `min_tokens` ids were sampled.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    media: Media | None = None
    context_length: int
    max_tokens: int | None
    max_tokens_is_default: bool = False
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = field(default_factory=Sampling)
    seeds: tuple[int, ...]
    """One a choice: its length is `n`."""
    seeded: bool = False
    """Whether the caller named the seed, and so wants the same answer again: no cache may change the rounding."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    """What is kept of this request serves only requests with an equal one, and the other way round."""
    trace_context: Mapping[str, str] | None = None
    """Valid trace headers, for an engine that asks another server: what that one traces is a part of this request."""


@dataclass(frozen=True, slots=True)
class IdLogprobs:
    """One position: the logprob of the id that stands there (None: nothing predicts it) and the likeliest ids."""

    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptStep:
    """At most one, and before any `TokenStep`: what the engine knows of the prompt.

    `token_ids` is set for a prompt with media; `logprobs` where they were asked for, one a prompt id. An engine
    without token ids gives empty ones first, and a second `PromptStep` with `num_tokens` before its last `TokenStep`
    where it is told the usage: all tokens of the prompt, and from then on those of the answer are the ids given.
    """

    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[IdLogprobs, ...] | None = None
    cached_tokens: int = 0
    num_tokens: int | None = None


class TokenStep(NamedTuple):
    """New ids of one choice. `reason` is set with the choice's last step: `STOP` if its last id is a stop id.

    `pieces` is what each id adds to the text, from an engine that is told that and has no vocabulary to look it up
    in. Without token ids, every piece has the id 0.
    """

    index: int  # type: ignore[assignment] # a tuple has a method of this name
    token_ids: tuple[int, ...]
    logprobs: tuple[IdLogprobs, ...] | None = None
    reason: FinishReason | None = None
    pieces: tuple[bytes, ...] | None = None


Step = PromptStep | TokenStep


class StepSink(Protocol):
    """Where an engine puts what one request comes to: steps as they arise, then the end, once.

    Both are called on the event loop, in the engine's own call; they neither block nor raise.
    """

    def take(self, step: Step) -> None: ...

    def close(self, error: DrivetrainError | None) -> None:
        """The last call: the engine holds nothing of the request any more. `error`: what kept it from finishing."""
        ...


class RequestHandle(Protocol):
    """What may be said to an engine about a request that it was given. Nothing here waits, and all is idempotent."""

    def finish(self, index: int) -> None:
        """End one choice from outside; the others run on. Steps of it that are under way may still arrive."""
        ...

    def abort(self) -> None:
        """End all of it. No step follows; `close` does, after at most one more step of the engine."""
        ...


@dataclass(frozen=True, slots=True)
class EmbedItem:
    """`trace_context` is as in `EngineRequest`, and the same for all items of a call."""

    token_ids: tuple[int, ...]
    trace_context: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """`alive` is False when nothing can be generated any more; `last_progress` is a `time.monotonic()` value."""

    alive: bool
    active: int
    last_progress: float
    detail: str = ""
    kv_used: float | None = None
    """The share of the memory for keys and values that requests hold; None: the engine does not know."""
    preemptions: int = 0
    """How often a running request gave its memory back and was computed again."""
    mends_itself: bool = False
    """Whether an engine that is not alive comes back without anybody's doing."""
    upstreams: tuple[bool, ...] = ()
    """Of an engine that asks other servers: whether each may be asked."""


class Engine(Protocol):
    """One loaded model. All methods are called from one event loop; a blocking library lives on its own thread."""

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        """Load once. Raises `LoadFailed` (or `MissingExtra`, `InvalidSetting`); nothing is left behind then."""
        ...

    def generate(self, request: EngineRequest, sink: StepSink) -> RequestHandle:
        """Start at once; the worker has already waited for a slot. What cannot start is closed in this very call."""
        ...

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        """One unit vector an item. Only called where `capabilities.embeddings`."""
        ...

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Now, on each device that is not the host's own memory."""
        ...

    def health(self) -> Health: ...

    async def close(self) -> None:
        """Abort everything, free everything, end the thread. Idempotent."""
        ...
