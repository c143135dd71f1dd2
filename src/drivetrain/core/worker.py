"""The worker port: what a server, a command or a replica handle may ask of a worker, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Event
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Result
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata, State, Status


class EventSink(Protocol):
    """Where a worker puts the events of one answer, in the call that brought them from the engine.

    Called on the event loop. What it does must not block; what it raises ends the request.
    """

    @property
    def unread(self) -> int:
        """Events that wait for somebody slower. A worker ends a request that leaves too many of them."""
        ...

    @property
    def last_read(self) -> float:
        """When somebody last took one, by `time.monotonic()`. Whoever leaves some for too long is given up."""
        ...

    def take(self, events: Sequence[Event]) -> None:
        """Events that came together. The last one of a good answer is `Finished`."""
        ...

    def fail(self, error: DrivetrainError) -> None:
        """The one error that ended the request, in place of the events that are missing."""
        ...


class Submission(Protocol):
    """A request that a worker has taken on."""

    @property
    def request_id(self) -> str: ...

    @property
    def ended(self) -> bool: ...

    def cancel(self, why: str) -> None:
        """End it at once, without waiting. Nothing happens if it has ended."""
        ...

    async def released(self) -> None:
        """Return once it holds nothing any more. Only for one that has ended or was cancelled."""
        ...

    def result(self) -> Result:
        """Everything so far as one value; whole once it has ended."""
        ...


class WorkerPort(Protocol):
    """One model behind one gate."""

    @property
    def state(self) -> State: ...

    @property
    def metadata(self) -> Metadata:
        """Raises `NotReady` until the model is loaded."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Raises `NotReady` until the model is loaded."""
        ...

    @property
    def status(self) -> Status: ...

    @property
    def stats(self) -> Stats:
        """What was counted until now. To be read, not kept: it goes on counting."""
        ...

    def submit(self, request: GenerateRequest, sink: EventSink) -> Submission:
        """Begin. Raises at once what can be told without work; all else goes to the sink."""
        ...

    async def complete(self, request: GenerateRequest) -> Result:
        """The whole answer. Cancelling the call ends the request."""
        ...

    async def embed(
        self,
        inputs: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        timeout_s: float | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> Embeddings: ...

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Any] | None = None,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """The ids of a prompt, or of a chat once it is rendered.

        `add_special_tokens` None: as in the prompt of an answer. Raises `Overloaded` where many wait for the same.
        """
        ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    async def drain(self, grace_s: float | None = None) -> None: ...
