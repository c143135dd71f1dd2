"""A long prompt that is echoed with its logprobs: 16,000 tokens with 20 alternatives stopped the loop for a second."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from bounds.attack import MAX_STALL_S, eventually, victim
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import Cancelled, DrivetrainError, EngineFailed
from drivetrain.core.events import ChoiceFinished, Delta, Finished, Started
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker import echo
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from probe import runs_of

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
PROMPT = "".join(f"{i}é€😀 " for i in range(200))


async def events(prompt: str = PROMPT, **asked: Any) -> list[Any]:
    async with EngineWorker(FakeEngine(Script(context_length=10_000)), SPEC, Settings()) as worker:
        made = [e async for e in worker.stream(prompt=prompt, echo=True, prompt_logprobs=2, seed=1, **asked)]
        assert worker.status.running == 0
        return made


@pytest.mark.parametrize("asked", [{"max_tokens": 0}, {"max_tokens": 9, "n": 2, "logprobs": 1}], ids=["alone", "more"])
async def test_slices_say_what_one_piece_says(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    """And what the engine says after the prompt comes after it, to the last event."""

    def shape(made: list[Any]) -> list[tuple[str, list[Any], list[int]]]:
        choices = []
        for index in range(asked.get("n", 1)):
            deltas = [e for e in made if isinstance(e, Delta) and e.index == index]
            entries = [entry for delta in deltas for entry in delta.logprobs or ()]
            choices.append(("".join(d.text for d in deltas), entries, [i for d in deltas for i in d.token_ids]))
        return choices

    monkeypatch.setattr(echo, "VALUES_A_SLICE", 10**9)
    whole = await events(**asked)
    for values in (1, 3, 100):
        monkeypatch.setattr(echo, "VALUES_A_SLICE", values)
        made = await events(**asked)
        assert len(made) > len(whole)
        assert shape(made) == shape(whole)
        assert isinstance(made[0], Started)
        assert isinstance(made[-1], Finished)
        assert [e for e in made if isinstance(e, ChoiceFinished)] == [e for e in whole if isinstance(e, ChoiceFinished)]


async def test_the_loop_goes_on_between_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo, "VALUES_A_SLICE", 30)
    turns = 0
    making = asyncio.create_task(events(max_tokens=0))
    while not making.done():
        turns += 1
        await asyncio.sleep(0)
    slices = sum(isinstance(event, Delta) for event in await making)
    assert slices > 100
    assert turns > slices


@pytest.mark.parametrize("how", ["left", "broken"])
async def test_it_ends_in_the_middle(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Nothing is held then, and the next request works."""
    monkeypatch.setattr(echo, "VALUES_A_SLICE", 1)
    async with EngineWorker(FakeEngine(Script(context_length=10_000)), SPEC, Settings()) as worker:
        stream = worker.stream(prompt=PROMPT, echo=True, prompt_logprobs=0, max_tokens=0)
        assert isinstance(await anext(stream), Started)
        assert isinstance(await anext(stream), Delta)
        (run,) = runs_of(worker)
        if how == "broken":
            monkeypatch.setattr(run, "take_echo", lambda *given: 1 / 0)
        else:
            run.cancel("the reader went away")
        with pytest.raises(DrivetrainError) as caught:
            async for _ in stream:
                pass
        assert isinstance(caught.value, EngineFailed if how == "broken" else Cancelled)
        await stream.aclose()
        assert worker.status.running == 0
        assert (await worker.generate(prompt="Hi", max_tokens=3)).usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_the_server_goes_on(stream: bool) -> None:
    body = {"model": "fake", "prompt": "x" * 3500, "echo": True, "logprobs": 20, "max_tokens": 0, "stream": stream}
    with victim(script={"context_length": 16_384}) as server:
        server.reset()
        status, data = server.request("POST", "/v1/completions", body)
        assert status == 200, data[:500]
        assert len(data) > 700_000
        assert server.figures().stall_cpu_s < MAX_STALL_S


def test_a_stream_whose_parts_each_have_all_so_far_goes_on_as_well() -> None:
    body = {"prompt": "x" * 25_000, "echo": True, "logprobs": 5, "max_new_tokens": 5}
    with victim(script={"context_length": 40_000}) as server:
        server.reset()
        status, data = server.request("POST", "/worker_generate_stream", body)
        assert status == 200, data[:500]
        assert len(data) > 10_000_000
        assert server.figures().stall_cpu_s < MAX_STALL_S


@pytest.mark.parametrize(
    ("path", "more"), [("/v1/completions", {"stream": True, "max_tokens": 5}), ("/worker_generate_stream", {})]
)
def test_a_client_that_reads_late_is_sent_the_rest_in_slices(path: str, more: dict[str, Any]) -> None:
    data = json.dumps({"model": "fake", "prompt": "x" * 45_000, "echo": True, "logprobs": 5, **more}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    done = b'requests_total{ending="finished",model="fake"} 1.0'
    with victim(script={"context_length": 50_000}) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # so that the server keeps what is not read
        client.settimeout(60)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + data)
        eventually(lambda: done in server.request("GET", "/metrics")[1])
        server.reset()
        received = 0
        while some := client.recv(2**20):
            received += len(some)
        assert received > 2_000_000
        assert server.figures().stall_cpu_s < MAX_STALL_S
