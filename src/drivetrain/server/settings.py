"""Every setting of the HTTP server: its default and its meaning. The worker has the model's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Boolean, Integer, Kind, ListOf, Number, OneOf, String
from drivetrain.core.settings import Setting, declarations
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


_MOST = 10**15
_COUNT = Integer(1, _MOST)
_SECONDS = Number(0.01, _MOST)
_STRINGS = ListOf(String())


def _setting(kind: Kind, meaning: str, default: Any, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"setting": Setting(kind, meaning, default)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`api_keys` come from a file or the environment, never from a flag, which other users could read."""

    host: str = _setting(String(), "the address to listen on", "127.0.0.1")
    port: int = _setting(Integer(0, 65535), "the port to listen on; 0 picks a free one", 8000)
    api_keys: tuple[str, ...] = _setting(_STRINGS, "API keys; each request must carry one of them", (), secret=True)
    admin_keys: tuple[str, ...] = _setting(
        _STRINGS, "admin keys; each request under /admin must carry one of them", (), secret=True
    )
    insecure_no_key: bool = _setting(Boolean(), "let other machines connect without an API key (dangerous)", False)
    allowed_hosts: tuple[str, ...] = _setting(
        _STRINGS, "host names that requests may use, besides this machine's own", ()
    )
    allowed_origins: tuple[str, ...] = _setting(
        _STRINGS, "origins whose pages may call this server (CORS); * allows all", ()
    )
    unknown_fields: str = _setting(
        OneOf(UnknownFields),
        "refuse unknown fields, or warn: answer, and name them in x-drivetrain-ignored",
        UnknownFields.REFUSE.value,
    )
    keep_billing_line: bool = _setting(
        Boolean(), "leave Claude Code's billing line in the prompt: its turns then share less of it", False
    )
    metrics_compat: str = _setting(
        OneOf(MetricsCompat), "metric names to add to /metrics besides ours: none or vllm", MetricsCompat.NONE.value
    )
    max_body_bytes: int = _setting(_COUNT, "bytes per request body", 32 * 2**20)
    max_bodies_bytes: int = _setting(_COUNT, "bytes of all request bodies held in memory at once", 256 * 2**20)
    max_body_values: int = _setting(
        Integer(64, _MOST), "values per request body; at most 1/4 strings, 1/16 lists or keys, 1/64 objects", 1_000_000
    )
    max_header_bytes: int = _setting(Integer(1024, _MOST), "bytes of a request's first line and headers", 32 * 2**10)
    max_headers: int = _setting(_COUNT, "header lines per request", 100)
    max_connections: int = _setting(_COUNT, "connections open at once; idle ones make room, any more get 503", 2048)
    receipt_timeout_s: float = _setting(_SECONDS, "seconds for a whole request to arrive", 30.0)
    write_timeout_s: float = _setting(_SECONDS, "seconds before a client that reads nothing is cut off", 60.0)
    keep_alive_s: float = _setting(_SECONDS, "seconds that an idle connection is kept open", 75.0)
    max_prompts: int = _setting(_COUNT, "prompts per completion request; each needs a slot", 64)

    def __post_init__(self) -> None:
        for name, one in declarations(type(self)).items():
            object.__setattr__(self, name, one.judge(name, getattr(self, name)))
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
