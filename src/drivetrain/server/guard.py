"""Decides who may come in, in front of every route. (`http/intake.py` bounds how much they may send.)

Pure ASGI. A request refused here never reaches a route, a JSON parser or the worker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drivetrain.core.caller import CALLER
from drivetrain.server.counts import Counts
from drivetrain.server.endpoints.static import PAGE_PATHS
from drivetrain.server.errors import refusal
from drivetrain.server.faces import in_shape
from drivetrain.server.http.connection import REFUSING_KEY
from drivetrain.server.http.intake import ClientGone, Intake, release_body
from drivetrain.server.settings import ServerSettings
from drivetrain.server.tenants import SCOPE_KEY, Tenants
from drivetrain.telemetry.ids import HTTP_REQUEST_ID, new_id

OPEN_PATHS = frozenset({"/health", "/ready"})
"""For probes, which have no key. `SCOPE_KEY` is in the scope of callers that have one.

The page's own files, which are the same on every server, need none either: it is the page that asks for the key.
"""

KEYLESS_BODY_BYTES = 64 * 2**10
"""The limit for requests that need no key on a server with keys: probes and CORS preflights."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_ALWAYS = [
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
EVERY = "*"

_MAX_AGE_S = 600
_EXPOSED = "x-request-id, retry-after, x-drivetrain-ignored, x-drivetrain-truncated-tokens"
_NAMES = re.compile(r"[-A-Za-z0-9_]+(?: *, *[-A-Za-z0-9_]+)*")
_log = logging.getLogger("drivetrain.server")


class Guard:
    """Keys are kept as hashes, and a request's key is compared with all of them, so that timing reveals nothing."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, counts: Counts) -> None:
        self._app = app
        self._settings = settings
        self._counts = counts
        self._intake = Intake(settings)
        self._keys = [hashlib.sha256(key.encode()).digest() for key in settings.api_keys]
        self._admin_keys = [hashlib.sha256(key.encode()).digest() for key in settings.admin_keys]
        self._tenants = Tenants(self._keys)
        self._origins = Origins(settings.allowed_origins)
        self._loopback = settings.loopback
        self._hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]").lower()}
        self._hosts |= {host.lower() for host in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        scope["path"] = scope["path"].rstrip("/") or "/"
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        HTTP_REQUEST_ID.set(request_id.decode())
        CALLER.set(_connection(scope))
        added = [*_ALWAYS, *self._origins.headers_for(headers, scope["path"]), (b"x-request-id", request_id)]
        started = False

        async def stamped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._counts.answered(scope, message["status"])
                message["headers"] = [*message["headers"], *added]
            await send(message)

        refused = self._refuse(scope, headers)
        try:
            if refused is None:
                refused, receive = await self._intake.take(scope, receive, self._max_body_bytes(scope))
            if refused is None:
                answer = self._origins.preflight(scope["method"], headers, scope["path"]) or self._app
                return await answer(scope, receive, stamped)
        except ClientGone:
            return None
        except Exception:
            _log.exception("request %s failed", request_id.decode())
            if started:
                raise
            refused = refusal(500, "the server failed on this request", kind="server_error", code="internal_error")
        finally:
            release_body(scope)
        refused = in_shape(refused, scope["path"])
        refused.headers["connection"] = "close"
        return await refused(scope, receive, stamped)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        settings = self._settings
        if REFUSING_KEY in scope and scope["path"] not in OPEN_PATHS:
            message = "the server has as many connections as it can serve; try again shortly"
            again = {"retry-after": "1"}
            return refusal(503, message, kind="unavailable_error", code="overloaded", headers=again)
        size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) for k, v in scope["headers"])
        if size > settings.max_header_bytes or len(scope["headers"]) > settings.max_headers:
            limit = f"{settings.max_header_bytes} bytes in {settings.max_headers} lines"
            message = f"the headers are too large; the limit is {limit}"
            return refusal(431, message, kind="invalid_request_error", code="headers_too_large")
        if (refused := self._refuse_place(headers, scope["path"])) is not None:
            return refused
        if self._origins.preflight(scope["method"], headers, scope["path"]) is not None:
            return None
        is_admin = scope["path"].startswith("/admin/") or scope["path"] == "/admin"
        keys = self._admin_keys if is_admin and self._admin_keys else self._keys
        if keys:
            key_hash = _known_key(headers, keys)
            if key_hash is None and (scope["path"] in OPEN_PATHS or _is_page(scope)):
                return None
            if key_hash is None:
                wrong = "this API key is not an admin key" if is_admin else "this API key is not known here"
                return refusal(
                    401,
                    wrong if _sent_keys(headers) else _KEY_REQUIRED,
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"www-authenticate": _challenge(headers)},
                )
            scope[SCOPE_KEY] = self._tenants.of(key_hash)
            CALLER.set(self._tenants.name(key_hash, CALLER.get()))
        return self._refuse_admin() if is_admin else None

    def _max_body_bytes(self, scope: Scope) -> int:
        limit = self._settings.max_body_bytes
        return min(limit, KEYLESS_BODY_BYTES) if self._keys and SCOPE_KEY not in scope else limit

    def _refuse_admin(self) -> Response | None:
        """Without admin keys, it is open to the only API key, or, if there is none, to this machine."""
        if self._admin_keys or len(self._keys) == 1 or (not self._keys and self._loopback):
            return None
        message = "no admin key is configured; see --admin-key-file"
        return refusal(403, message, kind="invalid_request_error", code="admin_not_allowed")

    def _refuse_place(self, headers: Headers, path: str) -> Response | None:
        """Protects against DNS rebinding, and against pages of other origins.

        A server that other machines can reach has many names; there the key protects it, unless it is one that
        browsers send by themselves (Basic).
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._loopback and _name(host) not in self._hosts:
            message = "this host name is not allowed; see --allowed-hosts"
            return refusal(403, message, kind="invalid_request_error", code="host_not_allowed")
        strict = self._loopback or not headers.get("authorization", "").lower().startswith("bearer ")
        cross_origin = origin is not None and origin.partition("://")[2].lower() != host.lower()
        if cross_origin and strict and not self._origins.allow(headers, path):
            message = "this origin is not allowed; see --allowed-origins"
            return refusal(403, message, kind="invalid_request_error", code="origin_not_allowed")
        return None


