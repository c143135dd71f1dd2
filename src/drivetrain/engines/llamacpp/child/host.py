"""The child process that holds llama.cpp: run as a script, it serves one model until its standard input ends.

A process of its own because the library keeps Python's lock while it loads (seconds in which an event loop would
stand still), takes over the signals, and ends its process with `abort()` on some errors. It imports nothing of
Drivetrain but `openmp`, which needs no more than this does, so it starts in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

READY = "drivetrain-llamacpp-ready "
"""Begins the one line that says the address; every other line of the output is the library's log."""

CPU_BATCH = 256
GPU_BATCH = 512
"""Prompt tokens of one step, beside one token for each slot that generates: those go in first, and would leave no room
for prompts. A cancel waits for a step or two, and so do the streams beside a long prompt; but a burst of a few short
prompts, one for each of the default slots, should begin in one step."""

SPLITS = 4
"""Connections for the splitting of texts. Each takes one of the server's threads while it is open; and one more than
it has threads waits, with all that is asked on it, until another is closed."""


def main() -> None:
    config = json.loads(sys.stdin.readline())
    end_with_parent()
    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    fixed = limit_threads(config["limit"])
    server = serve(config)
    limit_growth(config["spare_bytes"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever drains the worker decides when this one ends
    told = {
        "address": server.listening_address,
        "version": version(),
        "device": device(config["gpu_layers"]),
        "fixed": fixed,
    }
    sys.stdout.write(READY + json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()  # ends with the parent, however that ends
    os._exit(0)


def end_with_parent() -> None:
    """See that a parent killed during the load ends this process: nothing of Python runs then to see its input end.

    Linux sends SIGIO, which ends the process, as soon as the last writer of the pipe is gone. Elsewhere the end of
    the input is seen after the load. (Not PR_SET_PDEATHSIG: it is sent when the *thread* ends that started this.)
    """
    if not sys.platform.startswith("linux"):
        return
    import fcntl

    stdin = sys.stdin.fileno()
    fcntl.fcntl(stdin, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(stdin, fcntl.F_SETFL, fcntl.fcntl(stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([stdin], [], [], 0)[0]:  # nothing more is ever written to it: it had ended before
        os._exit(0)


def limit_growth(spare_bytes: int) -> None:
    """Let this process take so much memory beside what it has now: past that it ends, and the host goes on.

    The limit counts what only this process has in memory and can write to. Only Linux counts so.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource

    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")  # where the memory of all runs out, this process goes, and the worker starts another one
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + spare_bytes if most == resource.RLIM_INFINITY else min(used + spare_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def limit_threads(limit: int | None) -> str:
    """Let the parent limit the threads by this shared file, if there is one. Why that cannot be, or nothing."""
    if limit is None:
        return ""
    try:
        from drivetrain.engines.llamacpp.child import openmp

        openmp.limit_threads(library().xllamacpp.__file__, limit)
    except Exception as exc:  # noqa: BLE001 - whatever it is, llama.cpp computes as it would without
        return str(exc) or type(exc).__name__
    return ""


def serve(config: dict[str, Any]) -> Any:
    xllamacpp = library()

    params = xllamacpp.CommonParams()
    params.model.path = config["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["key"]]
    params.n_parallel = config["slots"]
    params.n_ctx = config["context_length"] * config["slots"]
    on_cpu = device(config["gpu_layers"]) == "cpu"
    params.n_batch = params.n_ubatch = prompt_step(config) + config["slots"]
    params.n_threads_http = 2 * config["slots"] + SPLITS + 4
    params.cache_ram_mib = 0  # our own slot pool decides what stays cached, in memory that was counted at load
    params.fit_params = False
    params.warmup = False
    params.ui = False
    params.endpoint_slots = True
    params.verbosity = 1  # errors only: they become the reason of a `LoadFailed`
    if config["threads"] is not None:
        params.cpuparams.n_threads = config["threads"]
        params.cpuparams_batch.n_threads = config["threads"]
    if config["gpu_layers"] is not None:
        params.n_gpu_layers = config["gpu_layers"]
    if config["mmproj"] is not None:
        os.environ["LLAMA_MEDIA_MARKER"] = config["marker"]  # what stands for an image in a prompt
        params.mmproj.path = config["mmproj"]
        params.mmproj_use_gpu = not on_cpu
    if config["unread"]:
        params.no_extra_bufts = True  # weights stay mapped in the file, as it lies there
    if config["pooling"] is not None:
        params.embedding = True
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{config['pooling'].upper()}")
    return xllamacpp.Server(params)


def prompt_step(config: dict[str, Any]) -> int:
    """The prompt tokens of one step, whoever generates beside them."""
    on_cpu = device(config["gpu_layers"]) == "cpu"
    return int(config["batch"] or (CPU_BATCH if on_cpu else GPU_BATCH))


def library() -> Any:
    return importlib.import_module("xllamacpp")


def version() -> str:
    return str(library().__version__)


def device(gpu_layers: int | None) -> str:
    """The name of the first accelerator that layers go to, else `cpu`."""
    xllamacpp = library()

    kinds = xllamacpp.ggml_backend_dev_type
    accelerators = {kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU}
    names = [str(d["name"]).lower() for d in xllamacpp.get_device_info() if d["type"] in accelerators]
    return names[0] if names and gpu_layers != 0 else "cpu"


if __name__ == "__main__":
    main()
