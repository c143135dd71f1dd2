"""The application: every route, the errors they may end in, and the guard in front.

Plain ASGI: every layer between the connection and an answer costs time for each token.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from drivetrain.core.errors import DrivetrainError, drop_frames
from drivetrain.server.context import Context
from drivetrain.server.counts import ROUTE_KEY
from drivetrain.server.endpoints import admin, cards, health, ollama, openapi, rerank, static, tokens
from drivetrain.server.endpoints.embeddings import embeddings
from drivetrain.server.errors import error_response, refusal
from drivetrain.server.faces import in_shape
from drivetrain.server.format.chat import chat
from drivetrain.server.format.completions import completions
from drivetrain.server.format.messages import count_tokens, messages
from drivetrain.server.format.ollama import chat as ollama_chat
from drivetrain.server.format.ollama import generate as ollama_generate
from drivetrain.server.format.responses import responses
from drivetrain.server.guard import Guard
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.metrics import endpoint as metrics
from drivetrain.server.models import Models
from drivetrain.server.refusals import record_refusal
from drivetrain.server.settings import ServerSettings
from drivetrain.telemetry.tracing import GenAiTracer

Endpoint = Callable[[Exchange, Context], Awaitable[Response | None]]
"""Returns the response to send, or None if it has already sent its answer."""

Route = tuple[str, str, Endpoint]
"""Method, path and endpoint."""

ROUTES: tuple[Route, ...] = (
    ("GET", "/v1/models", cards.list_models),
    ("GET", "/v1/models/{name:path}", cards.retrieve_model),
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/responses", responses),
    ("POST", "/v1/messages", messages),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/v1/embeddings", embeddings),
    ("POST", "/v1/rerank", rerank.rerank),
    ("POST", "/v2/rerank", rerank.rerank_by_index),
    ("POST", "/rerank", rerank.rerank),
    ("POST", "/v1/score", rerank.score),
    ("POST", "/score", rerank.score),
    ("POST", "/api/chat", ollama_chat),
    ("POST", "/api/generate", ollama_generate),
    ("POST", "/api/embed", ollama.embed),
    ("POST", "/api/embeddings", ollama.embeddings),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.loaded),
    ("GET", "/api/version", ollama.version),
    ("POST", "/api/show", ollama.show),
    ("POST", "/api/pull", ollama.pull),
    ("POST", "/api/push", ollama.not_here),
    ("POST", "/api/create", ollama.not_here),
    ("POST", "/api/copy", ollama.not_here),
    ("DELETE", "/api/delete", ollama.not_here),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("GET", "/tokenizer_info", tokens.tokenizer_info),
    ("GET", "/health", health.health),
    ("GET", "/ready", health.ready),
    ("GET", "/status", health.status),
    ("GET", "/metrics", metrics.metrics),
    ("GET", "/admin/models", admin.list_models),
    ("POST", "/admin/models/load", admin.load),
    ("POST", "/admin/models/unload", admin.unload),
    ("POST", "/admin/models/pin", admin.pin),
    ("POST", "/admin/models/unpin", admin.unpin),
    ("GET", "/openapi.json", openapi.document),
    ("GET", "/", static.page),
    ("GET", "/vendor/{name}", static.page),
    ("GET", "/{name}", static.page),
)
"""A name at the end of a path matches one segment, or with `:path` all the rest."""

_APIS = tuple(path for _, path, _ in ROUTES if path.startswith(("/v1/", "/api/")) and "{" not in path)
_BASES = ("/v1", "/api")

_ELSEWHERE = {
    "/v1/complete": "/v1/messages",
    "/completion": "/v1/completions",
    "/complete": "/v1/completions",
    "/infill": "/v1/completions",
    "/generate": "/v1/completions",
    "/generate_stream": "/v1/completions",
    "/v1/generate": "/v1/completions",
    "/chat": "/v1/chat/completions",
    "/v1/chat": "/v1/chat/completions",
    "/api/completions": "/v1/completions",
    "/embed": "/v1/embeddings",
    "/v1/embed": "/v1/embeddings",
    "/api/models": "/v1/models",
}
"""What other servers call an endpoint, or an API had before."""


def create_app(
    models: Models,
    settings: ServerSettings | None = None,
    tracer: GenAiTracer | None = None,
    more_routes: Sequence[Route] = (),
) -> ASGIApp:
    settings = settings or ServerSettings()
    context = Context(models, settings, tracer=tracer)
    return Guard(App(context, (*more_routes, *ROUTES)), settings, context.counts)


class App:
    """Finds the endpoint for a request, and turns errors before the answer begins into a status and a body."""

    def __init__(self, context: Context, routes: Sequence[Route]) -> None:
        self._context = context
        self._exact = {path: (method, handler) for method, path, handler in routes if "{" not in path}
        self._named = [(path.partition("{"), method, handler) for method, path, handler in routes if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_ns = time.time_ns()
        exchange = Exchange(scope, receive, send)
        await exchange.body()
        async with exchange.while_client_stays():
            try:
                response = await self._answer(exchange)
            except DrivetrainError as exc:
                self._context.counts.refused(exc)
                record_refusal(self._context.tracer, scope, exc, began_ns)
                response = error_response(exc)
                drop_frames(exc)
            except HTTPException as exc:
                response = _error_page(exc, scope["path"])
            if response is not None:
                await in_shape(response, scope["path"])(scope, receive, exchange.send)

    async def _answer(self, exchange: Exchange) -> Response | None:
        methods, handler = self._find(exchange)
        if exchange.method not in methods:
            raise HTTPException(405, headers={"allow": ", ".join(methods)})
        if exchange.method == "OPTIONS":
            return Response(headers={"allow": ", ".join(methods)})
        return await handler(exchange, self._context)

    def _find(self, exchange: Exchange) -> tuple[list[str], Endpoint]:
        """The methods that the path allows, and its endpoint."""
        path = exchange.scope["path"]
        if path in self._exact:
            exchange.scope[ROUTE_KEY] = path
            method, handler = self._exact[path]
            return _with(method), handler
        for (start, _, kind), method, handler in self._named:
            name = path.removeprefix(start)
            if path.startswith(start) and name and (kind == "name:path}" or "/" not in name):
                if start == "/" and exchange.method not in _with(method):
                    break  # the page's files can only be read, so this cannot mean one of them
                exchange.scope["path_params"] = {"name": name}
                exchange.scope[ROUTE_KEY] = f"{start}{{name}}"
                return _with(method), handler
        raise HTTPException(404)


def _with(method: str) -> list[str]:
    return [method, "HEAD", "OPTIONS"] if method == "GET" else [method, "OPTIONS"]


def _error_page(exc: HTTPException, path: str) -> Response:
    status = exc.status_code
    message, code = {
        404: (f"no such endpoint{_instead(path)}; see /openapi.json", "not_found"),
        405: ("method not allowed", "method_not_allowed"),
    }.get(status, ("the request cannot be served", "error"))
    return refusal(status, message, kind="invalid_request_error", code=code, headers=exc.headers)


def _instead(path: str) -> str:
    """A hint for clients with a wrong base URL, or with another API in mind."""
    path = path.rstrip("/")
    if path in _ELSEWHERE:
        return f"; did you mean {_ELSEWHERE[path]}?"
    if path.startswith("/v1/v1/"):
        return f"; did you mean {path[3:]}? Give a base URL with a single /v1" if path[3:] in _APIS else ""
    if (base := next((base for base in _BASES if base + path in _APIS), None)) is not None:
        return f"; did you mean {base}{path}? Give a base URL that ends in {base}"
    if (end := next((api for api in _APIS if path.endswith(api)), None)) is not None:
        return f"; did you mean {end}? Give a base URL without {path.removesuffix(end)}"
    base = next((base for base in _BASES if path.startswith(f"{base}/")), None)
    return "" if base is None else f"; under {base} there are {', '.join(one for one in _APIS if one.startswith(base))}"
