"""What the tests look at inside a running worker, in one place. It is there once the worker has started."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain.engines.llamacpp.child.process import ServerProcess
    from drivetrain.engines.llamacpp.engine import LlamaCppEngine
    from drivetrain.engines.native.stepper import Stepper


def engine_of(worker: Any) -> Any:
    """The engine that serves it now; another one after a restart."""
    return worker._engine


def runs_of(worker: Any) -> Collection[Any]:
    """The requests that have not ended: each a `Run`, or a `HandleRun` of one on Ray."""
    runs: Collection[Any] = worker._runs
    return runs


def stepper_of(worker: Any) -> Stepper:
    """Of one whose engine is `native`."""
    stepper: Stepper | None = engine_of(worker)._stepper
    assert stepper is not None
    return stepper


def process_of(engine: LlamaCppEngine) -> ServerProcess:
    assert engine._process is not None
    return engine._process


def pid_of(engine: LlamaCppEngine) -> int:
    pid = process_of(engine).pid
    assert pid is not None
    return pid


def model_of(engine: Any) -> Any:
    """The torch model of a `native` or a `transformers` engine."""
    return engine._stepper.runner.model if hasattr(engine, "_stepper") else engine._loaded.model
