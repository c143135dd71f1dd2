"""The process of trials: reads grammars from its input, and writes a verdict for each, until there are no more.

It has limits of computing time and of memory, and may end by either. `trial.py` starts it and reads its verdicts.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

MAX_BYTES = 512 * 2**20
"""On top of what the process has when it is ready."""

READY_LINE = b"ready\n"
"""What the process says before anything else of its own."""

LARK, GBNF = "lark", "gbnf"
"""What a grammar to be tried is written in."""


def try_all(grammars: IO[bytes], verdicts: IO[bytes], engine_library: str) -> None:
    """A verdict is the fault, the seconds that it took, the bytes that our library holds of it, and those that the
    process has not given back of it or of earlier ones; of GBNF, also the same grammar in Lark, which is not tried yet.
    """
    from drivetrain.text.grammar.rehearsal import EngineLibrary, rehearse, resident_bytes

    engine = None
    if engine_library:
        with suppress(OSError, AttributeError):  # another build, whose counts are bounded all the same
            engine = EngineLibrary(Path(engine_library))
    rehearse('start: "a"', engine)
    _limit_memory()
    verdicts.write(READY_LINE)
    verdicts.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # nobody reads it from here on
    began_bytes = resident_bytes()
    for line in grammars:
        limit_s, dialect, text = json.loads(line)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # at its end the signal ends the process
        lark, held_bytes = "", 0
        if dialect == GBNF:
            lark, fault = from_gbnf(text)
        else:
            fault, held_bytes = rehearse(text, engine)
        signal.setitimer(signal.ITIMER_PROF, 0)
        took_s = time.process_time() - began
        verdicts.write(json.dumps([fault, took_s, held_bytes, resident_bytes() - began_bytes, lark]).encode() + b"\n")
        verdicts.flush()


def from_gbnf(source: str) -> tuple[str, str]:
    """In Lark, and what is wrong. It is done here because a few thousand rules that refer to one another take hours."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    fault = ""
    try:
        lark: str = gbnf_to_lark(source)
        return lark.removeprefix("%llguidance {}").lstrip(), ""
    except RecursionError:
        fault = "it is nested too deeply"
    except MemoryError:
        raise
    except Exception as exc:  # noqa: BLE001 - the translation's own bugs are raised as anything
        fault = str(exc)[:200] or "its rules cannot be read"
    return "", f"as GBNF it cannot be read: {fault}"


def _limit_memory() -> None:
    with suppress(OSError):  # where memory runs out all the same, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    has = 0
    with suppress(OSError):
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit, (_, most) = has + MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches it too; its end is that of its input
    try_all(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1] if len(sys.argv) > 1 else "")
