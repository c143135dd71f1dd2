"""The OpenAPI document: written by hand, with the bodies from the tables that validate them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain import __version__
from drivetrain.core.receipt import Receipt
from drivetrain.core.results import FinishReason
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.parse.bodies import BODIES
from drivetrain.server.parse.body import Body
from drivetrain.server.parse.messages import COUNT, MESSAGES
from drivetrain.server.parse.ollama import (
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_PULL,
    OLLAMA_SHOW,
)
from drivetrain.server.parse.rerank import RERANK, SCORE
from drivetrain.server.parse.responses import RESPONSE
from drivetrain.server.parse.schema import ADMIN, CHAT, COMPLETION, DETOKENIZE, EMBEDDING, TOKENIZE

_REF = "#/components/schemas/"
_SSE, _LINES = "text/event-stream", "application/x-ndjson"

_FAILURES = {
    400: "the request is wrong; error.param names the field",
    401: "an API key is required",
    403: "this host name or origin is not allowed",
    404: "no such model or endpoint",
    405: "method not allowed",
    408: "the request did not arrive in time",
    409: "the model's current state does not allow this",
    413: "the body is too large",
    429: "the queue is full; see retry-after",
    431: "the headers are too large",
    500: "the engine failed",
    503: "loading, draining or stopped; see retry-after",
    504: "the request timed out",
}


async def document(request: Request, context: Context) -> Response:
    return json_response(_spelled())


@cache
def _spelled() -> bytes:
    """200 kB, 7 ms of work: not for each request."""
    return bytes(json_response(build()).body)


@cache
def build() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Drivetrain",
            "version": __version__,
            "description": "The OpenAI API for one or several models.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _paths() -> dict[str, Any]:
    return {**_openai_paths(), **_ollama_paths(), **_own_paths()}


def _openai_paths() -> dict[str, Any]:
    return {
        "/v1/models": {"get": _get("List the models", _object("object", "data"))},
        "/v1/models/{name}": {
            "get": _get("One model and its capabilities", _object("id", "object", "created", "state"), parameter="name")
        },
        "/v1/chat/completions": {"post": _post("Answer a chat", CHAT, _ANSWER, streams=_SSE)},
        "/v1/completions": {"post": _post("Complete a prompt", COMPLETION, _ANSWER, streams=_SSE)},
        "/v1/responses": {
            "post": _post(
                "Answer a conversation, as Open Responses has it",
                RESPONSE,
                _object("id", "object", "status", "output"),
                streams=_SSE,
            )
        },
        "/v1/messages": {
            "post": _post(
                "Answer a chat, as Anthropic's API has it",
                MESSAGES,
                _object("id", "type", "role", "content", "usage"),
                streams=_SSE,
            )
        },
        "/v1/messages/count_tokens": {"post": _post("Count the tokens of such a chat", COUNT, _object("input_tokens"))},
        "/v1/embeddings": {
            "post": _post("Make a vector for each text", EMBEDDING, _object("object", "data", "model", "usage"))
        },
        **{
            path: {"post": _post("Put documents in the order of how well they fit a query", RERANK, _RANKED)}
            for path in ("/v1/rerank", "/v2/rerank", "/rerank")
        },
        **{
            path: {"post": _post("Score pairs of texts", SCORE, _object("id", "object", "model", "data", "usage"))}
            for path in ("/v1/score", "/score")
        },
    }


def _ollama_paths() -> dict[str, Any]:
    """Failures have the same statuses, and a body of their own."""
    answer, vectors = _object("model", "created_at", "done"), _object("model", "embeddings")
    paths = {
        "/api/chat": {"post": _post("Answer a chat, as Ollama's API has it", OLLAMA_CHAT, answer, streams=_LINES)},
        "/api/generate": {"post": _post("Answer a prompt, as it has it", OLLAMA_GENERATE, answer, streams=_LINES)},
        "/api/embed": {"post": _post("Make a vector for each text, as it has it", OLLAMA_EMBED, vectors)},
        "/api/embeddings": {"post": _post("Make a vector, as it had it", OLLAMA_EMBEDDINGS, _object("embedding"))},
        "/api/tags": {"get": _get("List the models, as it has it", _object("models"))},
        "/api/ps": {"get": _get("The models that are loaded", _object("models"))},
        "/api/version": {"get": _get("The version of Ollama whose API this is", _object("version"))},
        "/api/show": {"post": _post("One model and its capabilities", OLLAMA_SHOW, _object("details", "model_info"))},
        "/api/pull": {"post": _post("Whether a model is here", OLLAMA_PULL, _object("status"))},
        **{path: {"post": _not_here()} for path in ("/api/push", "/api/create", "/api/copy")},
        "/api/delete": {"delete": _not_here()},
    }
    for path in paths.values():
        for operation in path.values():
            operation["responses"] |= _failures("OllamaError")
    return paths


def _own_paths() -> dict[str, Any]:
    return {
        "/tokenize": {"post": _post("Turn a prompt or chat into token ids", TOKENIZE, _object("tokens", "count"))},
        "/detokenize": {"post": _post("Turn token ids into text", DETOKENIZE, _object("prompt"))},
        "/tokenizer_info": {"get": _get("The special tokens and the chat template", _object("chat_template"))},
        "/health": {"get": _get("Liveness; 503 if only a restart of the process helps", _object("status"))},
        "/ready": {"get": _get("Readiness: whether requests are accepted now", _object("status"))},
        "/status": {
            "get": _get(
                "The state of the server and its models", _object("state", "running", "waiting", "tokens_per_s")
            )
        },
        "/metrics": {"get": _get("Metrics for Prometheus", {"type": "string"}, media="text/plain")},
        "/admin/models": {"get": _get("Every model and its state", _object("object", "data"))},
        "/admin/models/load": {"post": _change("Load a model", 202)},
        "/admin/models/unload": {"post": _change("Unload a model that is not in use", 202)},
        "/admin/models/pin": {"post": _change("Load a model and keep it loaded", 200)},
        "/admin/models/unpin": {"post": _change("Unpin a model, so that it may be unloaded again", 200)},
        "/openapi.json": {"get": _get("This document", _object("openapi", "paths"))},
    }


def _object(*required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required)}


_ANSWER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"enum": ["chat.completion", "text_completion"]},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "logprobs", "finish_reason"],
                "properties": {"index": {"type": "integer"}, "finish_reason": {"enum": [*FinishReason]}},
            },
        },
        "usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]},
        "receipt": {"$ref": _REF + "Receipt"},
        "receipts": {"type": "array", "items": {"$ref": _REF + "Receipt"}, "description": "for several prompts"},
    },
}


_RANKED: dict[str, Any] = {
    "type": "object",
    "required": ["id", "model", "results", "usage", "meta"],
    "properties": {
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "relevance_score"],
                "properties": {
                    "index": {"type": "integer", "minimum": 0},
                    "relevance_score": {"type": "number", "minimum": 0, "maximum": 1},
                },
            },
        }
    },
}


def _get(
    summary: str, schema: dict[str, Any], *, parameter: str = "", media: str = "application/json"
) -> dict[str, Any]:
    responses = {"200": _answer(summary, schema, media)} | _failures()
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if parameter:
        operation["parameters"] = [
            {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    return operation


def _post(summary: str, body: Body, schema: dict[str, Any], *, streams: str = "") -> dict[str, Any]:
    answer = _answer(summary, schema, "application/json")
    if streams:
        answer["content"][streams] = {}
    content = {"application/json": {"schema": {"$ref": _REF + body.name}}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": answer} | _failures(),
    }


def _not_here() -> dict[str, Any]:
    return {"summary": "Refused: models are fetched and named by commands", "responses": {}}


def _change(summary: str, status: int) -> dict[str, Any]:
    operation = _post(summary, ADMIN, _object("id", "object", "state", "pinned"))
    operation["responses"][str(status)] = operation["responses"].pop("200")
    return operation


def _answer(summary: str, schema: dict[str, Any], media: str) -> dict[str, Any]:
    return {"description": summary, "content": {media: {"schema": schema}}}


def _failures(error: str = "Error") -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF + error}}}
    return {str(status): {"description": meaning, "content": content} for status, meaning in _FAILURES.items()}


def _schemas() -> dict[str, Any]:
    nullable = {"type": ["string", "null"]}
    error = {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable},
    }
    ready = {"properties": {"error": error, "status": {"type": "string"}, "models": {"type": "object"}}}
    bodies = {body.name: body.schema() for body in BODIES}
    ollama = {**_object("error"), "properties": {"error": {"type": "string"}, "param": nullable, "code": nullable}}
    return {**bodies, "Error": {"type": "object", **ready}, "OllamaError": ollama, "Receipt": _receipt()}


def _receipt() -> dict[str, Any]:
    """What `core/receipt.py` says of each field, by its name alone: the guide has the rest."""
    required = [field.name for field in fields(Receipt) if field.default is MISSING]
    return {
        "type": "object",
        "description": "what made the answer, sealed by its digest",
        "properties": {field.name: {} for field in fields(Receipt)},
        "required": [*required, "digest"],
    }
