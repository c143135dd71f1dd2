"""How to ask one kind of upstream, and what its events mean: the port that each kind implements."""

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
    """What a server was found to be. An unknown one, or a known one without ids, gets the text tier."""

    DRIVETRAIN = "drivetrain"
    LLAMACPP = "llama.cpp"
    VLLM = "vllm"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamFacts:
    """What an upstream was found to offer. The upstreams of a pool must agree in `identity`."""

    kind: UpstreamKind
    tokens: bool
    parameters: frozenset[str]
    context_length: int = MAX_INT
    max_concurrency: int = 64
    vocab_size: int = 1
    eos_ids: frozenset[int] = frozenset()
    specials: Mapping[str, int] = field(default_factory=dict)
    plain_names: frozenset[str] = frozenset()
    """Names such as `<think>` that are one token too, but appear in texts like any word."""
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    stop: tuple[str, ...] = ()
    generation: bool = True
    embedding_size: int = 0
    """0 if the upstream gives no embeddings."""
    embed_inputs: int = MAX_INT
    """The most texts in one request for embeddings."""
    pooling: str | None = None
    architecture: str = "unknown"
    dtype: str = "unknown"
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """A request prepared for one upstream must be valid for the other."""
        return (self.kind, self.tokens, self.generation, self.vocab_size, self.eos_ids, self.bos_token, self.stop)


class AnswerReader(Protocol):
    """The events of one answer, in order, as steps of the contract."""

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        """Raises `Broken` for an event that the API does not have, or a `DrivetrainError`."""
        ...

    @property
    def over(self) -> bool:
        """Whether the choice has ended, so that nothing that still comes matters."""
        ...

    @property
    def settled(self) -> bool:
        """Whether its end has arrived, so that a connection that breaks now loses nothing."""
        ...

    def close(self) -> Sequence[Step]:
        """The stream has ended. Raises `Broken` if the choice has not: nothing is cut off silently."""
        ...


class Splitter(Protocol):
    """Splits and joins texts by asking the upstream. Blocks; safe from any thread; raises `DrivetrainError`."""

    def encode(self, prompt: Prompt) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens included by name."""
        ...


class AskUpstream(Protocol):
    """One query to one upstream, below its root, on the event loop. Raises `Refused`, `Broken` and `OSError`."""

    async def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any: ...


class Learn(Protocol):
    """Takes the spelling of an id, as the upstream gave it."""

    def __call__(self, token_id: int, spelling: bytes, /) -> None: ...


class Dialect(Protocol):
    """One upstream of a known kind."""

    @property
    def facts(self) -> UpstreamFacts: ...

    @property
    def path(self) -> str:
        """Where to ask for completions, from the root of the host."""
        ...

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        """The body for one choice. Sets every value that the upstream takes, so none of its defaults apply."""
        ...

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> AnswerReader: ...


def messages_json(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]
