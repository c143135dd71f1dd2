"""Embeddings over `/v1/embeddings`: token ids up, unit vectors down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from drivetrain.core.engine import EmbedItem
from drivetrain.core.errors import EngineFailed
from drivetrain.engines.remote.attempts import attempted
from drivetrain.engines.remote.errors import Broken
from drivetrain.engines.remote.generation import RemoteModel
from drivetrain.engines.remote.pool import Upstream
from drivetrain.engines.remote.vectors import body, vectors_of
from drivetrain.engines.remote.wire import MAX_BODY_BYTES, ask_json

MOST_INPUTS = 256
_NUMBER_BYTES = 24


async def embedded(served: RemoteModel, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
    """One unit vector per item. Raises what the last attempt raised; cancelling closes the connection."""
    facts = served.pool.facts
    most = min(facts.embed_inputs, MOST_INPUTS, max(1, MAX_BODY_BYTES // (facts.embedding_size * _NUMBER_BYTES + 256)))
    vectors: list[tuple[float, ...]] = []
    for at in range(0, len(items), most):
        some = items[at : at + most]
        found = await attempted(served.pool, partial(_ask, served, some))
        vectors += map(_unit, found)
        served.count_step()
    return vectors


async def _ask(served: RemoteModel, items: Sequence[EmbedItem], upstream: Upstream) -> list[list[float]]:
    timeouts = replace(served.timeouts, ask_s=served.timeouts.first_s)
    path, question = f"{upstream.address.path}/embeddings", body(served.model, [item.token_ids for item in items])
    context = items[0].trace_context
    answer = await ask_json(
        upstream.address, "POST", path, served.key, question, timeouts=timeouts, trace_context=context
    )
    vectors = vectors_of(answer, len(items))
    if len(vectors[0]) != served.pool.facts.embedding_size:
        raise Broken("its embeddings are of another size than before")
    return vectors


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    norm = math.hypot(*vector)
    if not 0 < norm < math.inf:
        raise EngineFailed("the upstream gave no usable embedding for this text")
    return tuple(x / norm for x in vector)
