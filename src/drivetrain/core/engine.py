"""The engine contract: load, describe, generate, close. Engines deal in token ids; the text pipeline is above them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.constraint import Grammar
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import (
    NOTHING_COUNTED,
    ComputeThreads,
    DeviceMemory,
    EngineCounts,
    FinishReason,
    KvBlocks,
)
from drivetrain.core.sampling import Sampling
from drivetrain.core.tokenizer import Tokenizer

Progress = Callable[[str, float | None], None]
"""Called with what is being done and the fraction completed (None: unknown)."""

NOTE = "note: "
"""What is said so in a call of `Progress` is not about the work: it is shown at once, and stays."""


class WeightsFormat(StrEnum):
    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    NONE = "none"


class Derived(Protocol):
    """Folders of what engines derive from the weights, kept beside them."""

    def find(self, kind: str) -> Path | None:
        """The folder, if there is one and it is whole."""
        ...

    def make(self, kind: str, build: Callable[[Path], None], progress: Progress) -> Path:
        """The folder, filled by `build` if there is none that is whole: once and atomically, even across processes.

        `progress` tells of the wait for another process that makes it. Raises `NotStored` if it cannot be kept.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What to load. `path` is a folder or a file; `options` are the settings that this engine declares.

    `catalogue_sampling` is what the catalogue recommends for weights that come without sampling; engines ignore it.
    `form` is in what form the catalogue says that llama.cpp should run them, if not as they are; the others ignore it.
    """

    name: str
    path: Path
    format: WeightsFormat
    options: Mapping[str, Any] = field(default_factory=dict)
    derived: Derived | None = None
    catalogue_sampling: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    """The store's digest of them."""
    form: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts as one sequence. `type_ids` say which of them each id is of, for a model that wants to know."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None


class PairScorer(Protocol):
    """A model's own head for pairs of texts."""

    def encode(self, first: str, second: str) -> Pair:
        """From any thread. A special token's spelling is plain text in both."""
        ...

    async def score(self, pairs: Sequence[Pair]) -> list[float]:
        """The head's logit for each. Called like `Engine.embed`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What was loaded. `default_sampling` is what came with the weights (`generation_config.json`)."""

    engine: str
    capabilities: Capabilities
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    vocab_size: int
    """Prompts and biases may use ids from 0 up to here (exclusive)."""
    architecture: str
    device: str
    dtype: str
    encoder_decoder: bool = False
    gives_pieces: bool = False
    """Every step says how its ids are spelled (`TokenStep.pieces`), since the tokenizer does not know it of all."""
    image_token: str | None = None
    embedding_size: int = 0
    pooling: str | None = None
    scorer: PairScorer | None = None
    """Set if `capabilities.rerank` states a head."""
    stop: tuple[str, ...] = ()
    """Stop strings that come with the model, used if the prompt form names none."""
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a user of this model should know, in words: what its files ask for that is not honoured."""
    versions: Mapping[str, str] = field(default_factory=dict)
    grammar_library: Path | None = None
    """A file with the C interface of the llguidance that the engine compiles grammars with, if that is another one than
    the package: grammars are tried with it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an engine can tell about a model before loading any weights; None: not known yet.

    `missing` says in words what is not known, and what to do about it.
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

    They are released once the engine has reported the prompt's ids: it must not use them after that. An engine without
    token ids gets every prompt this way, without images.
    """

    prompt: Prompt
    images: Collection[Any]


def _no_bytes(token_id: int) -> bytes:
    return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Everything is settled: the engine fills in no defaults of its own.

    With `media`, `prompt_ids` is empty and the engine's first step reports the expanded prompt.
    `max_tokens` None means the rest of the context, which only the engine can know then. If it is a default rather than
    the caller's, it shrinks to the room that a prompt with media leaves.
    `stop_ids` end a choice; they are suppressed until `min_tokens` ids have been sampled.
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
    token_bytes: Callable[[int], bytes] = _no_bytes
    """The tokenizer's, for the texts in `sampling`."""
    seeds: tuple[int, ...]
    """One per choice: its length is `n`."""
    seeded: bool = False
    """Whether the same answer is expected every time, since the caller chose the seed or wants a receipt: no cache may
    change the rounding."""
    grammar: Grammar | None = None
    """What the text of each choice must follow. The engine samples no id that it forbids, and ends only where it may;
    above the engines, each answer is held to it again."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    """Cached prompt beginnings are shared only between requests with the same salt."""
    trace_context: Mapping[str, str] | None = None
    """Valid trace headers, for an engine that calls another server: its spans become part of this request's trace."""


