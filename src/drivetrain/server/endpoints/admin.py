"""`/admin/models`: what is loaded and why, and how to change it. The guard has already checked the key."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.errors import InvalidRequest
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response, refusal
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.models import ServedModel
from drivetrain.server.parse.schema import ADMIN

NO_STORE = {"cache-control": "no-store"}


async def list_models(request: Request, context: Context) -> Response:
    return json_response({"object": "list", "data": context.models.report()}, headers=NO_STORE)


async def load(exchange: Exchange, context: Context) -> Response:
    """Answers at once; the list shows the progress."""
    return await _change(exchange, context, context.models.load, 202)


async def unload(exchange: Exchange, context: Context) -> Response:
    return await _change(exchange, context, context.models.unload, 202)


async def pin(exchange: Exchange, context: Context) -> Response:
    return await _change(exchange, context, context.models.pin, 200)


async def unpin(exchange: Exchange, context: Context) -> Response:
    return await _change(exchange, context, context.models.unpin, 200)


async def _change(exchange: Exchange, context: Context, act: Callable[[str], ServedModel], status: int) -> Response:
    """The model as it is afterwards, or 409 if its current state does not allow the change."""
    values = await read_body(exchange, context, ADMIN)
    try:
        name = act(values["model"]).name
    except InvalidRequest as exc:
        return refusal(409, exc.message, kind="invalid_request_error", code="conflict")
    model = next(report for report in context.models.report() if report["id"] == name)
    return json_response(model, status, NO_STORE)
