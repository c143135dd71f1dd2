"""A default `max_tokens` beside an image gives way to the room that is left; nobody is blamed for what was not said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
import tiny
from drivetrain.core.errors import ContextOverflow
from tiny import pictures

ASK: dict[str, Any] = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": pictures.data_uri(pictures.circle(56, 56))}},
                {"type": "text", "text": "What is it?"},
            ],
        }
    ],
    "temperature": 0,
    "ignore_eos": True,
}


async def test_a_default_gives_way_beside_an_image(checkpoint: Callable[[str], Path]) -> None:
    async with drivetrain.Worker.open(checkpoint(tiny.VISION[0]), engine="transformers", max_tokens=20) as worker:
        prompt = (await worker.generate(**ASK, max_tokens=1)).usage.prompt_tokens
        assert (await worker.generate(**ASK)).usage.completion_tokens == 20
        cut = await worker.generate(**ASK, context_length=prompt + 5)
        assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (5, "length")
        for limit, named, param in ((prompt + 5, 20, "max_tokens"), (prompt, None, "messages")):
            asked = ASK if named is None else ASK | {"max_tokens": named}
            with pytest.raises(ContextOverflow) as caught:
                await worker.generate(**asked, context_length=limit)
            assert caught.value.param == param
