"""Whether every place for an image in a prompt has one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drivetrain.core.errors import InvalidRequest


def refuse_empty_places(ids: tuple[int, ...], places: Iterable[Any]) -> None:
    """vLLM looks whether each image has a place, not whether each place has an image. `places` are its ranges."""
    filled, tokens = set[int](), set[int]()
    for place in places:
        at = range(place.offset, place.offset + place.length)
        filled.update(at)
        tokens.update(ids[i] for i in at if place.is_embed is None or bool(place.is_embed[i - place.offset]))
    if any(token in tokens for i, token in enumerate(ids) if i not in filled):
        raise InvalidRequest("the prompt has a place for more images than were sent", param="images")
