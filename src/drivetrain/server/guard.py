"""In front of every route: who may come in, and how much of what they send is taken.

Pure ASGI. What is refused here never reaches a route, a JSON parser or the worker.
"""

from __future__ import annotations

import asyncio
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

from drivetrain.server.budget import BODY_KEY, BodyBudget, BodyShare, release_body
from drivetrain.server.cors import Origins
from drivetrain.server.counts import GONE_KEY, Counts
from drivetrain.server.errors import refusal
from drivetrain.server.settings import ServerSettings
from drivetrain.server.tenants import SCOPE_KEY, Tenants
from drivetrain.telemetry.ids import HTTP_REQUEST_ID, new_id

OPEN_PATHS = frozenset({"/health", "/ready"})
"""What a probe asks, which has no key. Whether a caller has one is `SCOPE_KEY` in the scope."""

KEYLESS_BODY_BYTES = 64 * 2**10
"""Of a request that needs no key where others do: a probe, or a browser that asks about an origin."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = [
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_log = logging.getLogger("drivetrain.server")


class ClientGone(Exception):
    """The connection ended before the whole request had come."""


class Guard:
    """Keys are kept as hashes, and every one is compared, so time tells nothing."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, counts: Counts) -> None:
        self._app = app
        self._settings = settings
        self._counts = counts
        self._bodies = BodyBudget(settings.max_bodies_bytes)
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
        told = [*_ALWAYS, *self._origins.told(headers, scope["path"]), (b"x-request-id", request_id)]
        started = False

        async def stamped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._counts.answered(scope, message["status"])
                message["headers"] = [*message["headers"], *told]
            await send(message)

        refused = self._refuse(scope, headers)
        try:
            if refused is None:
                refused, receive = await self._received(scope, headers, receive)
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
        refused.headers["connection"] = "close"
        return await refused(scope, receive, stamped)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        settings = self._settings
        size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) for k, v in scope["headers"])
        if size > settings.max_header_bytes or len(scope["headers"]) > settings.max_headers:
            most = f"{settings.max_header_bytes} bytes in {settings.max_headers} lines"
            message = f"the headers are too large: at most {most}"
            return refusal(431, message, kind="invalid_request_error", code="headers_too_large")
        if (refused := self._refuse_place(headers, scope["path"])) is not None:
            return refused
        if self._origins.preflight(scope["method"], headers, scope["path"]) is not None:
            return None
        administrates = scope["path"].startswith("/admin/") or scope["path"] == "/admin"
        keys = self._admin_keys if administrates and self._admin_keys else self._keys
        if keys:
            key_hash = _known_key(headers.get("authorization", ""), keys)
            if key_hash is None and scope["path"] in OPEN_PATHS:
                return None
            if key_hash is None:
                return refusal(
                    401,
                    "an API key is needed: authorization: Bearer KEY",
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"www-authenticate": _challenge(headers)},
                )
            scope[SCOPE_KEY] = self._tenants.of(key_hash)
        return self._refuse_admin() if administrates else None

    def _refuse_admin(self) -> Response | None:
        """Without a key of its own it is open to the one API key that there is, or without any to this machine."""
        if self._admin_keys or len(self._keys) == 1 or (not self._keys and self._loopback):
            return None
        message = "who may administrate this server is not said; see --admin-key-file"
        return refusal(403, message, kind="invalid_request_error", code="admin_not_allowed")

    def _refuse_place(self, headers: Headers, path: str) -> Response | None:
        """Against a name that a stranger's DNS points at this machine, and against pages of other origins.

        A server that listens for other machines has many names; there the key is the guard, unless a browser
        sends it of its own accord, as it does with Basic.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._loopback and _name(host) not in self._hosts:
            message = "this server does not answer to that host name; see --allowed-hosts"
            return refusal(403, message, kind="invalid_request_error", code="host_not_allowed")
        strict = self._loopback or not headers.get("authorization", "").lower().startswith("bearer ")
        elsewhere = origin is not None and origin.partition("://")[2].lower() != host.lower()
        if elsewhere and strict and not self._origins.allow(headers, path):
            message = "requests from pages of this origin are not answered; see --allowed-origins"
            return refusal(403, message, kind="invalid_request_error", code="origin_not_allowed")
        return None

    async def _received(self, scope: Scope, headers: Headers, receive: Receive) -> tuple[Response | None, Receive]:
        """Take the whole body, within its bounds, and hand it on as one piece."""
        settings, limit = self._settings, self._settings.max_body_bytes
        if self._keys and SCOPE_KEY not in scope:
            limit = min(limit, KEYLESS_BODY_BYTES)
        if int(headers.get("content-length", "0")) > limit:
            return _too_large(limit), receive
        chunks, size = [], 0
        share = scope[BODY_KEY] = BodyShare(self._bodies)
        try:
            async with asyncio.timeout(settings.receipt_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > limit:
                        return _too_large(limit), receive
                    if not share.grow(len(chunks[-1])):
                        return _no_room(settings.max_bodies_bytes), receive
                    more = message.get("more_body", False)
        except TimeoutError:
            message_text = f"the request did not arrive within {settings.receipt_timeout_s:g} seconds"
            return refusal(408, message_text, kind="timeout_error", code="request_timeout"), receive
        return None, _replay(b"".join(chunks), receive, scope)


def _known_key(authorization: str, keys: Sequence[bytes]) -> bytes | None:
    """Its hash. Bearer as the API's clients send it; Basic with the key as password, as browsers can."""
    scheme, _, value = authorization.partition(" ")
    key = value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            key = base64.b64decode(key, validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    elif scheme.lower() != "bearer":
        return None
    digest = hashlib.sha256(key).digest()
    return digest if sum(hmac.compare_digest(digest, known) for known in keys) > 0 else None


def _replay(body: bytes, receive: Receive, scope: Scope) -> Receive:
    """The body in one piece, and then what else comes; that the client has left is noted in the scope."""
    given = False

    async def replayed() -> Message:
        nonlocal body, given
        if given:
            message = await receive()
            if message["type"] == "http.disconnect":
                scope[GONE_KEY] = True
            return message
        given, whole, body = True, body, b""  # not held for as long as the answer takes
        return {"type": "http.request", "body": whole, "more_body": False}

    return replayed


def _too_large(limit: int) -> Response:
    message = f"the body is larger than {limit} bytes"
    return refusal(413, message, kind="invalid_request_error", code="body_too_large")


def _no_room(limit: int) -> Response:
    message = f"the bodies of other requests fill the {limit} bytes that there are for them; try again"
    return refusal(503, message, kind="unavailable_error", code="overloaded", headers={"retry-after": "1"})


def _challenge(headers: Headers) -> str:
    """Basic only where a person opens the page, so that the browser asks for the key and no script is bothered."""
    return 'Basic realm="drivetrain: the API key as password"' if "text/html" in headers.get("accept", "") else "Bearer"


def _request_id(headers: Headers) -> bytes:
    given = headers.get("x-request-id", "")
    return given.encode() if _REQUEST_ID.fullmatch(given) else new_id().encode()


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1 : host.find("]")].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
