"""From our settings to vLLM's engine arguments. `vllm_args` passes on whatever has no setting here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.vllm.settings import VllmSettings

_HAVE_A_SETTING = {
    "dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "max_model_len": "context_length",
    "kv_cache_memory_bytes": "kv_cache_gb",
    "max_num_seqs": "max_batch",
    "enable_prefix_caching": "prefix_cache",
}
_FIXED: Mapping[str, Any] = {
    "skip_tokenizer_init": False,  # the text pipeline is ours, but grammars and image processors want one
    "structured_outputs_config": {"backend": "guidance"},  # the one that takes our grammars as they are
    "generation_config": "vllm",  # or it adds end tokens of its own
    "logprobs_mode": "raw_logprobs",
    "max_logprobs": -1,  # the worker has the limit
}
"""What the contract needs. It cannot be set."""

_FIXED_WITH_IMAGES: Mapping[str, Any] = {
    "mm_processor_cache_gb": 0,  # kept in step by messages that a cancelled request never sends
}

_QUIET: Mapping[str, Any] = {"disable_log_stats": True, "use_tqdm_on_load": False}
_IF_THERE = frozenset({*_QUIET, "structured_outputs_config"})
"""What an older vLLM lacks without harm: it makes no noise, or has no sampling parameter for a grammar either."""

_NAMES = frozenset({"model", "tokenizer", "served_model_name", *_FIXED, *_FIXED_WITH_IMAGES})


def engine_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """All but the model's path. Raises `InvalidSetting` for an argument of `vllm_args` that is not the caller's."""
    settings = VllmSettings.of(options)
    passed = settings.vllm_args or {}
    for name in passed:
        if name in _HAVE_A_SETTING:
            raise InvalidSetting(f"vllm_args has {name}; set {_HAVE_A_SETTING[name]} in its place", param="vllm_args")
        if name in _NAMES:
            raise InvalidSetting(f"vllm_args has {name}, which is fixed; leave it out", param="vllm_args")
    ours: dict[str, Any] = {
        "dtype": settings.dtype.value,
        "trust_remote_code": settings.trust_remote_code,
        "max_num_seqs": settings.max_batch,
        "enable_prefix_caching": settings.prefix_cache,
    }
    if settings.context_length is not None:
        ours["max_model_len"] = settings.context_length
    if settings.kv_cache_gb is not None:
        ours["kv_cache_memory_bytes"] = int(settings.kv_cache_gb * 2**30)
    return {**_QUIET, **passed, **ours, **_FIXED}


def with_images(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """For a model that sees images: those and nothing else, unless `vllm_args` says more."""
    return {"limit_mm_per_prompt": {"video": 0, "audio": 0}, **arguments, **_FIXED_WITH_IMAGES}


def refuse_unknown(arguments: Mapping[str, Any], known: Collection[str], version: str) -> dict[str, Any]:
    """The arguments without those of ours that this vLLM may lack."""
    for name in arguments:
        if name not in known and name not in _IF_THERE:
            setting = _HAVE_A_SETTING.get(name, "vllm_args")
            raise InvalidSetting(f"vLLM {version} has no engine argument {name}", param=setting)
    return {name: value for name, value in arguments.items() if name in known}
