"""Opening a URL for a download: https only, the environment's proxies and certificates, redirects, errors.

A failure is either final (a `DrivetrainError`) or worth another try (`Interrupted`). Messages name only the host.
"""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from drivetrain.core.errors import DrivetrainError, LoadFailed, ModelNotFound, one_line
from drivetrain.http.address import is_loopback
from drivetrain.store.display import OFFLINE_REMEDY

USER_AGENT = "drivetrain (+https://pypi.org/project/drivetrain/)"
MAX_REDIRECTS = 10
CHUNK_BYTES = 256 * 1024

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_RETRY_AFTER_S = 30.0


class Interrupted(Exception):
    """This attempt failed. `reached` tells whether the host answered at all."""

    def __init__(self, host: str, reason: str, *, reached: bool, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.host = host
        self.reason = reason
        self.reached = reached
        self.retry_after_s = retry_after_s

    def give_up(self, what: str) -> LoadFailed:
        """The final error, after the last attempt."""
        if self.reached:
            return LoadFailed(f"the download of {what} from {self.host} keeps failing ({self.reason}); run it again")
        return LoadFailed(f"cannot download {what}: {self.host} cannot be reached ({self.reason}); {OFFLINE_REMEDY}")


@dataclass(frozen=True, slots=True)
class DownloadUrl:
    """A URL that may be opened. Its user name and password are kept apart, as a header's value."""

    text: str
    authorization: str | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.text).hostname or ""

    @property
    def origin(self) -> tuple[str, str]:
        return urlsplit(self.text)[:2]

    @staticmethod
    def parse(text: str, what: str, base: str = "") -> DownloadUrl:
        """Raises `LoadFailed` unless it is https, or http on this machine."""
        try:
            parts = urlsplit(urljoin(base, text.strip()))
            host, _ = parts.hostname or "", parts.port
            text.encode()
        except ValueError as exc:  # UnicodeEncodeError is one
            raise _malformed(what) from exc
        if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
            raise LoadFailed(f"cannot download {what}: only https URLs are used, and http on this machine")
        authorization = None
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + base64.b64encode(credentials.encode()).decode()
        netloc = parts.netloc.rpartition("@")[2].lower()
        path, query = (quote(part, safe="/%:@!$&'()*+,;=~?") for part in (parts.path, parts.query))
        return DownloadUrl(urlunsplit((parts.scheme, netloc, path, query, "")), authorization)

    def join(self, link: str, what: str) -> DownloadUrl:
        """Where a link or a redirect leads. Only the same origin is given the credentials, and https stays https."""
        target = DownloadUrl.parse(link, what, self.text)
        if self.text.startswith("https:") and not target.text.startswith("https:"):
            raise LoadFailed(f"cannot download {what}: {self.host} leads from https to http")
        if target.authorization is None and target.origin == self.origin:
            return DownloadUrl(target.text, self.authorization)
        return target


@contextmanager
def opened(
    url: DownloadUrl, what: str, *, headers: Mapping[str, str], timeout_s: float
) -> Iterator[http.client.HTTPResponse]:
    """The response after redirects: 2xx, or 416, which the caller must judge.

    Raises `LoadFailed`, `ModelNotFound` or `Interrupted`.
    """
    for _ in range(MAX_REDIRECTS):
        with _open(url, what, headers, timeout_s) as response:
            location = response.headers["Location"] if response.status in _REDIRECTS else None
            if location is None:
                if response.status != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and response.status // 100 != 2:
                    raise _refused(response, url.host, what)
                yield response
                return
        url = url.join(location, what)
    raise LoadFailed(f"cannot download {what}: {url.host} redirects too often")


def chunks(response: http.client.HTTPResponse, host: str) -> Iterator[bytes]:
    """The body. Raises `Interrupted` if it ends too early."""
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as exc:
            raise Interrupted(host, _words(exc), reached=True) from exc
        if not chunk:
            break
        yield chunk
    if response.length:
        raise Interrupted(host, "the connection broke", reached=True)


def _open(url: DownloadUrl, what: str, headers: Mapping[str, str], timeout_s: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url.text, headers={"User-Agent": USER_AGENT, **headers})  # noqa: S310 -- https, or this machine
    if url.authorization is not None:
        request.add_header("Authorization", url.authorization)
    opener = urllib.request.OpenerDirector()  # with nothing that follows redirects or raises for a status
    opener.add_handler(urllib.request.ProxyHandler({} if is_loopback(url.host) else None))
    opener.add_handler(urllib.request.UnknownHandler())
    if url.text.startswith("https:"):
        opener.add_handler(urllib.request.HTTPSHandler(context=_certificates()))
    else:
        opener.add_handler(urllib.request.HTTPHandler())
    try:
        response = opener.open(request, timeout=timeout_s)
    except ValueError as exc:  # InvalidURL, or a name that cannot be encoded
        raise _malformed(what) from exc
    except (http.client.HTTPException, OSError) as exc:
        raise translate_reason(exc.reason if isinstance(exc, urllib.error.URLError) else exc, url.host, what) from exc
    assert isinstance(response, http.client.HTTPResponse)  # the opener speaks http and https only
    return response


def _certificates() -> ssl.SSLContext:
    """The system's, which SSL_CERT_FILE and SSL_CERT_DIR override, and those that pip is configured with."""
    context = ssl.create_default_context()
    if pip_cert := os.environ.get("PIP_CERT"):
        try:
            context.load_verify_locations(**{"capath" if os.path.isdir(pip_cert) else "cafile": pip_cert})
        except OSError as exc:  # ssl.SSLError is one
            raise LoadFailed("PIP_CERT names no readable certificate file; correct it or unset it") from exc
    return context


def _refused(response: http.client.HTTPResponse, host: str, what: str) -> DrivetrainError | Interrupted:
    status = response.status
    if status in _TEMPORARY:
        value = response.headers.get("Retry-After", "")
        retry_after_s = min(float(value), _MAX_RETRY_AFTER_S) if value.isascii() and value.isdigit() else 0.0
        return Interrupted(host, f"HTTP {status}", reached=True, retry_after_s=retry_after_s)
    if status in (404, 410):
        return ModelNotFound(f"{what} is not at {host} (HTTP {status})")
    if status in (401, 403, 407):
        return LoadFailed(
            f"cannot download {what}: {host} refuses access (HTTP {status}); check the credentials in the URL"
        )
    return LoadFailed(f"cannot download {what}: {host} answers HTTP {status}")


def translate_reason(reason: str | BaseException, host: str, what: str) -> DrivetrainError | Interrupted:
    """What went wrong before there was an answer."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return LoadFailed(
            f"cannot download {what}: the certificate of {host} is not trusted ({one_line(reason.verify_message)}); "
            "set SSL_CERT_FILE to your organisation's certificates"
        )
    return Interrupted(host, _words(reason), reached=False)


def _words(reason: str | BaseException) -> str:
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    return one_line((isinstance(reason, OSError) and reason.strerror) or str(reason) or type(reason).__name__)


def _malformed(what: str) -> LoadFailed:
    return LoadFailed(f"cannot download {what}: its URL is malformed")
