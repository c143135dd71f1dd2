"""From the settings to a running worker, with progress on stderr while it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drivetrain import assembly, sync
from drivetrain.cli.terminal.progress import progress_line
from drivetrain.worker.settings import Settings


@contextmanager
def opened(model: str, settings: Settings, *, quiet: bool = False) -> Iterator[sync.Worker]:
    """A ready worker, stopped and freed at the end, whatever ends it.

    Weights are fetched here in the main thread, where Ctrl-C works at once, and not in a thread of the worker.
    """
    with progress_line(quiet=quiet) as progress:
        parts = assembly.open_parts(model, settings, progress=progress)
        with sync.Worker(parts.opening(progress)) as worker:
            progress.close()
            yield worker
