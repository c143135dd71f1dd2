"""The port to the models of one server, by name, loaded or not. `drivetrain.scale.fleet.Fleet` implements it.

`Fleet.of({name: worker})` makes one of workers that run already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from drivetrain.core.stats import Stats
from drivetrain.core.worker import WorkerPort


class Model(Protocol):
    """What the server is told of one model. `worker` is None unless it is loaded."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def state(self) -> str:
        """In one word: that of its worker, or why there is none."""
        ...

    @property
    def worker(self) -> WorkerPort | None: ...

    @property
    def stats(self) -> Stats:
        """What was counted of all its requests until now, loaded or not. To be read, not kept."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait until it is loaded; those that wait for a slot of its worker are not among them."""
        ...


class Lease(Protocol):
    """A request's hold on one model, which stays loaded while it is entered."""

    @property
    def name(self) -> str:
        """Of the model, which its request may have called by an alias or not at all."""
        ...

    @property
    def left_s(self) -> float | None:
        """What waiting for the model left of the request's time; None where it did not wait."""
        ...

    async def __aenter__(self) -> WorkerPort:
        """Waits for a model that is not loaded, within the request's time. Raises what keeps it from being loaded."""
        ...

    async def __aexit__(self, *exc: object) -> None: ...


class Models(Protocol):
    """`created` is when the server took them up, in seconds of the epoch."""

    @property
    def created(self) -> int: ...

    @property
    def members(self) -> Sequence[Model]: ...

    def __iter__(self) -> Iterator[tuple[str, WorkerPort]]:
        """Those that are loaded."""
        ...

    def member(self, name: str) -> Model:
        """By its name or an alias. Raises `ModelNotFound`."""
        ...

    def find(self, name: str | None) -> WorkerPort:
        """One that is loaded now, for a look at it. Raises `ModelNotFound`, and `NotReady` where it is not loaded."""
        ...

    def lease(self, name: str | None, timeout_s: float | None = None) -> Lease:
        """For one request with this much time; where there is only one model, it need not be named.

        Raises `ModelNotFound`, and `InvalidRequest` for the time.
        """
        ...

    @property
    def ready(self) -> bool: ...

    @property
    def lost(self) -> bool:
        """Whether one that was not loaded here has failed for good: only a new process helps."""
        ...

    def report(self) -> list[dict[str, Any]]:
        """All of them with all that is known, for administrators: JSON objects, each with the name as `id`."""
        ...

    def load(self, name: str) -> Model:
        """Begin to, also shortly after a failure. As the three below: raises `ModelNotFound`."""
        ...

    def unload(self, name: str) -> Model:
        """Begin to. Raises `InvalidRequest` where it is pinned or in use."""
        ...

    def pin(self, name: str) -> Model:
        """Load it and keep it loaded. Raises `InvalidRequest` where no more may be pinned."""
        ...

    def unpin(self, name: str) -> Model:
        """Raises `InvalidRequest` where nothing here could load it again."""
        ...
