"""`/v1/models`: the models, and all that each can do, in enough detail to build a form from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.status import Metadata
from drivetrain.core.worker import WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.parse.body import Field
from drivetrain.server.parse.schema import CHAT, COMPLETION, CONSTRAINTS

_NAMES = {
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "logprobs",
    **dict.fromkeys(CONSTRAINTS, "constraint"),
}
"""HTTP fields that have another name in our requests."""

_SHOWN = ("type", "minimum", "maximum", "exclusiveMinimum", "enum")


async def list_models(request: Request, context: Context) -> Response:
    names = [name for model in context.models.members for name in (model.name, *model.aliases)]
    return json_response({"object": "list", "data": [_card(name, context) for name in names]})


async def retrieve_model(request: Request, context: Context) -> Response:
    name = request.path_params["name"]
    card, worker = _card(name, context), context.models.member(name).worker
    if worker is None:  # looking at a model does not load it
        return json_response(card)
    return json_response(card | {"capabilities": capabilities_json(worker)})


def _card(name: str, context: Context) -> dict[str, Any]:
    """`state` is ready, loading or unloaded, among others; the first request to a model loads it."""
    model = context.models.member(name)
    alias = {"alias_of": model.name} if name != model.name else {}
    created = context.models.created
    return {"id": name, "object": "model", "created": created, "owned_by": "drivetrain", "state": model.state, **alias}


def capabilities_json(worker: WorkerPort) -> dict[str, Any]:
    capabilities, metadata = worker.capabilities, worker.metadata
    return {
        "engine": metadata.engine,
        "architecture": metadata.architecture,
        "family": metadata.family,
        "answer_form": metadata.answer_form,
        "tool_form": metadata.tool_form,
        "device": metadata.device,
        "dtype": metadata.dtype,
        "context_length": capabilities.context_length,
        "vocab_size": metadata.vocab_size,
        "eos_ids": metadata.eos_ids if capabilities.tokens else None,
        "stop": metadata.stop,
        "max_concurrency": capabilities.max_concurrency,
        "generation": capabilities.generation,
        "chat": capabilities.chat and capabilities.generation,
        "tools": capabilities.chat and capabilities.generation and "tools" in capabilities.parameters,
        "infill": "suffix" in capabilities.parameters,
        "infill_tokens": dict(metadata.infill_tokens),
        "template_variables": sorted(capabilities.template_variables),
        "vision": capabilities.vision,
        "embeddings": capabilities.embeddings,
        "embedding_size": metadata.embedding_size if capabilities.embeddings else None,
        "pooling": metadata.pooling if capabilities.embeddings else None,
        "rerank": capabilities.rerank,
        "rerank_form": metadata.rerank_form,
        "tokens": capabilities.tokens,
        "reproducibility": capabilities.reproducibility,
        "parameters": parameters_json(capabilities, metadata),
        "limits": asdict(capabilities.limits),
        "defaults": {name: {"value": _plain(v), "source": source} for name, (source, v) in metadata.sampling.items()},
    }


def parameters_json(capabilities: Capabilities, metadata: Metadata) -> dict[str, Any]:
    """Each field that this model honours: type, range, default, where the default comes from, and the endpoints.

    If two endpoints accept a field differently, the second one's version is under that endpoint's name.
    """
    parameters: dict[str, Any] = {}
    for endpoint, body in (("chat", CHAT), ("completions", COMPLETION)):
        for name, field in body.fields.items():
            if field.inert or field.refused or not _honoured(name, endpoint, capabilities):
                continue
            described = _described(name, field, capabilities, metadata)
            entry = parameters.setdefault(name, {"endpoints": [], **described})
            if entry.get("type") != described.get("type"):
                entry[endpoint] = described
            entry["endpoints"].append(endpoint)
    return parameters


def _honoured(name: str, endpoint: str, capabilities: Capabilities) -> bool:
    if endpoint == "chat" and not capabilities.chat:
        return False
    return capabilities.generation and _NAMES.get(name, name) in capabilities.parameters


def _described(name: str, field: Field, capabilities: Capabilities, metadata: Metadata) -> dict[str, Any]:
    schema = field.kind.schema()
    entry = {key: schema[key] for key in _SHOWN if key in schema} | {"description": field.meaning}
    highest = _highest(capabilities).get(name)
    if highest is not None and entry.get("type") != "boolean":
        entry["maximum"] = highest
    if name in metadata.sampling:
        source, default = metadata.sampling[name]
        entry |= {"default": _plain(default), "source": source}
    return entry


def _highest(capabilities: Capabilities) -> dict[str, float]:
    limits, context = capabilities.limits, capabilities.context_length
    return {
        "n": limits.max_n,
        "top_logprobs": limits.max_logprobs,
        "logprobs": limits.max_logprobs,
        "timeout_s": limits.max_timeout_s,
        "max_tokens": context,
        "max_completion_tokens": context,
        "max_reasoning_tokens": context,
        "min_tokens": context,
        "context_length": context,
    }


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else value
