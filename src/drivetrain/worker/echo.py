"""The logprobs of an echoed prompt, which may be as long as the context: built in slices, so that others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from drivetrain.core.engine import IdLogprobs, PromptStep, Step, StepSink
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.results import TokenLogprob

VALUES_A_SLICE = 2000
"""Logprobs that are built in one go, about three milliseconds of work."""


class Echoing(StepSink, Protocol):
    """The run, which gets the engine's steps after this."""

    @property
    def ended(self) -> bool: ...

    def spell_prompt(self, logprobs: Sequence[IdLogprobs]) -> Iterator[TokenLogprob]: ...

    def take_echo(self, entries: tuple[TokenLogprob, ...], end: int | None) -> None:
        """Entries of the prompt, in order, and the offset in the text where the next ones begin (None: no more)."""
        ...

    def fail(self, exc: Exception) -> None:
        """End the request by this exception."""
        ...


class EchoFirst:
    """A `StepSink` in front of a run: holds back the steps after the prompt until all of its logprobs are built."""

    def __init__(self, run: Echoing) -> None:
        self._run = run
        self._spelling = False
        self._held: list[Step] = []
        self._closed: tuple[DrivetrainError | None] | None = None
        self._loop = asyncio.get_running_loop()

    def take(self, step: Step) -> None:
        if self._spelling:
            self._held.append(step)
        elif isinstance(step, PromptStep) and step.logprobs is not None:
            self._run.take(replace(step, logprobs=None))
            self._spelling = True
            each = 1 + max((len(entry.top) for entry in step.logprobs), default=0)
            self._spell(self._run.spell_prompt(step.logprobs), max(1, VALUES_A_SLICE // each))
        else:
            self._run.take(step)

    def close(self, error: DrivetrainError | None) -> None:
        if self._spelling and not self._run.ended:
            self._closed = (error,)
        else:
            self._run.close(error)

    def _spell(self, entries: Iterator[TokenLogprob], number: int, ready: tuple[TokenLogprob, ...] = ()) -> None:
        """Build the next slice; `ready` is the previous one, given out once it is known whether it is the last."""
        more: tuple[TokenLogprob, ...] = ()
        try:
            if not self._run.ended:
                ready = ready or tuple(islice(entries, number))
                more = tuple(islice(entries, number))
                self._run.take_echo(ready, more[0].text_offset if more else None)
        except Exception as exc:  # noqa: BLE001 - translated by `fail`
            self._run.fail(exc)
        if more and not self._run.ended:
            self._loop.call_soon(self._spell, entries, number, more)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._spelling = False
        held, self._held = self._held, []
        for step in held:
            self._run.take(step)
        if self._closed is not None:
            self._run.close(*self._closed)
