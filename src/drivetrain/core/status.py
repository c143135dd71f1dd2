"""What a worker says about itself: the loaded model, its prompt form, and its current state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from drivetrain.core.results import NOTHING_COUNTED, ComputeThreads, DeviceMemory, EngineCounts, KvBlocks


class State(StrEnum):
    """`RESTARTING`: the engine failed and is being reloaded. `FAILED`: this process cannot reload it."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Fixed once the model is loaded. `sampling` gives each default and where it comes from."""

    name: str
    engine: str
    architecture: str
    device: str
    dtype: str
    context_length: int
    vocab_size: int
    family: str
    family_why: str
    answer_form: str
    answer_form_why: str
    tool_form: str
    """Of the answers to a chat that offers tools."""
    tool_form_why: str
    reasons: bool = False
    """Whether the model's templates know reasoning."""
    roles: Mapping[str, str]
    separator: str
    stop: tuple[str, ...]
    eos_ids: tuple[int, ...]
    embedding_size: int
    pooling: str | None
    rerank_form: str | None = None
    """How a query and a document are put to the model, if it can rank: as a pair, or as a question of this name."""
    chat_template: str | None = None
    named_tokens: Mapping[str, str | None] = field(default_factory=dict)
    """The tokenizer's own special tokens: `bos_token`, `eos_token` and `pad_token`, as far as they are known."""
    infill_tokens: Mapping[str, int] = field(default_factory=dict)
    """The special tokens of a prompt with a suffix, and those that end its answer. Empty: the vocabulary has none."""
    sampling: Mapping[str, tuple[str, Any]]
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The current state. `endings` counts ended requests by outcome: finished, or the error's code."""

    state: State
    running: int
    waiting: int
    max_waiting: int | None = None
    endings: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int
    engine_alive: bool
    last_progress_s: float
    kv_used: float = 0.0
    """The share of the KV cache that requests hold, from 0 to 1."""
    kv_blocks: KvBlocks | None = None
    """As in `Health`."""
    counts: EngineCounts = NOTHING_COUNTED
    """Over all engines that the worker has had."""
    threads: ComputeThreads | None = None
    """As in `Health`."""
    upstreams: tuple[bool, ...] = ()
    lost: bool = False
    """Whether the device is unusable from this process, so that only a new one helps."""
    memory: tuple[DeviceMemory, ...] = ()
    """Of the host and of each device that the engine uses."""