class Origins:
    """Which pages of other origins may call this server, and the headers that their browsers need (CORS).

    A browser lets a page read an answer only if the answer names the page's origin, and sends a preflight before any
    request that a form could not make. Credentials that browsers add by themselves are never allowed: a page sends its
    own key.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def allow(self, headers: Headers, path: str) -> bool:
        """`*` allows every page, but any of them may be malicious: they get neither the use of a password that the
        browser has stored, nor the admin endpoints."""
        origin = headers.get("origin")
        if origin is None:
            return False
        if origin.lower() in self._allowed:
            return True
        from_memory = headers.get("authorization", "").lower().startswith("basic")
        return EVERY in self._allowed and not from_memory and not (path + "/").startswith("/admin/")

    def headers_for(self, headers: Headers, path: str) -> list[tuple[bytes, bytes]]:
        """The headers to add to any answer to this request."""
        if not self._allowed:
            return []
        vary = [] if EVERY in self._allowed else [(b"vary", b"origin")]
        if not self.allow(headers, path):
            return vary
        origin = EVERY if EVERY in self._allowed else headers["origin"]
        return [
            *vary,
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED.encode()),
        ]

    def preflight(self, method: str, headers: Headers, path: str) -> Response | None:
        """The answer to a browser that asks whether it may send a request. It sends no key at this point."""
        requested_method = headers.get("access-control-request-method")
        if method != "OPTIONS" or requested_method is None or not self.allow(headers, path):
            return None
        requested = headers.get("access-control-request-headers", "")
        allowed = {"access-control-allow-methods": "GET, POST", "access-control-max-age": str(_MAX_AGE_S)}
        if _NAMES.fullmatch(requested):
            allowed["access-control-allow-headers"] = requested
        return Response(status_code=204, headers=allowed)


def _is_page(scope: Scope) -> bool:
    return scope["path"] in PAGE_PATHS and scope["method"] in {"GET", "HEAD"}


def _connection(scope: Scope) -> str:
    host, port = scope.get("client") or ("", 0)
    return f"{host}:{port}"


_KEY_REQUIRED = "an API key is required: send the header authorization: Bearer KEY, or x-api-key: KEY"


def _sent_keys(headers: Headers) -> list[bytes]:
    """API clients send theirs as Bearer or, for Anthropic's API, in a header of its own; browsers as the password of
    Basic."""
    sent = (_sent_key(headers.get("authorization", "")), headers.get("x-api-key", "").strip().encode("latin-1"))
    return [key for key in sent if key]


def _known_key(headers: Headers, keys: Sequence[bytes]) -> bytes | None:
    """The hash of a valid key. Clients may send two; one valid key is enough."""
    digests = [hashlib.sha256(key).digest() for key in _sent_keys(headers)]
    valid = [digest for digest in digests if sum(hmac.compare_digest(digest, known) for known in keys) > 0]
    return valid[0] if valid else None


def _sent_key(authorization: str) -> bytes:
    """Empty if there is none."""
    scheme, _, value = authorization.partition(" ")
    key = value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(key, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return key if scheme.lower() == "bearer" else b""


def _challenge(headers: Headers) -> str:
    """Basic only for a person who opens an address such as /status, so that the browser asks for the key. The page and
    other scripts get Bearer: the page asks by itself."""
    return 'Basic realm="drivetrain: the API key as password"' if "text/html" in headers.get("accept", "") else "Bearer"


def _request_id(headers: Headers) -> bytes:
    given = headers.get("x-request-id", "")
    return given.encode() if _REQUEST_ID.fullmatch(given) else new_id().encode()


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1 : host.find("]")].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
