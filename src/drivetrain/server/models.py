"""The port to the models of one server, by name, loaded or not. `drivetrain.scale.fleet.Fleet` implements it.

`Fleet.of({name: worker})` makes one from running workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.stats import Stats
from drivetrain.core.status import State
from drivetrain.core.worker import WorkerPort


class ServedModel(Protocol):
    """What the server knows about one model. `worker` is None unless it is loaded."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def state(self) -> str:
        """In one word: its worker's state, or why it has none."""
        ...

    @property
    def worker(self) -> WorkerPort | None: ...

    @property
    def stats(self) -> Stats:
        """The live counters over all its requests, loaded or not: read them, do not keep them."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait for it to load, not counting those that wait for a slot of its worker."""
        ...


class ModelLease(Protocol):
    """A request's hold on one model, which stays loaded while the lease is entered."""

    @property
    def name(self) -> str:
        """The model's name. The request may have used an alias, or no name at all."""
        ...

    @property
    def left_s(self) -> float | None:
        """The request's time left after waiting for the model; None if it did not wait."""
        ...

    async def __aenter__(self) -> WorkerPort:
        """Waits for the model to load, within the request's time. Raises the error that keeps it from loading."""
        ...

    async def __aexit__(self, *exc: object) -> None: ...


class Models(Protocol):
    """`created` is when the server started to offer them, in seconds since the epoch."""

    @property
    def created(self) -> int: ...

    @property
    def members(self) -> Sequence[ServedModel]: ...

    def __iter__(self) -> Iterator[tuple[str, WorkerPort]]:
        """The loaded ones."""
        ...

    def member(self, name: str) -> ServedModel:
        """By its name or an alias. Raises `ModelNotFound`."""
        ...

    def find(self, name: str | None) -> WorkerPort:
        """A loaded worker, only to look at it. Raises `ModelNotFound`, or `NotReady` if it is not loaded."""
        ...

    def lease(self, name: str | None, timeout_s: float | None = None) -> ModelLease:
        """For one request with this much time. The name may be left out if there is only one model.

        Raises `ModelNotFound`, or `InvalidRequest` about the time.
        """
        ...

    @property
    def ready(self) -> bool: ...

    @property
    def lost(self) -> bool:
        """Whether a model that `Fleet.of` was given has failed for good, so that only a new process helps."""
        ...

    def report(self) -> list[dict[str, Any]]:
        """Everything about every model, for administrators: JSON objects, each with the name as `id`."""
        ...

    def load(self, name: str) -> ServedModel:
        """Begin to load it, even shortly after a failure. Like the three below, raises `ModelNotFound`."""
        ...

    def unload(self, name: str) -> ServedModel:
        """Begin to unload it. Raises `InvalidRequest` if it is pinned or in use."""
        ...

    def pin(self, name: str) -> ServedModel:
        """Load it and keep it loaded. Raises `InvalidRequest` if no more may be pinned."""
        ...

    def unpin(self, name: str) -> ServedModel:
        """Raises `InvalidRequest` if it could not be loaded again."""
        ...


LATEST = "latest"


def who_can(models: Models, can: Callable[[Capabilities], bool]) -> str:
    """The end of a refusal: those that can do it. Of models that are not loaded it is not known."""
    able = [name for name, worker in models if worker.state is State.READY and can(worker.capabilities)]
    return f"; {', '.join(able)} can" if able else "; none of the models that are loaded here can"


def tagged(models: Models, name: str) -> str:
    """A served name from one that may have a tag, as Ollama's clients write it: the name as it is, or `NAME:latest` for
    `NAME`, or `NAME:TAG` for `NAME-TAG`. Any other tag is of another model. Raises `ModelNotFound`."""
    head, colon, tag = name.rpartition(":")
    served = {one for member in models.members for one in (member.name, *member.aliases)}
    if colon and name not in served:
        meant = head if tag == LATEST else f"{head}-{tag}"
        name = meant if meant in served else name
    models.member(name)
    return name
