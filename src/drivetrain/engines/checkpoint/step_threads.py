"""How many threads torch computes with: as many as there are cores to use, and as fit beside other processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from drivetrain.core.results import ComputeThreads
from drivetrain.engines.base.thread_limit import ThreadLimit
from drivetrain.telemetry.cores import fewer_than


class StepThreads:
    """For the steps of one engine, on its thread; `threads` from anywhere. Without a limit it does nothing."""

    def __init__(self, limit: ThreadLimit | None) -> None:
        self._limit = limit
        self._set = 0 if limit is None else limit.now

    @classmethod
    def of(cls, device: Any, *, yields: bool) -> StepThreads:
        """Called on the engine's thread. On an accelerator it does not matter who has the cores."""
        import torch

        wanted = yields and device.type == "cpu"
        return cls(ThreadLimit(torch.get_num_threads()) if wanted else None)

    @property
    def threads(self) -> ComputeThreads | None:
        return None if self._limit is None else self._limit.threads

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Steps follow one another."""
        if self._limit is None:
            yield
            return
        self._limit.begin()
        try:
            self.look()
            yield
        finally:
            self._limit.pause()

    def look(self) -> None:
        """Between two steps."""
        if self._limit is not None and (wanted := self._limit.look()) != self._set:
            self._set = wanted
            _set_here(wanted, self._limit.most)


def keep_to_usable_cores() -> None:
    """For this whole process. Torch counts the machine's cores, whatever quota there is; what the caller says holds."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ and (threads := fewer_than(torch.get_num_threads())) is not None:
        torch.set_num_threads(threads)


ALIKE = "AUTO,STRICT"


def round_alike(environment: MutableMapping[str, str]) -> bool:
    """Have MKL, which multiplies for torch, round the same way whatever the number of threads, if torch is not imported
    yet: it reads this once. Returns whether it does. Otherwise some products, and attention, differ in their last bits.
    """
    if "torch" not in sys.modules:
        environment.setdefault("MKL_CBWR", ALIKE)
    return environment.get("MKL_CBWR") == ALIKE


def _set_here(number: int, elsewhere: int) -> None:
    """torch keeps a number for each thread and, from the last call, one for the threads to come: another engine would
    be loaded with what is left to this one. So a thread of its own says that one again."""
    import torch

    torch.set_num_threads(number)
    restoring = threading.Thread(target=torch.set_num_threads, args=(elsewhere,), name="drivetrain-threads")
    restoring.start()
    restoring.join()
