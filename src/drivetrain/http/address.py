"""Where a server of the OpenAI API is: `http://a/v1`, parsed."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from drivetrain.core.errors import InvalidSetting

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Address:
    """`path` comes before `/chat/completions`, `root` before endpoints outside the OpenAI API. No slash at the end."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str, *, param: str | None = None, key_goes: str = "by the environment") -> Address:
        """Raises `InvalidSetting` for `param`. A URL without a path gets `/v1`. `key_goes` says how to pass a key."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as exc:
            raise InvalidSetting(f"{_shown(url)} is not a URL: {exc}", param=param) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidSetting(f"{_shown(url)} is not a URL such as http://127.0.0.1:8000/v1", param=param)
        if parts.username is not None or parts.password is not None:
            raise InvalidSetting(f"a URL must not hold a name or a password; give the key {key_goes}", param=param)
        if parts.query or parts.fragment or not re.fullmatch(r"[!-~]*", parts.path + parts.hostname):
            raise InvalidSetting(f"{_shown(url)} must end with its path, such as /v1, in ASCII", param=param)
        secure = parts.scheme == "https"
        port = port if port is not None else 443 if secure else 80
        return cls(secure, parts.hostname, port, parts.path.rstrip("/") or "/v1")

    @property
    def root(self) -> str:
        return self.path.removesuffix("/v1")

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def local(self) -> bool:
        return is_loopback(self.host)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Trusts the certificates that this machine trusts. None for `http`."""
        return _trusted() if self.secure else None

    def __str__(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.authority}{self.path}"


def url_of_listener(host: str, port: int) -> str:
    """Where this machine reaches a server that listens on `host`, with or without brackets if that is of IPv6."""
    bare = host.strip("[]")
    bare = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)  # noqa: S104 - compared, not bound
    return f"http://{f'[{bare}]' if ':' in bare else bare}:{port}"


def is_loopback(host: str) -> bool:
    """Whether it can only reach this machine: `localhost`, or a loopback address in any spelling."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@cache
def _trusted() -> ssl.SSLContext:
    import ssl  # slow to import, and rarely needed

    return ssl.create_default_context()


def _shown(url: str) -> str:
    """The URL for a message, without credentials."""
    return repr(re.sub(r"//[^/@]*@", "//…@", url)[:200])
