"""What every client asks for: an answer and a call whose values the schema forces, whatever a small model knows."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTION = "The printer on the third floor is on fire. File a ticket for it."
LIMIT = 200
"""Tokens: more than the longest answer takes."""


class Closed(BaseModel):
    """Where more properties are allowed, a model may add them until its limit."""

    model_config = ConfigDict(extra="forbid")


class Ticket(Closed):
    """A ticket of the help desk."""

    title: str = Field(max_length=12)
    priority: Literal["low", "high"]
    open: bool
    labels: list[Literal["bug", "idea"]] = Field(min_length=1, max_length=2)


class Alarm(Closed):
    """Raise an alarm."""

    floor: Literal[1, 2, 3]
    loud: bool
