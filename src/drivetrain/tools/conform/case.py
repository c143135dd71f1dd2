"""A case: what it asks, what must hold, and how it is known whether a server offers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from drivetrain.tools.conform.answers import Api

if TYPE_CHECKING:
    from drivetrain.tools.conform.trial import Trial


class Area(StrEnum):
    """In the order of the report."""

    MODELS = "models"
    CHAT = "chat"
    COMPLETIONS = "completions"
    STREAMING = "streaming"
    STOPS = "stops"
    PARAMETERS = "parameters"
    REFUSALS = "refusals"
    LOGPROBS = "logprobs"
    USAGE = "usage"
    ERRORS = "errors"
    CANCEL = "cancel"
    IDS = "ids"
    RECEIPTS = "receipts"
    STRUCTURED = "structured"
    TOOLS = "tools"
    REASONING = "reasoning"
    RESPONSES = "responses"
    MESSAGES = "messages"
    AGENTS = "agents"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TOKENS = "tokens"
    IMAGES = "images"
    AUTH = "auth"
    ROBUSTNESS = "robustness"


Check = Callable[["Trial"], Awaitable[None]]
"""Returns if everything holds; otherwise raises a `Verdict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`id` is `area.name`. `needs` is the endpoint that must give a plain answer before the check is worth running."""

    id: str
    area: Area
    asks: str
    holds: str
    offered: str
    check: Check
    needs: Api | None = None

    @property
    def extra(self) -> bool:
        """Whether it sends a field that OpenAI's own API does not have."""
        return self.offered == BY_EFFECT


BY_ENDPOINT = "the endpoint answers"
BY_FIELD = "the field is not refused by name"
BY_EFFECT = "the field is neither refused by name nor ignored like every unknown one"
ALWAYS = "every server has it"


class Cases:
    """The cases of one area, gathered where they are written."""

    def __init__(self, area: Area, offered: str, needs: Api | None = None) -> None:
        self._area = area
        self._offered = offered
        self._needs = needs
        self._made: list[Case] = []

    def case(
        self, name: str, *, asks: str, holds: str, offered: str = "", is_plain: bool = False
    ) -> Callable[[Check], Check]:
        """`is_plain`: the check asks for the plain answer itself, so nothing is asked before it."""

        def keep(check: Check) -> Check:
            self._made.append(
                Case(
                    id=f"{self._area}.{name}",
                    area=self._area,
                    asks=asks,
                    holds=holds,
                    offered=offered or self._offered,
                    check=check,
                    needs=None if is_plain else self._needs,
                )
            )
            return check

        return keep

    def __iter__(self) -> Iterator[Case]:
        return iter(self._made)
