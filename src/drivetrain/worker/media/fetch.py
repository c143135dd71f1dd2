"""Fetches an image from an allowed host, which is not trusted: resolved once, public addresses only, bounded."""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from drivetrain.core.errors import InvalidRequest, no_file_left

MAX_REDIRECTS = 3
MAX_URL_CHARS = 8192
CHUNK = 64 * 1024
PORTS = {"http": 80, "https": 443}

Resolve = Callable[[str, int], Sequence[str]]
AddressAllowed = Callable[[str], bool]

_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_INNER = [ipaddress.IPv6Network(net) for net in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")]
"""Networks with an IPv4 address in the last 32 bits: NAT64, SIIT, the old compatible form."""


def resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: str) -> bool:
    """Whether an address is on the public internet: IPv4, IPv6, or IPv4 inside IPv6."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and any(ip in net for net in _INNER):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local or ip in _LOCAL_NAT64:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class Fetcher:
    """Every redirect passes the same checks. The connection goes to the very address that was checked.

    A listed host may be reached on ports 80 and 443; a listed `host:port` on that port.
    """

    def __init__(
        self,
        allow_hosts: frozenset[str],
        *,
        max_bytes: int,
        max_seconds: float = 10.0,
        resolve: Resolve = resolve,
        address_allowed: AddressAllowed = is_public,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._allow_hosts = frozenset(_plain(host) for host in allow_hosts)
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._resolve = resolve
        self._address_allowed = address_allowed
        self._tls = tls

    def fetch(self, url: str, where: str) -> bytes:
        """Raises `InvalidRequest` with `where` as its param and no address in its message."""
        deadline = time.monotonic() + self._max_seconds
        try:
            for _ in range(MAX_REDIRECTS + 1):
                outcome = self._hop(url, where, deadline)
                if isinstance(outcome, bytes):
                    return outcome
                url = urllib.parse.urljoin(url, outcome)
        except TimeoutError as exc:
            raise _refused(f"the image did not arrive within {self._max_seconds:g} seconds", where) from exc
        except (OSError, http.client.HTTPException) as exc:
            refused = _refused("the image's host cannot be reached, or closed the connection early", where)
            raise no_file_left(exc) or refused from exc
        except ValueError as exc:
            raise _refused("the image's URL, or one that it redirects to, is malformed", where) from exc
        raise _refused("the image's host redirects too often", where)

    def _hop(self, url: str, where: str, deadline: float) -> bytes | str:
        """The body, or the URL that the host redirects to."""
        scheme, host, port, target = self._checked(url, where)
        with self._connect(scheme, host, port, where, deadline) as sock:
            connection = http.client.HTTPConnection(host, port)
            connection.sock = _Timed(sock, deadline)
            connection.request("GET", target, headers={"Host": _host_header(scheme, host, port), "Accept": "image/*"})
            with connection.getresponse() as response:
                if response.status in {301, 302, 303, 307, 308} and response.getheader("Location"):
                    return str(response.getheader("Location"))
                if response.status != 200:
                    raise _refused(f"the image's host answered {response.status}", where)
                kind = (response.getheader("Content-Type") or "image/").lower()
                if not kind.startswith(("image/", "application/octet-stream", "binary/octet-stream")):
                    raise _refused("the image's host did not send an image", where)
                return self._body(response, where)

    def _checked(self, url: str, where: str) -> tuple[str, str, int, str]:
        if len(url) > MAX_URL_CHARS:
            raise _refused(f"the image's URL has more than {MAX_URL_CHARS} characters", where)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc:
            raise _refused("the image's URL must be plain http or https", where)
        host = _plain(parts.hostname)
        port = PORTS[parts.scheme] if parts.port is None else parts.port
        host_allowed = port in PORTS.values() and host in self._allow_hosts
        if not host_allowed and f"{_bracketed(host)}:{port}" not in self._allow_hosts:
            raise _refused(
                "images may not be fetched from this host and port; send a data URI, or allow it in media_hosts", where
            )
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        return parts.scheme, host, port, urllib.parse.quote(target, safe="/?&=%:+,;@~!$'()*")

    def _connect(self, scheme: str, host: str, port: int, where: str, deadline: float) -> socket.socket:
        try:
            addresses = self._resolve(host, port)
        except OSError as exc:
            raise _refused("the image's host cannot be found", where) from exc
        if not addresses or not all(self._address_allowed(address) for address in addresses):
            raise _refused("the image's host is not on the public internet", where)
        context = self._tls() if scheme == "https" else None
        raw = self._first_that_answers(addresses, port, deadline)
        if context is None:
            return raw
        try:
            raw.settimeout(_left(deadline))
            return context.wrap_socket(raw, server_hostname=host)
        except BaseException:
            raw.close()
            raise

    def _first_that_answers(self, addresses: Sequence[str], port: int, deadline: float) -> socket.socket:
        failure: OSError = OSError()
        for address in dict.fromkeys(addresses):
            try:
                return socket.create_connection((address, port), timeout=_left(deadline))
            except OSError as exc:
                failure = exc
        raise failure

    def _body(self, response: http.client.HTTPResponse, where: str) -> bytes:
        data = bytearray()
        while (response.length or 0) <= self._max_bytes and len(data) <= self._max_bytes:
            chunk = response.read1(CHUNK)
            if not chunk:
                return bytes(data)
            data += chunk
        raise _refused(f"the image has more than {self._max_bytes} bytes", where)


class _Timed:
    """What `http.client` needs of a socket; every read and write ends by the deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        """Does nothing, because the answer is still read after `http.client` calls this. `_hop` closes the socket."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _plain(host: str) -> str:
    """Lower case, no trailing dot, other scripts in their IDNA form."""
    host = host.lower().rstrip(".")
    return host if host.isascii() else host.encode("idna").decode()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _host_header(scheme: str, host: str, port: int) -> str:
    return _bracketed(host) if port == PORTS[scheme] else f"{_bracketed(host)}:{port}"


def _refused(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {message}", param=where)
