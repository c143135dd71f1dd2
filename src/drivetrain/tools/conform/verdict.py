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

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Failed(Verdict):
    """What must hold does not."""

    outcome = Outcome.FAIL


class NotOffered(Verdict):
    """The server says or shows that it does not have this, which is honest and not a failure."""

    outcome = Outcome.NOT_OFFERED


class NotRun(Verdict):
    """This server gives no way to find out."""

    outcome = Outcome.NOT_RUN


def ensure(holds: object, reason: str) -> None:
    if not holds:
        raise Failed(reason)
