"""Where upstreams are and what they are asked for: `http://a/v1,http://b/v1#MODEL` taken apart."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from drivetrain.core.errors import InvalidSetting

KEY_VARIABLE = "DRIVETRAIN_REMOTE_API_KEY"
_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Key:
    """The API key of the upstreams. Shown to nobody: not in its repr, and `hide` takes it out of others' words."""

    secret: str = field(default="", repr=False)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Key:
        secret = (os.environ if environment is None else environment).get(KEY_VARIABLE, "").strip()
        if not re.fullmatch(r"[!-~]*", secret):
            raise InvalidSetting(f"{KEY_VARIABLE} holds characters that no key has", param="remote_api_key")
        return cls(secret)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"} if self.secret else {}

    def hide(self, text: str) -> str:
        return text.replace(self.secret, "…") if self.secret else text


@dataclass(frozen=True, slots=True)
class Address:
    """`path` stands before `/chat/completions`, `root` before what is no part of OpenAI's API; no slash at the end."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises `InvalidSetting`. A URL without a path gets `/v1`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as exc:
            raise InvalidSetting(f"{_shown(url)} is not a URL: {exc}", param="model") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidSetting(f"{_shown(url)} is not a URL such as http://127.0.0.1:8000/v1", param="model")
        if parts.username is not None or parts.password is not None:
            raise InvalidSetting(
                f"a URL must not hold a name or a password; give the key in {KEY_VARIABLE}", param="model"
            )
        if parts.query or parts.fragment or not re.fullmatch(r"[!-~]*", parts.path + parts.hostname):
            raise InvalidSetting(f"{_shown(url)} must end with its path, such as /v1, in ASCII", param="model")
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

    def __str__(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.authority}{self.path}"


@dataclass(frozen=True, slots=True)
class Reference:
    """One model on one or several upstreams. `model` None: the only one that they list."""

    addresses: tuple[Address, ...]
    model: str | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Raises `InvalidSetting`."""
        urls, _, model = text.partition("#")
        addresses = tuple(dict.fromkeys(Address.parse(url.strip()) for url in urls.split(",") if url.strip()))
        return cls(addresses, model or None)


def is_url(model: str) -> bool:
    return model.startswith(_SCHEMES)


def _shown(url: str) -> str:
    """The URL for a message, without what may be secret in it."""
    return repr(re.sub(r"//[^/@]*@", "//…@", url)[:200])
