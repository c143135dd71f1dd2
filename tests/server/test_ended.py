"""A request that has ended is gone with its prompt, also where an error took the way through the server."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from drivetrain.worker.run import Run
from server.serving import Served, fake, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(fake(text="abc", repeat=True, step_delay_s=0.001)) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"max_tokens": 3}, None),
        ({"prompt": "y" * 4095}, "context_length_exceeded"),
        ({"max_tokens": 3000, "timeout_s": 0.05}, "deadline_exceeded"),
    ],
)
def test_nothing_waits_for_the_collector(
    served: Served, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], code: str | None, stream: bool
) -> None:
    made: list[weakref.ref[Run]] = []
    init = Run.__init__

    def noted(run: Run, *args: Any, **named: Any) -> None:
        made.append(weakref.ref(run))
        init(run, *args, **named)

    served.post("/v1/completions", {"model": served.model, "prompt": "x"})  # what is made once is made
    monkeypatch.setattr(Run, "__init__", noted)
    gc.collect()
    gc.disable()
    try:
        body = {"model": served.model, "prompt": "x", "stream": stream, **asked}
        data = served.request("POST", "/v1/completions", body)[2]
        assert code is None or code.encode() in data
        end = time.monotonic() + 20
        while any(ref() is not None for ref in made) and time.monotonic() < end:
            time.sleep(0.01)
        assert [ref() for ref in made] == [None]
    finally:
        gc.enable()
