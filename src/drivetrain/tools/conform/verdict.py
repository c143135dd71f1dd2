"""How a case can end: it passes by returning, or raises one of three verdicts."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Outcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_OFFERED = "not offered"
    NOT_RUN = "not run"


class Verdict(Exception):
    """The message is one sentence for the report."""

    outcome: ClassVar[Outcome]

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class Failed(Verdict):
    """What must hold does not."""

    outcome = Outcome.FAIL


class NotOffered(Verdict):
    """The server says, or shows, that it does not have this: that is honest, and no failure."""

    outcome = Outcome.NOT_OFFERED


class NotRun(Verdict):
    """It could not be found out here."""

    outcome = Outcome.NOT_RUN


def ensure(holds: object, said: str) -> None:
    if not holds:
        raise Failed(said)
