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
    family: str | None = setting(None, Group.MODEL, "the prompt form, in place of the model's own chat template")

    device: str | None = setting(None, Group.ENGINE, "auto, cpu, cuda, cuda:N or mps")
    dtype: str | None = setting(None, Group.ENGINE, "auto, float32, bfloat16 or float16")
    trust_remote_code: bool | None = setting(None, Group.ENGINE, "run code that comes with the model (dangerous)")
    quantize: str | None = setting(None, Group.ENGINE, "none or int8: weights of 8 bits, on a CPU (default none)")
    compile: bool | None = setting(
        None, Group.ENGINE, "compile the steps, on a CPU with a C++ compiler (default false)"
    )
    context_length: int | None = setting(None, Group.ENGINE, "a smaller context than the model's")
    pooling: str | None = setting(None, Group.ENGINE, "for embeddings: mean, cls or last")
    slots: int | None = setting(None, Group.ENGINE, "requests in one batch; each has a context of its own (default 4)")
    max_batch: int | None = setting(None, Group.ENGINE, "requests that are computed together (default 64)")
    kv_cache_gb: float | None = setting(None, Group.ENGINE, "memory for keys and values (default: a share of the free)")
    prefix_cache: bool | None = setting(None, Group.ENGINE, "keep beginnings of prompts for later ones (default true)")
    threads: int | None = setting(None, Group.ENGINE, "CPU threads")
    gpu_layers: int | None = setting(None, Group.ENGINE, "layers that go to the accelerator (default: what fits)")
    vllm_args: Mapping[str, Any] | None = setting(None, Group.ENGINE, "further engine arguments of vLLM, by its names")
    mmproj: str | None = setting(None, Group.ENGINE, "the GGUF file with the vision part (default: the one beside)")
    connect_timeout_s: float | None = setting(None, Group.ENGINE, "seconds until a server must be reached (default 10)")
    first_timeout_s: float | None = setting(
        None, Group.ENGINE, "seconds until a server must begin an answer (default 600)"
    )
    silence_timeout_s: float | None = setting(
        None, Group.ENGINE, "seconds that a server may be silent in mid-answer (default 120)"
    )

    max_running: int | None = setting(None, Group.SERVING, "requests that run at once (default: what the engine can)")
    max_waiting: int = setting(64, Group.SERVING, "requests that may wait; one more is refused as overloaded")
    timeout_s: float = setting(600.0, Group.SERVING, "seconds until a request is ended, if it does not say")
    drain_s: float = setting(30.0, Group.SERVING, "seconds that running requests get when the worker stops")
    reader_timeout_s: float = setting(60.0, Group.SERVING, "a reader that takes no event for so long is cancelled")
    restart: bool = setting(True, Group.SERVING, "load the model again when the engine has died, or does not move")
    stall_s: float = setting(
        600.0, Group.SERVING, "an engine that is wanted and gives no sign of life for so long has failed"
    )
    max_unread: int = setting(8192, Group.SERVING, "a reader that leaves more steps unread is cancelled")
    stream_interval: int = setting(1, Group.SERVING, "tokens gathered into one delta of a stream")
    overflow: str = setting(Overflow.ERROR.value, Group.SERVING, "error, truncate_left or truncate_middle")
    media_hosts: tuple[str, ...] = setting(
        (), Group.SERVING, "hosts that images may be fetched from (host, or host:port for other ports than 80 and 443)"
    )
    max_decoded_pixels: int = setting(
        200_000_000, Group.SERVING, "pixels of decoded images held at once; a request whose images are more waits"
    )

    max_tokens: int | None = setting(None, Group.SAMPLING, "the length of an answer, if a request does not say")
    temperature: float | None = setting(None, Group.SAMPLING, "0 is greedy")
    top_p: float | None = setting(None, Group.SAMPLING, "smallest set with this probability")
    top_k: int | None = setting(None, Group.SAMPLING, "the k likeliest; 0 is off")
    min_p: float | None = setting(None, Group.SAMPLING, "drop tokens below this share of the likeliest")
    repetition_penalty: float | None = setting(None, Group.SAMPLING, "above 1 discourages what was said")

    max_n: int = setting(_LIMIT["max_n"], Group.LIMITS, "choices of one request")
    max_stops: int = setting(_LIMIT["max_stops"], Group.LIMITS, "stops of one request")
    max_stop_chars: int = setting(_LIMIT["max_stop_chars"], Group.LIMITS, "characters of one stop")
    max_logprobs: int = setting(_LIMIT["max_logprobs"], Group.LIMITS, "alternatives a token")
    max_messages: int = setting(_LIMIT["max_messages"], Group.LIMITS, "messages of one request")
    max_prompt_chars: int = setting(_LIMIT["max_prompt_chars"], Group.LIMITS, "characters of one prompt")
    max_ids: int = setting(_LIMIT["max_ids"], Group.LIMITS, "token ids in one list or map of a request, but the prompt")
    max_embed_inputs: int = setting(_LIMIT["max_embed_inputs"], Group.LIMITS, "texts of one embeddings request")
    max_images: int = setting(_LIMIT["max_images"], Group.LIMITS, "images of one request")
    max_image_bytes: int = setting(_LIMIT["max_image_bytes"], Group.LIMITS, "bytes of one image")
    max_image_pixels: int = setting(_LIMIT["max_image_pixels"], Group.LIMITS, "pixels of one image")
    max_request_pixels: int = setting(
        _LIMIT["max_request_pixels"], Group.LIMITS, "pixels of all images of one request together"
    )
    max_answer_bytes: int = setting(
        _LIMIT["max_answer_bytes"],
        Group.LIMITS,
        "bytes that one answer may take: choices, tokens and logprobs together",
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
