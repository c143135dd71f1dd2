"""The cases, a file an area. `ALL` has them in the order of the report."""

from __future__ import annotations

from drivetrain.tools.conform.case import Area, Case
from drivetrain.tools.conform.cases import (
    auth,
    cancel,
    chat,
    completions,
    embeddings,
    errors,
    ids,
    images,
    logprobs,
    models,
    parameters,
    refusals,
    robustness,
    schemas,
    stops,
    streaming,
    structured,
    tokens,
    usage,
)

_FILES = (
    models, chat, completions, streaming, stops, parameters, refusals, logprobs, usage, errors, cancel, ids, structured,
    schemas, embeddings, tokens, images, auth, robustness,
)  # fmt: skip

ALL: tuple[Case, ...] = tuple(
    sorted((case for file in _FILES for case in file.CASES), key=lambda c: list(Area).index(c.area))
)
