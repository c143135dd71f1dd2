"""Fetch an image from a host on the list, as if it were an enemy's: one resolution, public addresses only, bounded."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Sequence

from drivetrain.core.errors import InvalidRequest

MAX_REDIRECTS = 3
CHUNK = 64 * 1024

Resolve = Callable[[str, int], Sequence[str]]
AddressAllowed = Callable[[str], bool]


def resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: str) -> bool:
    """Whether an address is on the internet proper, in IPv4, IPv6 and IPv4 inside IPv6."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class Fetcher:
    """Every hop of a redirect passes the same checks. The connection goes to the address that was checked."""

    def __init__(
        self,
        allow_hosts: frozenset[str],
        *,
        max_bytes: int,
        max_seconds: float = 10.0,
        resolve: Resolve = resolve,
        address_allowed: AddressAllowed = is_public,
    ) -> None:
        self._allow_hosts = frozenset(host.lower().rstrip(".") for host in allow_hosts)
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._resolve = resolve
        self._address_allowed = address_allowed

    def fetch(self, url: str, where: str) -> bytes:
        deadline = time.monotonic() + self._max_seconds
        for _ in range(MAX_REDIRECTS + 1):
            outcome = self._hop(url, where, deadline)
            if isinstance(outcome, bytes):
                return outcome
            url = urllib.parse.urljoin(url, outcome)
        raise _refused("the image's host redirects too often", where)

    def _hop(self, url: str, where: str, deadline: float) -> bytes | str:
        """The body, or where the host sends us next."""
        scheme, host, port, target = self._checked(url, where)
        connection = self._connect(scheme, host, port, where, deadline)
        try:
            connection.request("GET", target, headers={"Host": _host_header(scheme, host, port), "Accept": "image/*"})
            response = connection.getresponse()
            if response.status in {301, 302, 303, 307, 308}:
                return response.getheader("Location") or ""
            if response.status != 200:
                raise _refused(f"the image's host answered {response.status}", where)
            if not (response.getheader("Content-Type") or "image/").lower().startswith(("image/", "application/octet")):
                raise _refused("the image's host did not send an image", where)
            return self._body(connection, response, where, deadline)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise _refused("the image's host failed to answer in time", where) from exc
        finally:
            connection.close()

    def _checked(self, url: str, where: str) -> tuple[str, str, int, str]:
        try:
            parts = urllib.parse.urlsplit(url)
            host = (parts.hostname or "").lower().rstrip(".")
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise _refused("the image's URL is malformed", where) from None
        if parts.scheme not in {"http", "https"} or not host or parts.username or parts.password:
            raise _refused("the image's URL must be plain http or https", where)
        if host not in self._allow_hosts:
            raise _refused(
                "images may not be fetched from this host; send a data URI, or allow it in media_hosts", where
            )
        target = urllib.parse.quote(
            urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, "")), safe="/?&=%:+,;@~!$'()*"
        )
        return parts.scheme, host, port, target

    def _connect(self, scheme: str, host: str, port: int, where: str, deadline: float) -> http.client.HTTPConnection:
        try:
            addresses = self._resolve(host, port)
        except OSError as exc:
            raise _refused("the image's host cannot be found", where) from exc
        if not addresses or not all(self._address_allowed(address) for address in addresses):
            raise _refused("the image's host is not on the public internet", where)
        left = max(0.1, deadline - time.monotonic())
        try:
            raw = socket.create_connection((addresses[0], port), timeout=left)
            connection = http.client.HTTPConnection(host, port, timeout=left)
            if scheme == "https":
                raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
        except OSError as exc:
            raise _refused("the image's host cannot be reached", where) from exc
        connection.sock = raw
        return connection

    def _body(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, where: str, deadline: float
    ) -> bytes:
        data = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _refused(f"the image did not arrive within {self._max_seconds:g} seconds", where)
            if connection.sock is not None:
                connection.sock.settimeout(left)
            chunk = response.read1(CHUNK)
            if not chunk:
                return bytes(data)
            data += chunk
            if len(data) > self._max_bytes:
                raise _refused(f"the image has more than {self._max_bytes} bytes", where)


def _host_header(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == (443 if scheme == "https" else 80) else f"{shown}:{port}"


def _refused(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {message}", param=where)
