"""llama.cpp's own HTTP server, with its own defaults but for its slots, in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SLOTS = 4
CONTEXT = 2048

_SCRIPT = f"""
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_parallel = {SLOTS}
params.n_ctx = {SLOTS * CONTEXT}
params.n_threads_http = {2 * SLOTS + 8}
if sys.argv[2]:
    params.embedding = True
    params.pooling_type = getattr(xllamacpp.llama_pooling_type, "LLAMA_POOLING_TYPE_" + sys.argv[2].upper())
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaCppServer:
    def __init__(self, base: str) -> None:
        self.base = base
        self.url = f"{base}/v1"

    def busy(self) -> int:
        """Slots that compute."""
        with urllib.request.urlopen(f"{self.base}/slots", timeout=20) as answer:
            slots: list[dict[str, Any]] = json.load(answer)
        return sum(bool(slot["is_processing"]) for slot in slots)

    def complete(self, prompt: Any, limit: int) -> Any:
        """Its own whole answer, greedy."""
        body = {"prompt": prompt, "n_predict": limit, "temperature": 0, "return_tokens": True, "cache_prompt": False}
        asked = urllib.request.Request(f"{self.base}/completion", json.dumps(body).encode())
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)

    def settle(self, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while self.busy():
            assert time.monotonic() < end, "a slot computes for nobody"
            time.sleep(0.02)


@contextmanager
def running(gguf: Path, *, pooling: str = "") -> Iterator[LlamaCppServer]:
    """`pooling` makes it give embeddings too."""
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(gguf), pooling],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            lines = iter(child.stdout.readline, "")
            yield LlamaCppServer(next(line.strip() for line in lines if line.startswith("http://")))
        finally:
            child.kill()
