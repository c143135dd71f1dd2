"""How one kind of upstream is asked, and what its events mean: the port that each kind implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from drivetrain.core.engine import EngineRequest, Step
from drivetrain.core.kinds import MAX_INT
from drivetrain.core.messages import Message
from drivetrain.core.prompt import Prompt


class UpstreamKind(StrEnum):
    """What a server was found to be. One that is not known, or not for its ids, gets the text tier."""

    DRIVETRAIN = "drivetrain"
    LLAMACPP = "llama.cpp"
    VLLM = "vllm"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an upstream was found to offer. Upstreams of one pool must agree in `identity`."""

    kind: UpstreamKind
    tokens: bool
    parameters: frozenset[str]
    context_length: int = MAX_INT
    max_concurrency: int = 64
    vocab_size: int = 1
    eos_ids: frozenset[int] = frozenset()
    specials: Mapping[str, int] = field(default_factory=dict)
    words: frozenset[str] = frozenset()
    """Names such as `<think>` that are one token too, and stand in texts like any word."""
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    stop: tuple[str, ...] = ()
    generation: bool = True
    embedding_size: int = 0
    """0: the upstream gives no embeddings."""
    embed_inputs: int = MAX_INT
    """How many texts one question for embeddings may hold."""
    pooling: str | None = None
    architecture: str = "unknown"
    dtype: str = "unknown"
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """Requests that are prepared for one must be good for the other."""
        return (self.kind, self.tokens, self.generation, self.vocab_size, self.eos_ids, self.bos_token, self.stop)


class Reader(Protocol):
    """The events of one answer, in order, as steps of the contract."""

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        """Raises `Broken` for an event that is not what the API says, or a `DrivetrainError`."""
        ...

    @property
    def over(self) -> bool:
        """Whether the choice has ended, and nothing that still comes matters."""
        ...

    @property
    def settled(self) -> bool:
        """Whether its end has been told: a connection that breaks after that takes nothing away."""
        ...

    def close(self) -> Sequence[Step]:
        """The stream has ended by itself. Raises `Broken` if the choice has not: nothing is cut off silently."""
        ...


class Splitter(Protocol):
    """Texts to ids and back, by asking the upstream. Blocks; safe from any thread; raises `DrivetrainError`."""

    def encode(self, prompt: Prompt) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens included by name."""
        ...


class AskUpstream(Protocol):
    """One question to one upstream, below its root, on the event loop. Raises `Refused`, `Broken` and `OSError`."""

    async def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any: ...


class Learn(Protocol):
    """Takes the spelling of an id that the upstream has told."""

    def __call__(self, token_id: int, spelling: bytes, /) -> None: ...


class Dialect(Protocol):
    """One upstream of a known kind."""

    @property
    def facts(self) -> Facts: ...

    @property
    def path(self) -> str:
        """Where completions are asked for, from the root of the host."""
        ...

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        """One choice of a request. Every value that the upstream takes is stated: no default of its own comes in."""
        ...

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> Reader: ...


def messages_json(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]
