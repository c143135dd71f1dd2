"""Every setting of a worker: its default, its meaning, and who honours it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

from drivetrain.core.capabilities import Limits
from drivetrain.core.request import Overflow


class Group(StrEnum):
    """Sampling defaults and limits also have request fields or caps of the same name."""

    MODEL = "model"
    ENGINE = "engine"
    SERVING = "serving"
    SAMPLING = "sampling defaults"
    LIMITS = "limits"


def setting(default: Any, group: Group, meaning: str) -> Any:
    return field(default=default, metadata={"group": group, "meaning": meaning})


_LIMIT = {f.name: f.default for f in fields(Limits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """None means: decided when the model is loaded, or by what is asked later in the chain of defaults."""

    engine: str = setting("auto", Group.MODEL, "auto, llamacpp, native, transformers, vllm, remote or fake")
    name: str | None = setting(None, Group.MODEL, "the model's public name")
    family: str | None = setting(None, Group.MODEL, "prompt form to use instead of the model's own chat template")

    device: str | None = setting(None, Group.ENGINE, "auto, cpu, cuda, cuda:N or mps")
    dtype: str | None = setting(None, Group.ENGINE, "auto, float32, bfloat16 or float16")
    trust_remote_code: bool | None = setting(None, Group.ENGINE, "run code that comes with the model (dangerous)")
    quantize: str | None = setting(None, Group.ENGINE, "none, or int8 for 8-bit weights on a CPU (default none)")
    compile: bool | None = setting(
        None, Group.ENGINE, "compile the steps on a CPU; needs a C++ compiler (default false)"
    )
    context_length: int | None = setting(None, Group.ENGINE, "context length, if smaller than the model's")
    pooling: str | None = setting(None, Group.ENGINE, "pooling for embeddings: mean, cls or last")
    slots: int | None = setting(None, Group.ENGINE, "requests in one batch, each with its own context (default 4)")
    max_batch: int | None = setting(None, Group.ENGINE, "requests computed together (default 64)")
    kv_cache_gb: float | None = setting(
        None, Group.ENGINE, "GB of memory for keys and values (default: a share of what is free)"
    )
    prefix_cache: bool | None = setting(
        None, Group.ENGINE, "reuse the cached beginnings of earlier prompts (default true)"
    )
    threads: int | None = setting(None, Group.ENGINE, "CPU threads")
    gpu_layers: int | None = setting(None, Group.ENGINE, "layers to put on the accelerator (default: as many as fit)")
    vllm_args: Mapping[str, Any] | None = setting(
        None, Group.ENGINE, "more engine arguments for vLLM, by its names for them"
    )
    mmproj: str | None = setting(
        None, Group.ENGINE, "the GGUF file with the vision part (default: the one beside the model)"
    )
    connect_timeout_s: float | None = setting(
        None, Group.ENGINE, "seconds to wait for a connection to the upstream (default 10)"
    )
    first_timeout_s: float | None = setting(
        None, Group.ENGINE, "seconds to wait for the upstream to begin an answer (default 600)"
    )
    silence_timeout_s: float | None = setting(
        None, Group.ENGINE, "seconds that the upstream may pause in mid-answer (default 120)"
    )

    max_running: int | None = setting(
        None, Group.SERVING, "requests that run at once (default: as many as the engine can take)"
    )
    max_waiting: int = setting(64, Group.SERVING, "requests that may wait; any more are refused as overloaded")
    timeout_s: float = setting(
        600.0, Group.SERVING, "seconds until a request times out, unless it sets its own timeout"
    )
    drain_s: float = setting(30.0, Group.SERVING, "seconds that running requests get to finish when the worker stops")
    reader_timeout_s: float = setting(
        60.0, Group.SERVING, "seconds after which a reader that takes no event is cancelled"
    )
    restart: bool = setting(True, Group.SERVING, "load the model again when the engine dies or hangs")
    stall_s: float = setting(
        600.0, Group.SERVING, "seconds without progress, while requests run, before the engine counts as failed"
    )
    max_unread: int = setting(8192, Group.SERVING, "steps that a reader may leave unread before it is cancelled")
    stream_interval: int = setting(1, Group.SERVING, "tokens per delta of a stream")
    overflow: str = setting(
        Overflow.ERROR.value,
        Group.SERVING,
        "if the prompt and answer do not fit: error, truncate_left or truncate_middle",
    )
    media_hosts: tuple[str, ...] = setting(
        (), Group.SERVING, "hosts that images may be fetched from; write host:port for ports other than 80 and 443"
    )
    max_decoded_pixels: int = setting(
        200_000_000, Group.SERVING, "pixels of decoded images held at once; requests that would exceed it wait"
    )

    max_tokens: int | None = setting(None, Group.SAMPLING, "the most tokens to generate, unless a request sets it")
    temperature: float | None = setting(None, Group.SAMPLING, "sampling temperature; 0 is greedy")
    top_p: float | None = setting(
        None, Group.SAMPLING, "sample from the smallest set of tokens with this total probability"
    )
    top_k: int | None = setting(None, Group.SAMPLING, "sample from the k likeliest tokens; 0 turns it off")
    min_p: float | None = setting(
        None, Group.SAMPLING, "drop tokens below this fraction of the likeliest token's probability"
    )
    repetition_penalty: float | None = setting(None, Group.SAMPLING, "above 1 discourages repetition")

    max_n: int = setting(_LIMIT["max_n"], Group.LIMITS, "choices per request")
    max_stops: int = setting(_LIMIT["max_stops"], Group.LIMITS, "stops per request")
    max_stop_chars: int = setting(_LIMIT["max_stop_chars"], Group.LIMITS, "characters per stop")
    max_logprobs: int = setting(_LIMIT["max_logprobs"], Group.LIMITS, "alternatives per token")
    max_messages: int = setting(_LIMIT["max_messages"], Group.LIMITS, "messages per request")
    max_prompt_chars: int = setting(_LIMIT["max_prompt_chars"], Group.LIMITS, "characters per prompt")
    max_ids: int = setting(
        _LIMIT["max_ids"], Group.LIMITS, "token ids in one list or map of a request, except the prompt"
    )
    max_embed_inputs: int = setting(_LIMIT["max_embed_inputs"], Group.LIMITS, "texts per embeddings request")
    max_images: int = setting(_LIMIT["max_images"], Group.LIMITS, "images per request")
    max_image_bytes: int = setting(_LIMIT["max_image_bytes"], Group.LIMITS, "bytes per image")
    max_image_pixels: int = setting(_LIMIT["max_image_pixels"], Group.LIMITS, "pixels per image")
    max_request_pixels: int = setting(
        _LIMIT["max_request_pixels"], Group.LIMITS, "pixels of all images in a request together"
    )
    max_answer_bytes: int = setting(
        _LIMIT["max_answer_bytes"],
        Group.LIMITS,
        "bytes that one answer may take, with its choices, tokens and logprobs",
    )
    max_timeout_s: float = setting(_LIMIT["max_timeout_s"], Group.LIMITS, "the longest timeout a request may ask for")

    @property
    def default_timeout_s(self) -> float:
        """Of a request that names none."""
        return min(self.timeout_s, self.max_timeout_s)

    @property
    def limits(self) -> Limits:
        return Limits(**{f.name: getattr(self, f.name) for f in fields(Limits)})

    @property
    def engine_options(self) -> dict[str, Any]:
        """The engine's own settings that were set."""
        named = [f.name for f in fields(self) if f.metadata["group"] is Group.ENGINE]
        return {name: value for name in named if (value := getattr(self, name)) is not None}

    @property
    def sampling(self) -> dict[str, Any]:
        named = [f.name for f in fields(self) if f.metadata["group"] is Group.SAMPLING]
        return {name: value for name in named if (value := getattr(self, name)) is not None}


def default_of(setting_field: Field[Any]) -> Any:
    return None if setting_field.default is MISSING else setting_field.default
