"""Opening a URL with care: https only, proxies, certificates, credentials, redirects, and every failure translated.

A failure is either final (a `DrivetrainError`) or worth another try (`Interrupted`). Messages name the host at most.
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
from email.message import Message
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from drivetrain.core.errors import DrivetrainError, LoadFailed, ModelNotFound
from drivetrain.http.address import is_loopback
from drivetrain.store.display import one_line

USER_AGENT = "drivetrain (+https://pypi.org/project/drivetrain/)"

_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_RETRY_AFTER_S = 30.0

OFFLINE_REMEDY = (
    "check the network and the proxy settings; without a network, pull on a machine that has one "
    "and give the path of the copied model"
)


class Interrupted(Exception):
    """It failed this time. `reached` tells whether the host answered at all."""

    def __init__(self, host: str, reason: str, *, reached: bool, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.host = host
        self.reason = reason
        self.reached = reached
        self.retry_after_s = retry_after_s

    def give_up(self, what: str) -> LoadFailed:
        """The final error, when there were enough tries."""
        if self.reached:
            return LoadFailed(f"the download of {what} from {self.host} keeps failing ({self.reason}); run it again")
        return LoadFailed(f"cannot download {what}: {self.host} cannot be reached ({self.reason}); {OFFLINE_REMEDY}")


@dataclass(frozen=True, slots=True)
class Address:
    """A URL without its user name and password, and these as a header's value."""

    url: str
    host: str
    authorization: str | None = None

    @staticmethod
    def parse(url: str, what: str) -> Address:
        """Raises `LoadFailed` unless it is https, or http to this machine."""
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError as exc:
            raise LoadFailed(f"cannot download {what}: its URL is malformed") from exc
        if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
            raise LoadFailed(f"cannot download {what}: only https URLs are used, and http on this machine")
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
        path = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        return Address(urlunsplit((parts.scheme, netloc, path, parts.query, "")), host, authorization)

    def join(self, link: str, what: str) -> Address:
        """A link on the page at this address; it keeps the credentials only on the same origin."""
        target = Address.parse(urljoin(self.url, link), what)
        if target.authorization is None and _origin(target.url) == _origin(self.url):
            return Address(target.url, target.host, self.authorization)
        return target


@dataclass(frozen=True, slots=True)
class Response:
    """What the host answers. Reading from it raises `Interrupted` when the connection breaks."""

    status: int
    url: str
    host: str
    _response: http.client.HTTPResponse

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "").strip()

    @property
    def length(self) -> int | None:
        text = self.header("Content-Length")
        return int(text) if text.isascii() and text.isdigit() else None

    def read(self, num_bytes: int) -> bytes:
        try:
            return self._response.read(num_bytes)
        except (http.client.HTTPException, OSError) as exc:
            raise Interrupted(self.host, _words(exc), reached=True) from exc


@contextmanager
def opened(address: Address, what: str, *, headers: Mapping[str, str], timeout_s: float) -> Iterator[Response]:
    """The answer: 2xx, or 416 for the caller to judge. Raises `Interrupted`, `LoadFailed` or `ModelNotFound`."""
    request = urllib.request.Request(address.url, headers={"User-Agent": USER_AGENT, **headers})  # noqa: S310 -- an Address is https, or this machine
    if address.authorization is not None:
        request.add_unredirected_header("Authorization", address.authorization)
    with _open(_opener(address, what), request, timeout_s, address.host, what) as response:
        yield Response(response.status, response.url, address.host, response)


def _open(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float, host: str, what: str
) -> http.client.HTTPResponse:
    try:
        response = opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as exc:
        with exc:
            raise _translate_status(exc, host, what) from exc
    except urllib.error.URLError as exc:
        raise translate_reason(exc.reason, host, what) from exc
    except ValueError as exc:  # InvalidURL, or a name that cannot be encoded
        raise LoadFailed(f"cannot download {what}: its URL is malformed") from exc
    except (http.client.HTTPException, OSError) as exc:
        raise translate_reason(exc, host, what) from exc
    assert isinstance(response, http.client.HTTPResponse)  # the opener speaks http and https only
    return response


def _opener(address: Address, what: str) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    proxies = urllib.request.ProxyHandler({} if is_loopback(address.host) else None)
    for handler in (
        proxies,
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=_certificates()),
        urllib.request.HTTPDefaultErrorHandler(),
        _StatusProcessor(),
        urllib.request.UnknownHandler(),
        _CarefulRedirects(address, what),
    ):
        opener.add_handler(handler)
    return opener


def _certificates() -> ssl.SSLContext:
    """The system's, which heeds SSL_CERT_FILE and SSL_CERT_DIR, and those that pip was told of."""
    context = ssl.create_default_context()
    if pip_cert := os.environ.get("PIP_CERT"):
        try:
            if os.path.isdir(pip_cert):
                context.load_verify_locations(capath=pip_cert)
            else:
                context.load_verify_locations(cafile=pip_cert)
        except OSError as exc:  # ssl.SSLError is one
            raise LoadFailed("PIP_CERT names no readable certificate file; correct it or unset it") from exc
    return context


class _StatusProcessor(urllib.request.HTTPErrorProcessor):
    """All but 2xx and 416 become exceptions (or redirects)."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return response
        processed = super().http_response(request, response)
        assert isinstance(processed, http.client.HTTPResponse)  # or it raised, or a redirect led to one
        return processed

    https_response = http_response


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """Follows to allowed places only; credentials stay on the origin that they were given for."""

    def __init__(self, address: Address, what: str) -> None:
        self._address = address
        self._what = what

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: object,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = Address.parse(newurl, self._what)
        if req.type == "https" and not target.url.startswith("https:"):
            raise LoadFailed(f"cannot download {self._what}: {self._address.host} redirects from https to http")
        following = super().redirect_request(req, fp, code, msg, headers, target.url)  # type: ignore[arg-type]  # fp is passed on as it came
        if following is not None and self._address.authorization and _origin(target.url) == _origin(self._address.url):
            following.add_unredirected_header("Authorization", self._address.authorization)
        return following


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _translate_status(exc: urllib.error.HTTPError, host: str, what: str) -> DrivetrainError | Interrupted:
    if exc.code in _RETRY_STATUS:
        return Interrupted(host, f"HTTP {exc.code}", reached=True, retry_after_s=_retry_after(exc.headers))
    if exc.code in (404, 410):
        return ModelNotFound(f"{what} is not at {host} (HTTP {exc.code})")
    if exc.code in (401, 403, 407):
        return LoadFailed(
            f"cannot download {what}: {host} refuses access (HTTP {exc.code}); check the credentials in the URL"
        )
    return LoadFailed(f"cannot download {what}: {host} answers HTTP {exc.code}")


def _retry_after(headers: Message) -> float | None:
    value = headers.get("Retry-After", "")
    return min(float(value), _MAX_RETRY_AFTER_S) if value.isascii() and value.isdigit() else None


def translate_reason(reason: str | BaseException, host: str, what: str) -> DrivetrainError | Interrupted:
    """What went wrong before there was an answer."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return LoadFailed(
            f"cannot download {what}: the certificate of {host} is not trusted ({one_line(reason.verify_message)}); "
            "set SSL_CERT_FILE to your organisation's certificates"
        )
    return Interrupted(host, reason if isinstance(reason, str) else _words(reason), reached=False)


def _words(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "it did not answer in time"
    return one_line((isinstance(exc, OSError) and exc.strerror) or str(exc) or type(exc).__name__)
