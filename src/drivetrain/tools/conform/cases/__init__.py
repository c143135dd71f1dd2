"""The cases, a file an area. `ALL` has them in the order of the report."""

from __future__ import annotations

from drivetrain.tools.conform.case import Area, Case
from drivetrain.tools.conform.cases import (
    agents,
    auth,
    cancel,
    chat,
    completions,
    embeddings,
    errors,
    explosive,
    ids,
    images,
    logprobs,
    messages,
    models,
    parameters,
    reasoning,
    receipts,
    refusals,
    rerank,
    responses,
    robustness,
    schema_refusals,
    schemas,
    stops,
    streaming,
    structured,
    tokens,
    tool_refusals,
    tool_rounds,
    tool_streams,
    tools,
    usage,
)

_FILES = (
    models, chat, completions, streaming, stops, parameters, refusals, logprobs, usage, errors, cancel, ids, receipts,
    structured, schemas, schema_refusals, explosive, tools, tool_streams, tool_rounds, tool_refusals, reasoning,
    responses, messages, agents, embeddings, rerank, tokens, images, auth, robustness,
)  # fmt: skip

ALL: tuple[Case, ...] = tuple(
    sorted((case for file in _FILES for case in file.CASES), key=lambda c: list(Area).index(c.area))
)
