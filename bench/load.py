"""A streaming load client that costs little: raw HTTP/1.1, one connection a request, times of the events."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds from the moment the request was sent to each event that carries text."""

    events: tuple[float, ...]
    tokens: int

    @property
    def first_s(self) -> float:
        return self.events[0]


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that ran side by side."""

    streams: int
    wall_s: float
    timelines: tuple[Timeline, ...]

    @property
    def tokens_per_s(self) -> float:
        return sum(t.tokens for t in self.timelines) / self.wall_s

    @property
    def first_s(self) -> float:
        return statistics.median(t.first_s for t in self.timelines)


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    key: str = "none"

    async def stream(self, path: str, body: dict[str, Any]) -> Timeline:
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        started = time.perf_counter()
        writer.write(head.encode() + data)
        times: list[float] = []
        usage = b""
        try:
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError((status + await reader.read()).decode()[:500])
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    if b'"content":"' in line or b'"text":"' in line:
                        times.append(time.perf_counter() - started)
                    if b'"usage":{' in line:
                        usage = line
        finally:
            writer.close()
        tokens = json.loads(usage[6:])["usage"]["completion_tokens"] if usage else len(times)
        return Timeline(tuple(times), tokens)

    async def round(self, path: str, bodies: list[dict[str, Any]]) -> Round:
        started = time.perf_counter()
        timelines = await asyncio.gather(*(self.stream(path, body) for body in bodies))
        return Round(len(bodies), time.perf_counter() - started, tuple(timelines))
