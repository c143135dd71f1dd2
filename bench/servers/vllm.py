"""vLLM built for CPUs. Its `vllm` command fails, looking for a distribution of another name, so we run the module."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

from servers.environment import Environment
from servers.peer import Peer
from servers.request import Chat
from servers.weights import CONTEXT, MODEL, folder

ENVIRONMENT = Environment("vllm")


def arguments(port: int) -> list[str]:
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder()), "--served-model-name", MODEL]
    command += ["--dtype", "float32", "--max-model-len", str(CONTEXT)]
    return [*command, "--host", "127.0.0.1", "--port", str(port)]


def variables(environment: Path) -> dict[str, str]:
    """All cores: by default it keeps one free for HTTP, which is half of a machine with two. Preloaded as its
    documentation asks: Intel's OpenMP, which comes with it, and tcmalloc if the machine has it.
    """
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    return {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "LD_PRELOAD": ":".join([str(environment / "lib" / "libiomp5.so"), *([tcmalloc] if tcmalloc else [])]),
        "VLLM_CACHE_ROOT": str(environment / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


VLLM = Peer(
    name="vllm",
    title="vLLM CPU, fp32",
    form=Chat(MODEL, {"ignore_eos": True}),
    arguments=arguments,
    environment=ENVIRONMENT,
    packages=("vllm-cpu", "torch", "transformers"),
    variables={"VLLM_CPU_KVCACHE_SPACE": "2", **variables(ENVIRONMENT.folder)},
    ready_s=420.0,  # it compiles the model on each start
    prepare=folder,
)
