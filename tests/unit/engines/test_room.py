"""What may follow a prompt with images, and which field is to blame where nothing may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import ContextOverflow
from drivetrain.engines.base.room import room, room_after


def request(max_tokens: int | None, *, default: bool) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        prompt_ids=(),
        context_length=100,
        max_tokens=max_tokens,
        max_tokens_is_default=default,
        seeds=(1,),
    )


@pytest.mark.parametrize(
    ("max_tokens", "default", "left"),
    [(None, True, 30), (20, False, 20), (30, False, 30), (20, True, 20), (31, True, 30), (500, True, 30)],
)
def test_a_default_is_cut_to_the_room(max_tokens: int | None, default: bool, left: int) -> None:
    assert room_after(70, request(max_tokens, default=default)) == left


@pytest.mark.parametrize(("max_tokens", "left", "whole"), [(None, 97, 100), (98, 97, 98), (20, 20, 20), (0, 0, 0)])
def test_what_may_follow_ids_and_what_may_where_an_encoder_has_the_prompt(
    max_tokens: int | None, left: int, whole: int
) -> None:
    asked = replace(request(max_tokens, default=False), prompt_ids=(1, 2, 3))
    assert room(asked) == left
    assert room(asked, 0) == whole


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "default", "param"),
    [
        (70, 31, False, "max_tokens"), (100, 5, False, "messages"), (100, 500, True, "messages"),
        (100, None, True, "messages"),
    ],
)  # fmt: skip
def test_who_is_blamed(prompt: int, max_tokens: int | None, default: bool, param: str) -> None:
    with pytest.raises(ContextOverflow) as caught:
        room_after(prompt, request(max_tokens, default=default))
    assert caught.value.param == param
    assert ("max_tokens is" in caught.value.message) is not default
