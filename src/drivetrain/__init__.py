"""Drivetrain: a model worker for language models. One strict contract, every engine.

async with drivetrain.Worker.open("smollm2-135m") as worker:
    async for event in worker.stream(messages=[{"role": "user", "content": "Hello"}], max_tokens=64):
        ...

`drivetrain.sync.Worker` is the same without `async`. Importing this package loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain import sync as sync
    from drivetrain.assembly import Worker as Worker
    from drivetrain.core import errors as errors
    from drivetrain.core.answer import AnswerMessage as AnswerMessage
    from drivetrain.core.answer import ToolCall as ToolCall
    from drivetrain.core.events import ChoiceFinished as ChoiceFinished
    from drivetrain.core.events import Delta as Delta
    from drivetrain.core.events import Finished as Finished
    from drivetrain.core.events import Started as Started
    from drivetrain.core.messages import ImagePart as ImagePart
    from drivetrain.core.messages import Message as Message
    from drivetrain.core.messages import TextPart as TextPart
    from drivetrain.core.options import GenerateOptions as GenerateOptions
    from drivetrain.core.receipt import Receipt as Receipt
    from drivetrain.core.results import Result as Result
    from drivetrain.text.answers import AnswerParser as AnswerParser
    from drivetrain.text.answers import parse_answer as parse_answer

__version__ = "0.1.0"

_PLACES = {
    "Worker": "drivetrain.assembly",
    "sync": "drivetrain.sync",
    "errors": "drivetrain.core.errors",
    "ChoiceFinished": "drivetrain.core.events",
    "Delta": "drivetrain.core.events",
    "Finished": "drivetrain.core.events",
    "Started": "drivetrain.core.events",
    "ImagePart": "drivetrain.core.messages",
    "Message": "drivetrain.core.messages",
    "TextPart": "drivetrain.core.messages",
    "GenerateOptions": "drivetrain.core.options",
    "Receipt": "drivetrain.core.receipt",
    "Result": "drivetrain.core.results",
    "AnswerMessage": "drivetrain.core.answer",
    "ToolCall": "drivetrain.core.answer",
    "AnswerParser": "drivetrain.text.answers",
    "parse_answer": "drivetrain.text.answers",
}

__all__ = [
    "AnswerMessage",
    "AnswerParser",
    "ChoiceFinished",
    "Delta",
    "Finished",
    "GenerateOptions",
    "ImagePart",
    "Message",
    "Receipt",
    "Result",
    "Started",
    "TextPart",
    "ToolCall",
    "Worker",
    "errors",
    "parse_answer",
    "sync",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'drivetrain' has no attribute {name!r}")
    module = importlib.import_module(place)
    return module if place.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
