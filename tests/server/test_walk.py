"""The way of a request, counted: the files of ours from the socket to the engine, and from a token back."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import drivetrain
from bounds.attack import eventually
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.engines.native.describe import of_files
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from server.serving import Served, serving

SOURCE = str(Path(drivetrain.__file__).parent) + "/"
MOST_HOPS = 11
MOST_IN = 46
MOST_OUT = 15
"""Lower them when you can; a change that needs a higher one makes the way longer for everybody who reads it."""

STATIONS = frozenset({"Connection.data_received", "Run.start", "HfTokenizer.encode", "FakeEngine.generate"})
"""Where the way goes on in another task or thread, and its ends. Who has called on the way there is on the stack."""

WATCHERS = "worker/health/"
"""What starts there runs by the clock, beside any request: on a slow machine it falls into the record."""


class Walk:
    """Files in the order in which something of theirs was first called, while it records; and those that are hops:
    where a reader who follows the request goes from one function into the next."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.hops: dict[str, None] = {}
        self.recording = False
        self.ends_with = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.recording and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            *_, root = _stack(frame)
            if root.startswith(WATCHERS):
                return
            self.files[_name(frame)] = None
            if frame.f_code.co_qualname in STATIONS:
                self.hops |= dict.fromkeys(reversed(list(_stack(frame))))
            if frame.f_code.co_qualname == self.ends_with:
                self.recording = False


def _name(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(SOURCE)


def _stack(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            yield _name(frame)
        frame = frame.f_back


@contextlib.contextmanager
def walked(tokenizer: Any) -> Iterator[tuple[Served, Walk]]:
    walk = Walk()

    @contextlib.asynccontextmanager
    async def open_worker() -> Any:
        spec = ModelSpec(name="m", path=Path(), format=WeightsFormat.NONE)
        script = Script(token_ids=tuple(range(20, 60)), repeat=True, step_delay_s=0.02)
        async with EngineWorker(FakeEngine(script, tokenizer=tokenizer), spec, Settings()) as worker:
            yield worker

    threading.setprofile(walk)
    try:
        with serving(open_worker) as served:
            yield served, walk
    finally:
        threading.setprofile(None)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 2000}


def post(served: Served) -> Any:
    body = json.dumps(CHAT).encode()
    sock = served.raw()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def count(tokenizer: Any) -> tuple[list[str], list[str], list[str]]:
    """The hops of the way in, all files that run on it, and the way of one token out."""
    with walked(tokenizer) as (served, walk):
        idle = served.tasks()
        with post(served) as sock:  # what is made once is made
            sock.recv(65536)
        served.settle()
        eventually(lambda: served.tasks() == idle)  # or the end of that request is in the record
        walk.ends_with, walk.recording = "FakeEngine.generate", True
        with post(served) as sock:
            while walk.recording:
                sock.recv(1)
            way_in = list(walk.files)
            for _ in range(3):
                sock.recv(65536)
            walk.files.clear()
            walk.recording = True
            sock.recv(65536)
            walk.recording = False
            return list(walk.hops), way_in, list(walk.files)


def test_the_way_is_short(checkpoint: Callable[[str], Path]) -> None:
    hops, way_in, way_out = count(tokenizer_of(checkpoint("llama")))
    assert {"server/http/connection.py", "text/hf_tokenizer.py", "engines/fake.py"} <= set(hops) <= set(way_in)
    assert len(hops) <= MOST_HOPS, hops
    assert len(way_in) <= MOST_IN, way_in
    assert len(way_out) <= MOST_OUT, way_out


def tokenizer_of(path: Path) -> Any:
    spec = ModelSpec(name="m", path=path, format=WeightsFormat.SAFETENSORS)
    return of_files(spec, lambda what, share: None).tokenizer


if __name__ == "__main__":
    for way in count(tokenizer_of(Path(sys.argv[1]))):
        print(len(way), *way, sep="\n  ")
