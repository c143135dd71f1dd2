"""What the cases of several endpoints share: a field, missing or with a bad value, must be refused by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from drivetrain.tools.conform.case import BY_EFFECT, BY_ENDPOINT, Cases
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, refused
from drivetrain.tools.conform.requester import LEFT_OUT
from drivetrain.tools.conform.survey import UNKNOWN_FIELD
from drivetrain.tools.conform.trial import Trial


def refusal(
    cases: Cases,
    name: str,
    field: str,
    value: Any,
    *,
    plain: Callable[[Trial], Awaitable[Any]],
    post: Callable[..., Awaitable[RecordedExchange]],
) -> None:
    """A case more. `plain` asks for what the endpoint must give first, `post` sends the field."""
    shown = f"no {field}" if value is LEFT_OUT else f"{field} = {brief(value, 24)}"
    offered = BY_EFFECT if field == UNKNOWN_FIELD else BY_ENDPOINT

    @cases.case(f"refuse_{name}", asks=shown, holds=f"4xx that names {field}", offered=offered)
    async def _check(t: Trial) -> None:
        await plain(t)
        refused(await post(t, **{field: value}), shown, field)
