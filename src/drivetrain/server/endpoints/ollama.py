"""Ollama's API beside its answers: the models and what each can do, vectors, and what only a command does here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain import __version__
from drivetrain.core.errors import ContextOverflow, InvalidRequest, ModelNotFound
from drivetrain.core.worker import WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.encoding import encoded
from drivetrain.server.endpoints.embeddings import embedded
from drivetrain.server.errors import json_response, refusal, renamed
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.models import ServedModel, tagged
from drivetrain.server.parse.body import Values
from drivetrain.server.parse.ollama import OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_PULL, OLLAMA_SHOW

SPOKEN = "0.12.11"
"""The version of Ollama whose API this is: its clients look whether theirs is served."""


async def version(request: Request, context: Context) -> Response:
    return json_response({"version": SPOKEN, "drivetrain": __version__})


async def tags(request: Request, context: Context) -> Response:
    made = _time(context.models.created)
    return json_response(
        {
            "models": [
                {"name": name, "model": name, "modified_at": made, "size": 0, "digest": "", "details": _details(model)}
                for model in context.models.members
                for name in (model.name, *model.aliases)
            ]
        }
    )


async def loaded(request: Request, context: Context) -> Response:
    """`/api/ps`: when a model will be unloaded is not known before another needs the room."""
    models = [(model, model.worker) for model in context.models.members if model.worker is not None]
    return json_response({"models": [_running(model, worker) for model, worker in models]})


async def show(exchange: Exchange, context: Context) -> Response:
    values = await read_body(exchange, context, OLLAMA_SHOW)
    model = context.models.member(tagged(context.models, _named(values)))
    document = {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(model),
        "modified_at": _time(context.models.created),
    }
    if model.worker is None:  # looking at a model does not load it
        return json_response(document | {"model_info": {}}, headers=values.headers)
    told = {
        "parameters": _parameters(model.worker),
        "model_info": _info(model.worker),
        "capabilities": _capabilities(model.worker),
    }
    return json_response(document | told, headers=values.headers)


async def embed(exchange: Exchange, context: Context) -> Response:
    began = time.monotonic()
    values = await read_body(exchange, context, OLLAMA_EMBED)
    name = tagged(context.models, values["model"])
    vectors: Sequence[Sequence[float]] = ()
    count = 0
    if values["input"]:
        try:
            made = await embedded(exchange, context, values, name)
        except ContextOverflow as exc:
            if not values.get("truncate"):
                raise
            what = f"truncate is not supported: {exc.message}; send a shorter text"
            raise InvalidRequest(what, param="truncate") from exc
        vectors, count = made.vectors, made.usage.prompt_tokens
    document = {
        "model": values["model"],
        "embeddings": vectors,
        "total_duration": round((time.monotonic() - began) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": count,
    }
    return json_response(await encoded(document), headers=values.headers)


async def embeddings(exchange: Exchange, context: Context) -> Response:
    values = await read_body(exchange, context, OLLAMA_EMBEDDINGS)
    name = tagged(context.models, values["model"])
    vector: Sequence[float] = ()
    if "prompt" in values:
        values["input"] = (values["prompt"],)
        try:
            (vector,) = (await embedded(exchange, context, values, name)).vectors
        except InvalidRequest as exc:
            raise renamed(exc, {"input": "prompt"}) from exc
    return json_response(await encoded({"embedding": vector}), headers=values.headers)


async def pull(exchange: Exchange, context: Context) -> Response:
    """Tools pull a model before they use it, and one that is served is there."""
    values = await read_body(exchange, context, OLLAMA_PULL)
    try:
        tagged(context.models, _named(values))
    except ModelNotFound:
        return await not_here(exchange, context)
    return json_response({"status": "success"}, headers=values.headers)


async def not_here(exchange: Exchange, context: Context) -> Response:
    """What models there are is said where the server is started."""
    what = "this server does not fetch or change models: use drivetrain pull, and name the models to drivetrain serve"
    return refusal(404, what, kind="invalid_request_error", code="not_supported")


def _named(values: Values) -> str:
    name: str = values["model"] if "model" in values else values["name"]
    return name


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _details(model: ServedModel) -> dict[str, Any]:
    """Of a model that is not loaded, nothing is known."""
    worker = model.worker
    family = "" if worker is None else worker.metadata.architecture
    return {
        "parent_model": "",
        "format": "" if worker is None else _FORMATS.get(worker.metadata.engine, "safetensors"),
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": "" if worker is None else worker.metadata.dtype,
    }


_FORMATS = {"llamacpp": "gguf", "remote": ""}


def _running(model: ServedModel, worker: WorkerPort) -> dict[str, Any]:
    memory = worker.status.memory
    on_devices = sum(one.allocated_bytes for one in memory if not one.device.startswith(("cpu", "host")))
    return {
        "name": model.name,
        "model": model.name,
        "size": sum(one.allocated_bytes for one in memory),
        "digest": "",
        "details": _details(model),
        "size_vram": on_devices,
        "context_length": worker.metadata.context_length,
    }


def _parameters(worker: WorkerPort) -> str:
    """The defaults, a line each."""
    told = [(name, value) for name, (_, value) in worker.metadata.sampling.items() if not isinstance(value, Mapping)]
    lines = [f"{_OPTIONS.get(name, name)} {value}" for name, value in told if not isinstance(value, (list, tuple))]
    return "\n".join([*lines, *(f'stop "{stop}"' for stop in worker.metadata.stop)])


_OPTIONS = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}


def _info(worker: WorkerPort) -> dict[str, Any]:
    metadata, architecture = worker.metadata, worker.metadata.architecture
    return {
        "general.architecture": architecture,
        f"{architecture}.context_length": worker.capabilities.context_length,
        f"{architecture}.embedding_length": metadata.embedding_size,
        f"{architecture}.vocab_size": metadata.vocab_size,
    }


def _capabilities(worker: WorkerPort) -> list[str]:
    capabilities = worker.capabilities
    chats = capabilities.chat and capabilities.generation
    able = {
        "completion": capabilities.generation,
        "insert": "suffix" in capabilities.parameters,
        "tools": chats and "tools" in capabilities.parameters,
        "vision": capabilities.vision,
        "thinking": chats and worker.metadata.reasons,
        "embedding": capabilities.embeddings,
    }
    return [name for name, is_able in able.items() if is_able]