@dataclass(frozen=True, slots=True)
class IdLogprobs:
    """One position: the logprob of the id there (None: nothing predicts it) and the likeliest ids."""

    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptStep:
    """What the engine knows of the prompt. At most one, before any `TokenStep`.

    `token_ids` is set for a prompt with media; `logprobs`, one per prompt id, if they were requested. An engine without
    token ids first gives empty ones. If it learns the usage, a second `PromptStep` comes before its last `TokenStep`:
    `num_tokens` counts the prompt's tokens, and from then on the ids given count those of the answer.
    """

    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[IdLogprobs, ...] | None = None
    cached_tokens: int = 0
    num_tokens: int | None = None


class TokenStep(NamedTuple):
    """New ids of one choice. `reason` is set with the choice's last step: `STOP` if its last id is a stop id.

    `pieces` is what each id adds to the text, from an engine that is told the text and has no vocabulary of its own.
    Without token ids, every piece has the id 0.
    """

    index: int  # type: ignore[assignment] # tuple has a method of this name
    token_ids: tuple[int, ...]
    logprobs: tuple[IdLogprobs, ...] | None = None
    reason: FinishReason | None = None
    pieces: tuple[bytes, ...] | None = None


Step = PromptStep | TokenStep


class StepSink(Protocol):
    """Where an engine puts the output of one request: steps as they arise, then the end, once.

    Both methods are called on the event loop, by the engine itself; they neither block nor raise.
    """

    def take(self, step: Step) -> None: ...

    def close(self, error: DrivetrainError | None) -> None:
        """The last call: the engine no longer holds anything for the request. `error`: what kept it from finishing."""
        ...


class RequestHandle(Protocol):
    """Controls a request that an engine was given. Nothing here waits, and every call is idempotent."""

    def finish(self, index: int) -> None:
        """End one choice; the others continue. Steps already on their way may still arrive."""
        ...

    def abort(self) -> None:
        """End the whole request. No step follows; `close` does, after at most one more step of the engine."""
        ...


@dataclass(frozen=True, slots=True)
class EmbedItem:
    """`trace_context` is as in `EngineRequest`, the same for all items of a call."""

    token_ids: tuple[int, ...]
    trace_context: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """`alive` is False once nothing can be generated any more; `last_progress` is a `time.monotonic()` value."""

    alive: bool
    active: int
    last_progress: float
    detail: str = ""
    kv_used: float | None = None
    """The share of the KV cache that requests hold; None: the engine does not know."""
    kv_blocks: KvBlocks | None = None
    """None: the engine has none, or does not know."""
    counts: EngineCounts = NOTHING_COUNTED
    threads: ComputeThreads | None = None
    """None: the engine does not choose how many, or does not know."""
    mends_itself: bool = False
    """Whether an engine that is not alive recovers by itself."""
    upstreams: tuple[bool, ...] = ()
    """For an engine that calls other servers: whether each of them is in use."""


class Engine(Protocol):
    """One loaded model. All methods are called from one event loop; a blocking library lives on its own thread."""

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        """Load once. Raises `LoadFailed` (or `MissingExtra`, `InvalidSetting`) and then leaves nothing behind."""
        ...

    def generate(self, request: EngineRequest, sink: StepSink) -> RequestHandle:
        """Start at once; the worker has already waited for a slot. If it cannot start, `close` is called right here."""
        ...

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        """One unit vector per item. Only called if `capabilities.embeddings`."""
        ...

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Current use on each device other than the host."""
        ...

    def health(self) -> Health: ...

    async def close(self) -> None:
        """Abort everything, free everything, stop the thread. Idempotent."""
        ...
