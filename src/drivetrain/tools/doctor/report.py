"""What is known about a server after a look at it. None means that the server does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from drivetrain.core.errors import DeadlineExceeded, DeviceLost, EngineFailed, OutOfMemory

FAILURES = (EngineFailed.code, OutOfMemory.code, DeviceLost.code, DeadlineExceeded.code)
"""Endings of accepted requests that are not the caller's fault."""


class ServerKind(StrEnum):
    """`PEER` speaks the OpenAI API but is not ours; `LOCKED` says nothing without the right key."""

    OURS = "drivetrain"
    PEER = "openai"
    LOCKED = "locked"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """`ACT` means that somebody should do something."""

    ACT = "act"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`code` is a stable name for machines; `what` was seen, `means` explains it, `remedy` says what to do."""

    code: str
    level: Severity
    what: str
    means: str
    remedy: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class HistogramTimes:
    """From a histogram. A time above its last bound, `beyond_s`, is given as that bound."""

    count: int
    median_s: float
    p99_s: float
    beyond_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    device: str
    allocated_bytes: int
    cached_bytes: int
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """`stalled_s` is how long the engine has done nothing, if requests run and two looks saw no progress."""

    name: str
    state: str
    aliases: tuple[str, ...] = ()
    engine: str | None = None
    device: str | None = None
    dtype: str | None = None
    context_length: int | None = None
    engine_alive: bool | None = None
    pinned: bool | None = None
    loading: str | None = None
    loading_share: float | None = None
    failure: str | None = None
    retry_in_s: float | None = None
    loads: int | None = None
    failed_loads: int | None = None
    unloads: int | None = None
    running: int | None = None
    max_running: int | None = None
    waiting: int | None = None
    max_waiting: int | None = None
    since_progress_s: float | None = None
    stalled_s: float | None = None
    endings: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, int] = field(default_factory=dict)
    queue: HistogramTimes | None = None
    first_token: HistogramTimes | None = None
    between_tokens: HistogramTimes | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    kv_used: float | None = None
    preemptions: int | None = None
    restarts: int | None = None
    upstreams: tuple[bool, ...] = ()

    @property
    def loaded(self) -> bool:
        """Whether there is a worker. Without `/status`, only the gauges show it."""
        return self.engine_alive is not None or (self.running is not None and self.state in {"ready", "unknown"})

    @property
    def ended(self) -> int:
        return sum(self.endings.values())

    def ended_as(self, *endings: str) -> int:
        return sum(self.endings.get(ending, 0) for ending in endings)

    def share(self, *endings: str) -> float:
        """The share of these endings among all."""
        return self.ended_as(*endings) / self.ended if self.ended else 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """`param` is the field at fault, or empty."""

    reason: str
    param: str
    count: int


@dataclass(frozen=True, slots=True)
class Unread:
    """`status` is 0 if there was no answer."""

    path: str
    status: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """`clock_ahead_s` is how far the server's clock is ahead of ours. `gauges` are a peer's, under our names."""

    url: str
    kind: ServerKind
    local: bool
    encrypted: bool
    sent_key: bool
    sent_admin_key: bool = False
    needs_key: bool | None = None
    server: str | None = None
    version: str | None = None
    ready: bool | None = None
    latency_s: float | None = None
    clock_ahead_s: float | None = None
    uptime_s: float | None = None
    tokens_per_s: float | None = None
    models: tuple[ModelReport, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    memory: tuple[Memory, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def silent(self) -> bool:
        """It accepted connections but answered nothing."""
        return bool(self.unread) and self.latency_s is None and self.kind is ServerKind.UNKNOWN

    @property
    def needs_action(self) -> bool:
        return any(finding.level is Severity.ACT for finding in self.findings)
