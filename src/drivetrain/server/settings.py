"""Every setting of the HTTP server: its default and its meaning. The worker has the model's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.http.address import is_loopback

_ORIGIN = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s/?#@,]+")
"""As browsers write it: nothing after the host and port."""


class UnknownFields(StrEnum):
    """What to do about a request field that is not honoured."""

    REFUSE = "refuse"
    WARN = "warn"


class MetricsCompat(StrEnum):
    """Whose metric names `/metrics` has besides ours."""

    NONE = "none"
    VLLM = "vllm"


def setting(default: Any, meaning: str, *, low: float = 0, high: float = 1e15, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"meaning": meaning, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`api_keys` come from a file or the environment, never from a flag, which other users could read."""

    host: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(8000, "the port to listen on; 0 picks a free one", high=65535)
    api_keys: tuple[str, ...] = setting((), "API keys; each request must carry one of them", secret=True)
    admin_keys: tuple[str, ...] = setting(
        (), "admin keys; each request under /admin must carry one of them", secret=True
    )
    insecure_no_key: bool = setting(False, "let other machines connect without an API key (dangerous)")
    allowed_hosts: tuple[str, ...] = setting((), "host names that requests may use, besides this machine's own")
    allowed_origins: tuple[str, ...] = setting((), "origins whose pages may call this server (CORS); * allows all")
    unknown_fields: str = setting(
        UnknownFields.REFUSE.value, "refuse unknown fields, or warn: answer, and name them in x-drivetrain-ignored"
    )
    metrics_compat: str = setting(
        MetricsCompat.NONE.value, "metric names to add to /metrics besides ours: none or vllm"
    )
    max_body_bytes: int = setting(32 * 2**20, "bytes per request body", low=1)
    max_bodies_bytes: int = setting(256 * 2**20, "bytes of all request bodies held in memory at once", low=1)
    max_body_values: int = setting(
        1_000_000, "values per request body; at most 1/4 strings, 1/16 lists or keys, 1/64 objects", low=64
    )
    max_header_bytes: int = setting(32 * 2**10, "bytes of a request's first line and headers", low=1024)
    max_headers: int = setting(100, "header lines per request", low=1)
    max_connections: int = setting(2048, "connections open at once; any more are closed", low=1)
    receipt_timeout_s: float = setting(30.0, "seconds for a whole request to arrive", low=0.01)
    write_timeout_s: float = setting(60.0, "seconds before a client that reads nothing is cut off", low=0.01)
    keep_alive_s: float = setting(75.0, "seconds that an idle connection is kept open", low=0.01)
    max_prompts: int = setting(64, "prompts per completion request; each needs a slot", low=1)

    def __post_init__(self) -> None:
        for name, spec in self.__dataclass_fields__.items():
            value = getattr(self, name)
            low, high = spec.metadata["low"], spec.metadata["high"]
            if isinstance(value, (int, float)) and not low <= value <= high:
                raise InvalidSetting(f"{name} is {value}; it must be from {low:g} to {high:g}", param=name)
        if self.unknown_fields not in tuple(UnknownFields):
            known = ", ".join(UnknownFields)
            raise InvalidSetting(f"unknown_fields is {self.unknown_fields!r}; it must be one of {known}")
        if self.metrics_compat not in tuple(MetricsCompat):
            known = ", ".join(MetricsCompat)
            raise InvalidSetting(f"metrics_compat is {self.metrics_compat!r}; it must be one of {known}")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                message = f"allowed_origins has {origin!r}; an origin looks like https://chat.example or http://localhost:3000"
                raise InvalidSetting(message, param="allowed_origins")
        if not self.loopback and not self.api_keys and not self.insecure_no_key:
            raise InvalidSetting(
                f"listening on {self.host} lets other machines in: set an API key (--api-key-file or "
                "DRIVETRAIN_API_KEY), or pass --insecure-no-key",
                param="host",
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host.strip("[]"))
