"""The `options` of Ollama's API: our parameters by its names, what its runner is told, and what cannot be honoured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.server.parse.body import Body, Field
from drivetrain.server.parse.schema import SAMPLING, Anything, Refused, inert, like

AT_THE_TOP = ("receipt", "reproducibility", "timeout_s", "overflow", "cache_salt")
"""Our parameters that stand beside `options`: they say nothing about sampling."""

_RENAMED = {"num_predict": "max_tokens", "num_ctx": "context_length", "repeat_penalty": "repetition_penalty"}

_RUNNER = (
    "numa", "num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "f16_kv", "use_mmap", "use_mlock",
    "logits_all", "vocab_only", "embedding_only",
)  # fmt: skip
"""How Ollama is to run a model. This server's own settings say that here."""

_NO_MIROSTAT = ("mirostat_tau", "mirostat_eta")
"""They say how, once mirostat is on."""


def _refused(why: str, *neutral: Any) -> Field:
    return Field(Refused(neutral, why), "only a value that has no effect is accepted", refused=True)


_NOT_HERE: Mapping[str, Field] = {
    "repeat_last_n": _refused("is not supported: repeat_penalty counts the whole context; send -1", -1),
    "penalize_newline": _refused("is not supported: penalties count every token; send true", True),
    "mirostat": _refused("is not supported; send 0, and min_p or top_p", 0),
    "tfs_z": _refused("is not supported; send 1, and min_p or typical_p", 1),
    "num_keep": _refused("is not supported: a context that is full ends the answer; send -1", -1, 0, 4),
}

OPTIONS = Body(
    "OllamaOptions",
    {
        **{name: field for name, field in SAMPLING.items() if name not in {*_RENAMED.values(), *AT_THE_TOP, "n"}},
        "num_predict": like("max_tokens", nothing=(-1, -2)),
        "num_ctx": like("context_length"),
        "repeat_penalty": like("repetition_penalty"),
        "seed": like("seed", nothing=(-1,)),
        **_NOT_HERE,
        **{name: inert(Anything()) for name in (*_RUNNER, *_NO_MIROSTAT)},
    },
)

VECTOR_OPTIONS = Body("OllamaVectorOptions", {name: inert(Anything()) for name in OPTIONS.fields})
"""Vectors are not sampled: clients send the options that they have for all requests."""


def of_options(options: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The values of our parameters. Adds to `names` what they are called here."""
    values = {_RENAMED.get(name, name): value for name, value in options.items()}
    names.update({_RENAMED.get(name, name): f"options.{name}" for name in options})
    return values
