"""Several API keys are several tenants: they do not share cached prompt beginnings.

Otherwise a tenant could tell by the time to the first token, and by `cached_tokens`, what another one has sent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.request import GenerateRequest
from drivetrain.server.parse.translate import ParsedRequest

SCOPE_KEY = "drivetrain.tenant"
"""Where the guard puts a request's tenant, or None if there is only one."""


class Tenants:
    """Told apart by the hashes of their keys. A tenant's id changes with each start and reveals nothing of the key."""

    def __init__(self, key_hashes: Sequence[bytes]) -> None:
        self._several = len(set(key_hashes)) > 1
        self._secret = secrets.token_bytes(32)

    def of(self, key_hash: bytes) -> bytes | None:
        return hmac.digest(self._secret, key_hash, "sha256") if self._several else None

    def name(self, key_hash: bytes, connection: str) -> str:
        """Whose turn it is: the key's, or the connection's where all have the same key."""
        tenant = self.of(key_hash)
        return connection if tenant is None else tenant.hex()


def apart(parsed: ParsedRequest, scope: Mapping[str, Any], capabilities: Capabilities) -> ParsedRequest:
    """The same with the tenant in each `cache_salt`, if the engine honours that."""
    requests = tuple(_salted(request, scope, capabilities) for request in parsed.requests)
    return replace(parsed, requests=requests)


def salt_of(scope: Mapping[str, Any], capabilities: Capabilities, given: str | None = None) -> str | None:
    """What takes the place of the `cache_salt` that was given, if any."""
    tenant: bytes | None = scope.get(SCOPE_KEY)
    if tenant is None or "cache_salt" not in capabilities.parameters:
        return given
    return hmac.new(tenant, (given or "").encode(), hashlib.sha256).hexdigest()


def shows_cached(scope: Mapping[str, Any], capabilities: Capabilities) -> bool:
    """Whether `cached_tokens` may be shown: there is one tenant, or the engine keeps several apart."""
    return scope.get(SCOPE_KEY) is None or "cache_salt" in capabilities.parameters


def _salted(request: GenerateRequest, scope: Mapping[str, Any], capabilities: Capabilities) -> GenerateRequest:
    salt = salt_of(scope, capabilities, request.cache_salt)
    return request if salt == request.cache_salt else request.having(cache_salt=salt)
