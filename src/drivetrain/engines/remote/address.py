"""Where upstreams are and what they are asked for: `http://a/v1,http://b/v1#MODEL` taken apart."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.core.errors import InvalidSetting
from drivetrain.http.address import Address

KEY_VARIABLE = "DRIVETRAIN_REMOTE_API_KEY"
_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Key:
    """The API key of the upstreams. Its repr does not show it, and `hide` removes it from other texts."""

    secret: str = field(default="", repr=False)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Key:
        secret = (os.environ if environment is None else environment).get(KEY_VARIABLE, "").strip()
        if not re.fullmatch(r"[!-~]*", secret):
            raise InvalidSetting(f"{KEY_VARIABLE} holds characters that no API key has", param="remote_api_key")
        return cls(secret)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"} if self.secret else {}

    def hide(self, text: str) -> str:
        return text.replace(self.secret, "…") if self.secret else text


@dataclass(frozen=True, slots=True)
class Reference:
    """One model on one or several upstreams. `model` None: the only one they list."""

    addresses: tuple[Address, ...]
    model: str | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Raises `InvalidSetting`."""
        urls, _, model = text.partition("#")
        addresses = tuple(dict.fromkeys(_address(url.strip()) for url in urls.split(",") if url.strip()))
        return cls(addresses, model or None)


def _address(url: str) -> Address:
    return Address.parse(url, param="model", key_goes=f"in {KEY_VARIABLE}")


def is_url(model: str) -> bool:
    return model.startswith(_SCHEMES)
