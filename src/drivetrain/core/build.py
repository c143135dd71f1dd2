"""From keyword arguments, as a Python caller or a JSON body gives them, to a `GenerateRequest`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import ImagePart, parse_messages
from drivetrain.core.request import GenerateRequest, Overflow

_FIELDS = frozenset(field.name for field in fields(GenerateRequest))


def build_request(raw: Mapping[str, Any]) -> GenerateRequest:
    """None is omitted. An unknown name is refused. Values are only shaped here; `check` judges them."""
    values = {name: value for name, value in raw.items() if value is not None}
    for name in values:
        if name not in _FIELDS:
            close = difflib.get_close_matches(name, _FIELDS, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise Unsupported(f"{name} is not a parameter{hint}", param=name)
    shaped = {name: _SHAPES[name](value) if name in _SHAPES else value for name, value in values.items()}
    return GenerateRequest(**shaped)


def _stop(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _tuple(value)


def _tuple(value: Any) -> Any:
    """Lists become tuples, all the way down; anything else is left for `check` to refuse."""
    if not isinstance(value, (list, tuple)):
        return value
    for item in value:
        if isinstance(item, (list, tuple)):
            return tuple(map(_tuple, value))
    return tuple(value)


def _logprobs(value: Any) -> Any:
    """True is «the chosen tokens only»."""
    if isinstance(value, bool):
        return 0 if value else None
    return value


def _overflow(value: Any) -> Any:
    try:
        return Overflow(value)
    except ValueError:
        return value


def _images(value: Any) -> tuple[ImagePart, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest("images must be a list", param="images")
    return tuple(_image(item, i) for i, item in enumerate(value))


def _image(value: Any, i: int) -> ImagePart:
    if isinstance(value, ImagePart):
        return value
    if isinstance(value, bytes):
        return ImagePart(data=value)
    if isinstance(value, str):
        return ImagePart(url=value) if value.startswith(("data:", "http:", "https:")) else ImagePart(path=value)
    if hasattr(value, "__fspath__"):
        return ImagePart(path=value.__fspath__())
    raise InvalidRequest(f"images[{i}] must be a path, a URL, a data URI or bytes", param=f"images[{i}]")


_SHAPES = {
    "messages": parse_messages,
    "images": _images,
    "stop": _stop,
    "logprobs": _logprobs,
    "prompt_logprobs": _logprobs,
    "overflow": _overflow,
    "prompt_token_ids": _tuple,
    "stop_token_ids": _tuple,
    "stop_sequences": _tuple,
    "sequence_bias": _tuple,
    "bad_words_ids": _tuple,
    "suppress_tokens": _tuple,
    "begin_suppress_tokens": _tuple,
    "exponential_decay_length_penalty": _tuple,
}
