"""llama.cpp's own HTTP server with its defaults: `llamacpp_server.py GGUF PORT [SLOTS]`.

Its own command has 4 slots that share one context as long as the model's; the wheel would have 1. With SLOTS, each slot
has a context of 1,024 tokens.

It runs in the peer's environment and imports nothing of ours. As with its own command, LLAMA_API_KEY sets a key.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

OWN_SLOTS = 4
CONTEXT = 1024


def main() -> None:
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[2])
    params.n_parallel = OWN_SLOTS
    params.kv_unified = True
    if len(sys.argv) > 3:
        params.n_parallel = slots = int(sys.argv[3])
        params.kv_unified = False
        params.n_ctx = slots * CONTEXT
        params.n_threads_http = 2 * slots
    params.api_keys = list(filter(None, [os.environ.get("LLAMA_API_KEY")]))
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
