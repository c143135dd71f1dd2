"""Several engines in order: the first one that can run the model does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from drivetrain.core.engine import (
    EmbedItem,
    Engine,
    EngineInfo,
    EngineRequest,
    Health,
    ModelSpec,
    Progress,
    RequestHandle,
    StepSink,
)
from drivetrain.core.errors import InvalidSetting, LoadFailed, UnfitEngine
from drivetrain.core.results import DeviceMemory


@dataclass(frozen=True, slots=True)
class Candidate:
    """`lacks` are the given settings that this engine does not have."""

    name: str
    make: Callable[[], Engine]
    lacks: tuple[str, ...] = ()

    def instead_of(self, other: str, why: str) -> str:
        """A note that this engine replaces another one. Raises `InvalidSetting` if it lacks a setting."""
        if self.lacks:
            raise InvalidSetting(
                f"{other} cannot run this model ({why}), and {self.name} has no setting {self.lacks[0]}; leave it out",
                param=self.lacks[0],
            )
        return f"{other} cannot run this model: {why}; {self.name} runs it"


class FirstFit:
    """Goes on to the next engine if one raises `UnfitEngine`, and for no other error.

    The refused engine is closed before the next one loads. The change and its reason are reported as progress and
    noted in what `load` returns; `notes` say what was passed over before.
    """

    def __init__(self, candidates: Sequence[Candidate], notes: Sequence[str] = ()) -> None:
        self._candidate, *self._rest = candidates
        self._engine = self._candidate.make()
        self._notes = tuple(notes)
        self._closed = False

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        while True:
            try:
                info = await self._engine.load(spec, progress)
            except UnfitEngine as exc:
                if not self._rest:
                    raise
                why = exc.why
            else:
                return replace(info, notes=(*self._notes, *info.notes))
            await self._pass_on(why, progress)

    async def _pass_on(self, why: str, progress: Progress) -> None:
        await self._engine.close()
        if self._closed:
            raise LoadFailed("the engine was closed while it loaded")
        refused, self._candidate = self._candidate, self._rest.pop(0)
        note = self._candidate.instead_of(refused.name, why)
        self._notes += (note,)
        progress(note, None)
        self._engine = self._candidate.make()

    def generate(self, request: EngineRequest, sink: StepSink) -> RequestHandle:
        return self._engine.generate(request, sink)

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        return await self._engine.embed(items)

    def memory(self) -> tuple[DeviceMemory, ...]:
        return self._engine.memory()

    def health(self) -> Health:
        return self._engine.health()

    async def close(self) -> None:
        self._closed = True
        await self._engine.close()
