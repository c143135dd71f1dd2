"""The worker port: what a server, a command or a replica handle may ask of a worker, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.events import Event
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Result
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata, State, Status


class EventStream(Protocol):
    """The events of one answer. Whoever holds it ends the request by `aclose`, or by letting go of it."""

    @property
    def request_id(self) -> str: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Event:
        """The next event; raises the one `DrivetrainError` that ended the request, or `StopAsyncIteration`."""
        ...

    async def follow(self, hear: Callable[[Sequence[Event]], bool]) -> None:
        """Hand on events where they arise, until the last one or until `hear` returns False; it may be called again.

        `hear` is called on the event loop and must neither block nor raise. Errors as of `__anext__`.
        """
        ...

    async def aclose(self) -> None:
        """End the request if it runs, and return once its resources are free."""
        ...

    def result(self) -> Result:
        """Everything so far as one value; whole once the stream has ended."""
        ...


class Worker(Protocol):
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

    def submit(self, request: GenerateRequest) -> EventStream:
        """Raises at once what can be told without work; the work begins with the first event awaited."""
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

    async def tokenize(self, text: str | None = None, *, messages: Sequence[Any] | None = None) -> list[int]:
        """The ids of a prompt, or of a chat once it is rendered."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    async def drain(self, grace_s: float | None = None) -> None: ...
