"""Compiled programs of a loaded model: found from an earlier start, or made beside the engine and taken up later."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from drivetrain.core.errors import DrivetrainError
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.native.attention.backend import AttentionBackend
from drivetrain.engines.native.model import compiling, selftest
from drivetrain.engines.native.model.compiling import CannotCompile, ProgramFolder
from drivetrain.engines.native.model.loading import NativeModel
from drivetrain.engines.native.model.runner import Pass
from drivetrain.engines.native.schedule.budget import TokenBudget, budget_for
from drivetrain.engines.native.settings import Compile, NativeSettings
from drivetrain.engines.native.stepper import Stepper

_log = logging.getLogger(__name__)


class Compilation:
    def __init__(self, loaded: NativeModel, settings: NativeSettings) -> None:
        self._loaded = loaded
        self.required = settings.compile is Compile.ON
        """Whether the engine is ready only with it, and refused without."""
        self.obstacle = "" if settings.compile is Compile.OFF else compiling.obstacle(loaded.model.device)
        self._folder: ProgramFolder | None = None
        self._found = False
        if settings.compile is not Compile.OFF and not self.obstacle:
            self._folder = ProgramFolder(
                loaded.model,
                loaded.stage,
                loaded.path,
                trust_remote_code=settings.trust_remote_code,
            )

    @property
    def pending(self) -> bool:
        """Whether there is something to `make` and `adopt`."""
        return self._folder is not None and not self._found

    @property
    def note(self) -> str:
        """One line for who loads the model. Empty if there is nothing to say."""
        if self._found or (self.pending and self.required):
            return "the steps are compiled"
        if self.pending:
            return (
                "the steps are being compiled, which takes some minutes of a core; the next start finds them compiled"
            )
        told = self.obstacle and self._loaded.model.device.type == "cpu"
        return f"the steps are not compiled: {self.obstacle}" if told else ""

    def found(self) -> Pass | None:
        """The pass that was compiled at an earlier start, if it passes the self-test."""
        if self._folder is None or (programs := self._folder.load()) is None:
            return None
        try:
            for _ in self._taken_up(self._folder, programs):
                pass
        except CannotCompile as exc:
            _log.warning("%s; the model is compiled anew", exc)
            self._folder.remove()
            return None
        self._found = True
        return programs

    async def make(self) -> None:
        """Cancelling ends it. Raises `CannotCompile`."""
        assert self._folder is not None
        await self._folder.make(beside=not self.required)

    def adopting(self, stepper: Stepper) -> Iterator[None]:
        """In pieces, each between two steps: layer by layer our own products, then the programs. Raises `CannotCompile`
        if what was made is not right; the plain pass then stays, with the products it had."""
        assert self._folder is not None
        programs = self._folder.load()
        if programs is None:
            raise CannotCompile("what was compiled cannot be loaded")
        yield from self._taken_up(self._folder, programs)
        runner = stepper.runner
        runner.compute = programs.forward
        runner.attention = programs.attention(self._loaded.layers, runner.cache)
        stepper.scheduler.budget = step_budget(self._loaded, runner.attention)
        self._found = True

    def _taken_up(self, folder: ProgramFolder, programs: Pass) -> Iterator[None]:
        """Our own products layer by layer, then the self-test. If it raises, the products are what they were."""
        try:
            yield from folder.lay_out()
            self._check(programs)
        except CannotCompile:
            folder.lay_back()
            raise

    def _check(self, programs: Pass) -> None:
        try:
            selftest.check(self._loaded, programs)
        except Exception as exc:
            if errors.is_out_of_memory(exc):
                raise  # the programs are sound
            why = exc.message if isinstance(exc, DrivetrainError) else type(exc).__name__
            raise CannotCompile(f"what was compiled does not pass the self-test ({why})") from exc


def step_budget(loaded: NativeModel, attention: AttentionBackend) -> TokenBudget:
    return budget_for(
        on_cpu=loaded.model.device.type == "cpu",
        weights=loaded.num_weights,
        attended=sum(shape.attended for shape in loaded.shapes.values()),
        cached=sum(shape.cached for shape in loaded.shapes.values()),
        by_kernel=attention.reads_in_place,
    )
