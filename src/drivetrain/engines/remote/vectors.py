"""The body of a request for embeddings, and the vectors in its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.engines.remote.errors import Broken

NOT_OFFERED = frozenset({400, 404, 405, 422, 501})
"""The statuses by which a server says that it has no embeddings of this model."""


def body(model: str, inputs: Sequence[Any]) -> dict[str, Any]:
    return {"model": model, "input": inputs, "encoding_format": "float"}


def vectors_of(answer: Any, count: int) -> list[list[float]]:
    """`count` vectors, in order, all of one length. Raises `Broken`."""
    try:
        entries = sorted(answer["data"], key=lambda entry: int(entry["index"]))
        vectors = [[float(x) for x in entry["embedding"]] for entry in entries]
    except (KeyError, TypeError, ValueError) as exc:
        raise Broken("its embeddings are not what OpenAI's API says") from exc
    if (
        [entry["index"] for entry in entries] != list(range(count))
        or len(set(map(len, vectors))) != 1
        or not vectors[0]
    ):
        raise Broken("its embeddings are not those that were asked for")
    return vectors
