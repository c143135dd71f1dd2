"""The worker port: what a server or a command may ask of a worker, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Event
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Ranking, Result
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata, State, Status


class EventSink(Protocol):
    """Where a worker puts the events of one answer, in the same call in which the engine delivered them.

    Called on the event loop. It must not block; an exception ends the request.
    """

    @property
    def unread(self) -> int:
        """Events that a slow reader has not taken yet. A worker ends a request that leaves too many of them."""
        ...

    @property
    def last_read(self) -> float:
        """When the reader last took one, by `time.monotonic()`. A reader that stalls for too long is dropped."""
        ...

    def take(self, events: Sequence[Event]) -> None:
        """Events that came together. The last one of a successful answer is `Finished`."""
        ...

    def fail(self, error: DrivetrainError) -> None:
        """The one error that ended the request, in place of the events that are missing."""
        ...


class Submission(Protocol):
    """A request that a worker has accepted."""

    @property
    def request_id(self) -> str: ...

    @property
    def ended(self) -> bool: ...

    def cancel(self, why: str) -> None:
        """End it at once, without waiting. Does nothing if it has ended."""
        ...

    async def released(self) -> None:
        """Return once it no longer holds anything. Only for a request that has ended or was cancelled."""
        ...

    def result(self) -> Result:
        """Everything so far as one value; complete once it has ended."""
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
        """The live counters: read them, do not keep them."""
        ...

    def submit(self, request: GenerateRequest, sink: EventSink) -> Submission:
        """Begin. Raises at once what can be told without work; all other errors go to the sink."""
        ...

    async def complete(self, request: GenerateRequest) -> Result:
        """The whole answer. Cancelling this call ends the request."""
        ...

    async def embed(
        self,
        inputs: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        timeout_s: float | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> Embeddings: ...

    async def rerank(
        self,
        query: str | Sequence[str],
        documents: Sequence[str],
        *,
        max_tokens_per_doc: int | None = None,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> Ranking:
        """How well each document fits the query, or, of as many queries as documents, its own one."""
        ...

    async def tokenize(
        self,
        text: str | None = None,
        *,
        suffix: str | None = None,
        messages: Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        reasoning_effort: str | None = None,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """The ids of a prompt, perhaps with a suffix, or of a chat once it is rendered with these tools and variables.

        `add_special_tokens` None: as for a prompt to be answered. Raises `Overloaded` if too many calls wait.
        """
        ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    async def drain(self, grace_s: float | None = None) -> None: ...
