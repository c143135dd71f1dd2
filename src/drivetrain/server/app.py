"""The application: every route, the errors they may end in, and the guard in front."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from drivetrain.core.errors import DrivetrainError
from drivetrain.server import cards, live, openapi, static, tokens
from drivetrain.server.chat import chat
from drivetrain.server.completions import completions
from drivetrain.server.context import Context
from drivetrain.server.embeddings import embeddings
from drivetrain.server.errors import error_response, refusal
from drivetrain.server.guard import Guard
from drivetrain.server.models import Models
from drivetrain.server.settings import ServerSettings

Endpoint = Callable[[Request, Context], Awaitable[Any]]

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/v1/models", cards.list_models),
    ("GET", "/v1/models/{name:path}", cards.retrieve_model),
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/embeddings", embeddings),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("GET", "/health", live.health),
    ("GET", "/ready", live.ready),
    ("GET", "/status", live.status),
    ("GET", "/metrics", live.metrics),
    ("GET", "/openapi.json", openapi.document),
    ("GET", "/", static.page),
    ("GET", "/{name}", static.page),
)


def create_app(models: Models, settings: ServerSettings | None = None) -> Starlette:
    settings = settings or ServerSettings()
    context = Context(models, settings)
    app = Starlette(
        routes=[_route(method, path, handler, context) for method, path, handler in ROUTES],
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={DrivetrainError: _told, HTTPException: _not_here},
    )
    app.router.redirect_slashes = False
    return app


def _route(method: str, path: str, handler: Endpoint, context: Context) -> Route:
    methods = [method, "HEAD", "OPTIONS"] if method == "GET" else [method, "OPTIONS"]
    return Route(path, partial(_dispatch, handler, context, methods), methods=methods)


async def _dispatch(handler: Endpoint, context: Context, methods: list[str], request: Request) -> Any:
    if request.method == "OPTIONS":
        return Response(headers={"allow": ", ".join(methods)})
    return await handler(request, context)


async def _told(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, DrivetrainError)
    return error_response(exc)


async def _not_here(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    status = exc.status_code
    message, code = {
        404: ("there is nothing at this address; see /openapi.json", "not_found"),
        405: ("this address does not take this method", "method_not_allowed"),
    }.get(status, ("the request cannot be served", "error"))
    return refusal(status, message, kind="invalid_request_error", code=code, headers=exc.headers)
