"""FastChat's worker protocol: the routes that its controller, its API server and its web server call.

They render prompts themselves, with the conversation template that this worker gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.errors import DrivetrainError, Unsupported
from drivetrain.core.events import Delta, Event
from drivetrain.core.kinds import Integer, ListOf, OneOf, String
from drivetrain.core.results import Result, TokenLogprob, Usage
from drivetrain.core.worker import WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.dropin.answers import SoFar, SoFarFormatter, answered, respond
from drivetrain.server.dropin.codes import code_of
from drivetrain.server.dropin.conversation import conversation
from drivetrain.server.dropin.translate import SAMPLING, parsed_request, sampling
from drivetrain.server.encoding import Each
from drivetrain.server.endpoints.embeddings import as_base64
from drivetrain.server.errors import json_response
from drivetrain.server.format.openai import compact, completion_logprobs
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_request
from drivetrain.server.models import Models
from drivetrain.server.parse.body import Body, Field, Values
from drivetrain.server.parse.schema import MODEL_OR_ONLY, Encoding, Refused, later, like
from drivetrain.server.parse.translate import ParsedRequest, trace_headers

MAX_NEW_TOKENS = 256
"""The protocol's default."""

GROWTH = 8
"""Each part has all logprobs so far, so the next one is sent once there are an eighth more than in the last."""

_NAMES = {"max_tokens": "max_new_tokens", "prompt_logprobs": "logprobs"}


class _NoImages(Refused):
    """FastChat's multimodal models accept images here; ours only in a chat."""

    def judge(self, name: str, value: Any) -> None:
        if value:
            raise Unsupported("this protocol does not accept images; use /v1/chat/completions", param=name)


_NAMED = Body("FastChatNamed", {"model": MODEL_OR_ONLY, "prompt": Field(String(), "a string")})
"""For requests that only name a model. Their API server sends a prompt with some, and nothing at all with others."""

_GENERATE = Body(
    "FastChatGenerate",
    {
        "model": MODEL_OR_ONLY,
        "prompt": Field(String(), "a prompt rendered by the caller", required=True),
        **SAMPLING,
        "echo": like("echo"),
        "logprobs": like("logprobs", kind=Integer()),
        "seed": like("seed"),
        "best_of": later(1),
        "use_beam_search": later(False),
        "images": Field(_NoImages(([],)), "only an empty list", refused=True),
    },
)

_EMBED = Body(
    "FastChatEmbed",
    {
        "model": MODEL_OR_ONLY,
        "input": Field(ListOf(String(), or_one=True), "a string or a list of strings", required=True),
        "encoding_format": Field(OneOf(Encoding), "float by default"),
    },
)


async def _read(exchange: Exchange, context: Context) -> tuple[str | None, ParsedRequest]:
    body, parsed = await read_request(exchange, context, _GENERATE, partial(_parsed, exchange))
    return body.get("model"), parsed


class _LogprobsSoFar:
    """Encodes each entry only once, when it comes: an echoed prompt may have tens of thousands, and each part of a
    stream has all of them."""

    def __init__(self) -> None:
        self._arrays: dict[str, bytearray] = {}
        self._count = self._sent = 0

    def add(self, entries: Sequence[TokenLogprob]) -> None:
        for name, items in completion_logprobs(entries).items():
            array = self._arrays.setdefault(name, bytearray(f'"{name}":['.encode()))
            array += (b"," if self._count and entries else b"") + compact(items)[1:-1].encode()
        self._count += len(entries)

    @property
    def enough(self) -> bool:
        """Whether there are enough new ones for another part."""
        return self._count * GROWTH >= self._sent * (GROWTH + 1)

    def spell(self) -> bytes:
        self._sent = self._count
        return b"{%b]}" % b"],".join(self._arrays.values()) if self._arrays else b"null"


