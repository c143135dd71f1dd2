"""A trial of each new grammar in a process of its own, which may be slow, fail or die of it.

Some small schemas take minutes and gigabytes to compile, and a thread that does so cannot be stopped. The processes
have limits of computing time and of memory. One stays for the next grammar; after its death another one is started.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import OrderedDict
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from drivetrain.core.errors import NotReady, Overloaded
from drivetrain.core.tokenizer import check_wanted
from drivetrain.text.grammar.trial_helper import Helper
from drivetrain.text.grammar.trial_process import GBNF, LARK, MAX_BYTES

MAX_CPU_S = 3.0
"""Of computing, not by the clock: on a busy machine a trial may take longer."""

MAX_REQUEST_CPU_S = 8.0
"""Of all trials of one request: others wait for their turn. Two may end by their limit."""

MAX_KEPT_BYTES = 64 * 2**20
"""What a process may have held and still be kept: it does not give all of it back."""

MAX_SPARE = 2
"""Processes that wait for a grammar."""

REMEMBERED = 5000
"""Refusals."""

TRIES = 2

TOO_LARGE = f"it takes more than {MAX_CPU_S:g} s or {MAX_BYTES // 2**20} MiB to compile; make it smaller"

_log = logging.getLogger("drivetrain.grammar")


class Budget:
    """Of the trials of one request. `held_bytes` is what the last one needed in our library."""

    def __init__(self) -> None:
        self.left_s = MAX_REQUEST_CPU_S
        self.held_bytes = 0

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0


class Verdict(NamedTuple):
    """What the process says of a grammar. `fault` is empty if nothing is wrong; of GBNF, `lark` is the same grammar."""

    fault: str
    took_s: float = 0.0
    held_bytes: int = 0
    kept_bytes: int = 0
    lark: str = ""


class Trial:
    """Any thread may call it. A grammar has a process for itself while it is tried: there are as many as callers.

    `engine_library` is a file with the llguidance of an engine that has its own (`EngineInfo.grammar_library`).
    """

    def __init__(self, engine_library: Path | None = None) -> None:
        self._library = str(engine_library or "")
        self._lock = threading.Lock()
        self._helpers: set[Helper] = set()
        self._spare: list[Helper] = []
        self._refused: OrderedDict[bytes, Verdict] = OrderedDict()
        self._closed = False

    @property
    def processes(self) -> tuple[Popen[bytes], ...]:
        """Those that there are."""
        with self._lock:
            return tuple(helper.process for helper in self._helpers)

    def run(self, lark: str, budget: Budget | None = None) -> str:
        """What is wrong with the grammar; empty if nothing is.

        Raises `NotReady` once it is closed or if something else than the grammar ends its process, `Overloaded` if a
        process cannot be started, and `Cancelled` if nobody waits any more.
        """
        return self._verdict(LARK, lark, budget or Budget()).fault

    def from_gbnf(self, source: str, budget: Budget) -> tuple[str, str]:
        """The same grammar in Lark, and what is wrong with it. Raises like `run`."""
        verdict = self._verdict(GBNF, source, budget)
        return verdict.lark, verdict.fault

    def start(self) -> None:
        """So that the first grammar need not wait for a process."""
        self._put_back(self._take())

    def close(self) -> None:
        """Idempotent. Trials under way end with it."""
        with self._lock:
            self._closed = True
            helpers, spare = set(self._helpers), self._spare
            self._spare = []
        for helper in helpers:
            helper.process.kill()
        for helper in spare:
            self._end(helper)

    def _verdict(self, dialect: str, text: str, budget: Budget) -> Verdict:
        limit_s = min(MAX_CPU_S, budget.left_s)
        if budget.is_spent:
            return Verdict(TOO_LARGE)
        key = hashlib.sha256(f"{dialect}\n{text}".encode()).digest()
        if (refused := self._refused.get(key)) is not None:
            return refused
        verdict = self._asked(json.dumps([limit_s, dialect, text]).encode() + b"\n", limit_s)
        budget.left_s -= verdict.took_s
        budget.held_bytes = verdict.held_bytes
        if verdict.fault and limit_s == MAX_CPU_S:  # else it may have had less time than it has alone
            self._remember(key, verdict)
        return verdict

    def _asked(self, question: bytes, limit_s: float) -> Verdict:
        """A process that is stopped or ended from outside says nothing of the grammar: another one is asked."""
        for _ in range(TRIES):
            helper = self._take()
            try:
                said = helper.ask(question)
            except BaseException:
                self._replace(helper)
                raise
            if said.endswith(b"\n"):
                verdict = Verdict(*json.loads(said))
                helper.is_worn |= max(verdict.held_bytes, verdict.kept_bytes) > MAX_KEPT_BYTES
                self._put_back(helper)
                return verdict
            if self._replace(helper):
                return Verdict(TOO_LARGE, limit_s)
            if self._closed:
                raise NotReady("the worker is stopped")
        raise NotReady("a process that tries grammars was stopped from outside; try again shortly", retry_after_s=5.0)

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        with self._lock:
            self._refused[key] = verdict
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)

    def _take(self) -> Helper:
        """One that waits, or a new one. A start that fails may have been ended from outside: it is tried again."""
        failed = 0
        while True:
            check_wanted()
            with self._lock:
                helper = self._spare.pop() if self._spare else None
            if helper is None:
                helper = self._begun()
            try:
                if self._is_ready(helper):
                    return helper
            except Overloaded:
                failed += 1
                if failed == TRIES:
                    raise

    def _begun(self) -> Helper:
        """A new one, which is not ready yet."""
        with self._lock:
            if self._closed:
                raise NotReady("the worker is stopped")
            helper = Helper(self._library)
            self._helpers.add(helper)
            return helper

    def _is_ready(self, helper: Helper) -> bool:
        """False for one that died while it waited, of nothing that a grammar did, and for one that could not load the
        engine's library: those that follow do without."""
        was_ready = helper.is_ready
        try:
            helper.await_ready()
        except BaseException as exc:
            ended_by_itself = self._end(helper)
            if self._closed and isinstance(exc, Overloaded):
                raise NotReady("the worker is stopped") from None
            if not (isinstance(exc, Overloaded) and ended_by_itself and self._library):
                raise
            _log.warning("grammars are not tried with the engine's own library: it cannot be loaded")
            self._library = ""
            return False
        if was_ready and not helper.is_alive:
            self._end(helper)
            return False
        return True

    def _put_back(self, helper: Helper) -> None:
        if helper.is_worn:
            self._replace(helper)
        elif not self._spared(helper):
            self._end(helper)

    def _spared(self, helper: Helper) -> bool:
        with self._lock:
            kept = not self._closed and len(self._spare) < MAX_SPARE
            if kept:
                self._spare.append(helper)
            return kept

    def _replace(self, helper: Helper) -> bool:
        """As `_end`. The next caller finds a process that has begun to start."""
        ended = self._end(helper)
        if not self._spare:
            try:
                self._put_back(self._begun())
            except (Overloaded, NotReady) as exc:
                _log.debug("no process for the next grammar was started: %s", exc)
        return ended

    def _end(self, helper: Helper) -> bool:
        """Whether it had ended by itself."""
        ended = helper.end()
        with self._lock:
            self._helpers.discard(helper)
        return ended
