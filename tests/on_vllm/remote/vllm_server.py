"""vLLM's own HTTP server, in float32, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from on_vllm.vllm_rig import MODEL

_ARGUMENTS = (
    *("--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16"),
    *("--kv-cache-memory-bytes", "1000000000", "--enforce-eager", "--host", "127.0.0.1"),
)
_UNDER_WAY = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", re.MULTILINE)


class VllmServer:
    def __init__(self, base: str) -> None:
        self.base = base
        self.url = f"{base}/v1"

    def busy(self) -> int:
        """Requests that run or wait."""
        with urllib.request.urlopen(f"{self.base}/metrics", timeout=20) as answer:
            return int(sum(map(float, _UNDER_WAY.findall(answer.read().decode()))))

    def settle(self, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while self.busy():
            assert time.monotonic() < end, "vLLM computes for nobody"
            time.sleep(0.05)

    def complete(self, **body: Any) -> Any:
        """Its own whole answer, greedy."""
        return self._ask("completions", {"temperature": 0, "return_token_ids": True, **body})["choices"][0]

    def embed(self, texts: list[str]) -> Any:
        return self._ask("embeddings", {"input": texts, "encoding_format": "float"})

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps({"model": MODEL, **body}).encode()
        asked = urllib.request.Request(f"{self.url}/{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)


@contextmanager
def running(folder: Path, *more: str, within_s: float = 900.0) -> Iterator[VllmServer]:
    """`more` are further arguments. The module is run, since the command `vllm` looks for another distribution."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    child = subprocess.Popen(
        [*command, *_ARGUMENTS, *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | quiet,
        start_new_session=True,  # its engine is a child of its own: both are ended as one group
    )
    server = VllmServer(f"http://127.0.0.1:{port}")
    try:
        _wait(child, server, time.monotonic() + within_s)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait(child: subprocess.Popen[bytes], server: VllmServer, end: float) -> None:
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.base}/health", timeout=5):
            return
        assert child.poll() is None, "vLLM's server has ended; why stands on stderr"
        assert time.monotonic() < end, "vLLM's server does not become ready"
        time.sleep(0.5)
