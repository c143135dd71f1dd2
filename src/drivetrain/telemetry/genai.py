"""The names and histograms of OpenTelemetry's conventions for generative AI, and what they say of any request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum

from drivetrain.core.errors import Cancelled, DrivetrainError

Value = str | float | int | bool | tuple[str, ...]
Attributes = Mapping[str, Value]

PROVIDER = "drivetrain"

REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"

HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    REQUEST_DURATION: (
        "From a request to its ending, whatever it was.",
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    TIME_TO_FIRST_TOKEN: (
        "From a request to its first token, where it finished.",
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    TIME_PER_OUTPUT_TOKEN: (
        "The time after the first token over the tokens that came in it, where the request finished.",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ),
}
"""What each one measures, in seconds, and the bounds of its buckets."""


class Operation(StrEnum):
    CHAT = "chat"
    TEXT_COMPLETION = "text_completion"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    """None of the conventions' own names, which have no other for it."""


def identity(operation: Operation, model: str | None) -> dict[str, Value]:
    """What a span and each of its measurements begin with. `model` is None where none was found."""
    found: dict[str, Value] = {"gen_ai.operation.name": operation.value, "gen_ai.provider.name": PROVIDER}
    if model is not None:
        found["gen_ai.request.model"] = model
    return found


def error_type(error: BaseException | None) -> str | None:
    """The error's code; of another exception than ours, its class."""
    if error is None:
        return None
    if isinstance(error, DrivetrainError):
        return error.code
    return Cancelled.code if isinstance(error, asyncio.CancelledError) else type(error).__qualname__
