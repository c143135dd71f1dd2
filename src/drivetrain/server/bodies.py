"""The one way from a request to its judged values: received, counted, decoded, judged once by the endpoint's table."""

from __future__ import annotations

import asyncio

from drivetrain.server.budget import release_body
from drivetrain.server.context import Context
from drivetrain.server.exchange import Exchange
from drivetrain.server.fields import Body, Values
from drivetrain.server.settings import UnknownFields
from drivetrain.server.structure import read_object

AT_ONCE_BYTES = 65_536
"""A larger body is parsed by a thread, so that the event loop does not wait for it."""


async def read_body(
    exchange: Exchange, context: Context, body: Body, *, strict: bool = False, may_be_empty: bool = False
) -> Values:
    """Raises `InvalidRequest` or `Unsupported`, naming the field."""
    lenient = context.settings.unknown_fields == UnknownFields.WARN and not strict
    max_values = context.settings.max_body_values

    def parse(data: bytes) -> Values:
        return body.judge(read_object(data, max_values), lenient=lenient)

    try:
        data = await exchange.take_body()
        if may_be_empty and not data:
            data = b"{}"
        if len(data) <= AT_ONCE_BYTES:
            return parse(data)
        return await asyncio.get_running_loop().run_in_executor(context.parser, parse, data)
    finally:
        release_body(exchange.scope)
