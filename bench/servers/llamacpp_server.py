"""llama.cpp's own HTTP server, with its own defaults but for the number of slots: `llamacpp_server.py GGUF PORT`.

Runs in the peer's environment and imports nothing of ours. A key in LLAMA_API_KEY locks it, as with its own command.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

SLOTS = 16
CONTEXT = 1024


def main() -> None:
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[2])
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT
    params.n_threads_http = 2 * SLOTS
    params.api_keys = list(filter(None, [os.environ.get("LLAMA_API_KEY")]))
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
