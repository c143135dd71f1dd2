"""Which pages of other origins may call this server, and what their browsers have to be told (CORS).

A browser lets a page read an answer only where the answer names the page's origin, and asks before it sends what a form
could not. Credentials that a browser adds by itself are never allowed: a page sends its own key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response

EVERY = "*"

_MAX_AGE_S = 600
_EXPOSED = "x-request-id, retry-after, x-drivetrain-ignored, x-drivetrain-truncated-tokens"
_NAMES = re.compile(r"[-A-Za-z0-9_]+(?: *, *[-A-Za-z0-9_]+)*")


class Origins:
    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def allow(self, headers: Headers, path: str) -> bool:
        """Every page is not every user: one that anybody may have made gets neither what a browser has remembered of a
        user's password, nor what an administrator can do."""
        origin = headers.get("origin")
        if origin is None:
            return False
        if origin.lower() in self._allowed:
            return True
        from_memory = headers.get("authorization", "").lower().startswith("basic")
        return EVERY in self._allowed and not from_memory and not (path + "/").startswith("/admin/")

    def told(self, headers: Headers, path: str) -> list[tuple[bytes, bytes]]:
        """The headers of any answer to this request."""
        if not self._allowed:
            return []
        vary = [] if EVERY in self._allowed else [(b"vary", b"origin")]
        if not self.allow(headers, path):
            return vary
        named = EVERY if EVERY in self._allowed else headers["origin"]
        return [
            *vary,
            (b"access-control-allow-origin", named.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED.encode()),
        ]

    def preflight(self, method: str, headers: Headers, path: str) -> Response | None:
        """The answer to a browser that asks whether it may send a request. It has no key at this point."""
        asked_method = headers.get("access-control-request-method")
        if method != "OPTIONS" or asked_method is None or not self.allow(headers, path):
            return None
        named = headers.get("access-control-request-headers", "")
        told = {"access-control-allow-methods": "GET, POST", "access-control-max-age": str(_MAX_AGE_S)}
        if _NAMES.fullmatch(named):
            told["access-control-allow-headers"] = named
        return Response(status_code=204, headers=told)