class FastChatFormatter(SoFarFormatter):
    def __init__(self) -> None:
        super().__init__()
        self._logprobs = _LogprobsSoFar()

    def spell(self, so_far: SoFar) -> dict[str, Any]:
        return {
            "text": so_far.text,
            "error_code": 0,
            "usage": {
                "prompt_tokens": so_far.usage.prompt_tokens,
                "completion_tokens": so_far.usage.completion_tokens,
                "total_tokens": so_far.usage.total_tokens,
            },
            "finish_reason": so_far.reason,
        }

    def add(self, event: Event) -> bool:
        if isinstance(event, Delta) and event.logprobs is not None:
            self._logprobs.add(event.logprobs)
        return super().add(event) and self._logprobs.enough

    def part(self) -> bytes:
        start = super().part().removesuffix(b"}")
        return b'%b,"logprobs":%b}' % (start, self._logprobs.spell())

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        (choice,) = results[0].choices
        logprobs = None if choice.logprobs is None else completion_logprobs(choice.logprobs)
        return {**super().whole(results, usage), "logprobs": logprobs}

    def failed(self, error: DrivetrainError) -> dict[str, Any]:
        return {"text": error.message, "error_code": code_of(error)}


def _parsed(request: Request, body: Values) -> ParsedRequest:
    echo, logprobs = body.get("echo", True), body.get("logprobs")
    values = {
        "prompt": body["prompt"],
        **sampling(body),
        "max_tokens": body.get("max_new_tokens", MAX_NEW_TOKENS),
        "echo": echo,
        "logprobs": logprobs,
        "prompt_logprobs": logprobs if echo else None,
        "seed": body.get("seed"),
    }
    return parsed_request(request, body, values, _NAMES, logprobs=logprobs is not None)


async def generate_stream(exchange: Exchange, context: Context) -> Response | None:
    return await respond(exchange, context, _read, FastChatFormatter(), stream=True)


async def generate(exchange: Exchange, context: Context) -> Response | None:
    return await respond(exchange, context, _read, FastChatFormatter(), stream=False)


async def get_embeddings(exchange: Exchange, context: Context) -> Response:
    trace = trace_headers(exchange.headers)

    async def embedded(body: Values, worker: WorkerPort) -> dict[str, Any]:
        result = await worker.embed(body["input"], trace_context=trace)
        encode = as_base64 if body.get("encoding_format") is Encoding.BASE64 else list
        return {"embedding": Each(result.vectors, encode), "token_num": result.usage.prompt_tokens}

    return await answered(exchange, context, FastChatFormatter(), _EMBED, embedded)


async def get_status(request: Request, context: Context) -> Response:
    """503 while no requests are accepted: a controller that refreshes its list then removes this worker."""
    return json_response(status_of(context.models), 200 if context.models.ready else 503)


def status_of(models: Models) -> dict[str, Any]:
    """What a controller learns about this worker, at registration and whenever it asks."""
    return {
        "model_names": [name for member in models.members for name in (member.name, *member.aliases)],
        "speed": 1,
        "queue_length": queue_length(models),
    }


def queue_length(models: Models) -> int:
    """Requests that run, wait for a slot, or wait for their model."""
    statuses = [worker.status for _, worker in models]
    return sum(s.running + s.waiting for s in statuses) + sum(member.num_waiting for member in models.members)


class _Counting(FastChatFormatter):
    """An engine without ids cannot count; their API server then leaves the limit to the request itself."""

    def failed(self, error: DrivetrainError) -> dict[str, Any]:
        return {"count": 0, **super().failed(error)}


async def count_token(exchange: Exchange, context: Context) -> Response:
    return await answered(exchange, context, _Counting(), _NAMED, _count)


async def _count(body: Values, worker: WorkerPort) -> dict[str, Any]:
    return {"count": len(await worker.tokenize(body.get("prompt", ""))), "error_code": 0}


async def model_details(exchange: Exchange, context: Context) -> Response:
    return await answered(exchange, context, FastChatFormatter(), _NAMED, _details)


async def _details(body: Values, worker: WorkerPort) -> dict[str, Any]:
    return {"context_length": worker.capabilities.context_length}


async def get_conv_template(exchange: Exchange, context: Context) -> Response:
    """Their API server caches the template, or whatever comes instead with a status other than 200. An answer without
    `conv` fails only the request at hand."""
    return await answered(exchange, context, FastChatFormatter(), _NAMED, _template)


async def _template(body: Values, worker: WorkerPort) -> dict[str, Any]:
    return {"conv": await conversation(worker)}


ROUTES = (
    ("POST", "/worker_generate_stream", generate_stream),
    ("POST", "/worker_generate", generate),
    ("POST", "/worker_get_embeddings", get_embeddings),
    ("POST", "/worker_get_status", get_status),
    ("POST", "/count_token", count_token),
    ("POST", "/model_details", model_details),
    ("POST", "/worker_get_conv_template", get_conv_template),
)
