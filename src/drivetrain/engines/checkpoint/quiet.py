"""Keep the library from writing to the application's terminal: while it loads, and while it computes for us."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from drivetrain.engines.base.error_text import clean

_log = logging.getLogger(__name__)

_LIBRARY = "transformers"
_THREADS = "drivetrain-"
"""How the names of all our threads begin."""

_lock = threading.Lock()
_inside = 0
_quiet = ExitStack()


@contextmanager
def quiet_library() -> Iterator[None]:
    """No progress bars and no chatter while loading. The last of several loads restores the application's settings."""
    global _inside
    with _lock:
        if _inside == 0:
            _quiet.enter_context(_settings_changed())
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _quiet.close()


@contextmanager
def _settings_changed() -> Iterator[None]:
    import warnings

    from transformers.utils import logging as library

    _divert()
    tqdm = import_module("tqdm").tqdm
    verbosity, bars, draw = library.get_verbosity(), library.is_progress_bar_enabled(), tqdm.__init__

    def undrawn(bar: Any, *arguments: Any, **options: Any) -> None:
        ours = threading.current_thread().name.startswith(_THREADS)
        draw(bar, *arguments, **{**options, **({"disable": True} if ours else {})})

    library.set_verbosity_error()
    library.disable_progress_bar()
    tqdm.__init__ = undrawn  # packages for quantized weights draw bars of their own
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tqdm.__init__ = draw
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


def _divert() -> None:
    """What the library says on our threads goes to our log: on stderr it would stand in the middle of an answer."""
    for handler in logging.getLogger(_LIBRARY).handlers:
        if _said_elsewhere not in handler.filters:
            handler.addFilter(_said_elsewhere)


def _said_elsewhere(record: logging.LogRecord) -> bool:
    """Whether it is not the library on a thread of ours. A handler may have other loggers too, ours among them."""
    if record.name.partition(".")[0] != _LIBRARY or not (record.threadName or "").startswith(_THREADS):
        return True
    _log.info("%s: %s", _LIBRARY, clean(record.getMessage()))
    return False
