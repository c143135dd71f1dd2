"""What a check is given to send its requests."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import Api
from drivetrain.tools.conform.client import Broken, Client, Unreachable
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, refused
from drivetrain.tools.conform.requester import LEFT_OUT, Requester
from drivetrain.tools.conform.survey import Survey
from drivetrain.tools.conform.verdict import Failed

REFUSAL_S = 20.0


class Trial(Requester):
    """For one case. `known` is shared by all cases of a run."""

    def __init__(self, client: Client, model: str, known: Survey) -> None:
        super().__init__(client, model)
        self.known = known

    async def refuse(self, api: Api, name: str, value: Any, /, **fields: Any) -> RecordedExchange:
        """A plain request with this field must be refused by name, and quickly."""
        what = f"a request without {name}" if value is LEFT_OUT else f"{name} = {brief(value, 40)}"
        body = self.body(api, **{name: value}, **fields)
        limit = min(REFUSAL_S, self.client.timeout_s)
        try:
            exchange = await self.ask("POST", self.base + api.path, body, timeout_s=limit)
        except Unreachable:
            raise
        except Broken as exc:
            raise Failed(f"{what} was not refused: {exc}") from None
        refused(exchange, what, name)
        return exchange
