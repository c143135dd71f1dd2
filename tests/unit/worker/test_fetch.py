"""Fetching against a server on the loopback, with the resolver and the judgement of addresses put in by the test."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from drivetrain.core.errors import InvalidRequest
from drivetrain.worker.media import fetch
from drivetrain.worker.media.fetch import MAX_URL_CHARS, Fetcher, is_public

PRIVATE = """
127.0.0.1 127.9.9.9 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1
192.0.0.1 192.0.2.1 198.18.0.1 240.0.0.1 255.255.255.255 224.0.0.1 :: ::1 fe80::1 fe80::1%eth0 fc00::1 fd00::1
fec0::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1
64:ff9b:1::1 2002:7f00:1:: 2002:a00:1:: 2001:0:4136:e378:8000:63bf:80ff:fffe 2001:db8::1 100::1 localhost
0x7f.1 2130706433
"""

Answer = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Host"]))
        self.server.answer(self)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def reply(self, body: bytes = b"image", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content_Type": "image/png", "Content_Length": str(len(body))} | headers).items():
            if value:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    answer: Answer = staticmethod(Handler.reply)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str]] = []
        self.port = int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetcher(server: Server | None = None, *, found: Sequence[str] = ("127.0.0.1",), **options: Any) -> Fetcher:
    port = server.port if server else 80
    options.setdefault("address_allowed", lambda address: address == "127.0.0.1")
    hosts = frozenset({f"images.test:{port}", "images.test", "Bücher.test."})
    return Fetcher(hosts, **{"max_bytes": 1000, "max_seconds": 2.0, "resolve": lambda host, port: found, **options})


def refusal(client: Fetcher, url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        client.fetch(url, "here")
    assert caught.value.param == "here"
    message = caught.value.message
    assert message.startswith("here: ")
    assert len(message) < 300
    assert not any(part in message for part in ("127.0", "0x7f", "::1", "Errno", "10.0.0"))
    return message


def test_an_image_arrives(server: Server) -> None:
    assert fetcher(server).fetch(f"http://images.test:{server.port}/a b/ü?q=1 2#f", "here") == b"image"
    assert server.seen == [("/a%20b/%C3%BC?q=1%202", f"images.test:{server.port}")]


def test_an_answer_without_a_length_or_in_chunks(server: Server) -> None:
    server.answer = lambda handler: handler.reply(Content_Length="")
    assert fetcher(server).fetch(f"http://IMAGES.test.:{server.port}", "here") == b"image"
    server.answer = lambda handler: handler.reply(
        b"3\r\nabc\r\n0\r\n\r\n", Content_Length="", Transfer_Encoding="chunked"
    )
    assert fetcher(server).fetch(f"http://images.test:{server.port}/", "here") == b"abc"


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/",
        "http://images.test.evil.test/",
        "http://evil-images.test/",
        "http://images.test:22/",
        "http://images.test:0/",
        "http://images.test:99999/",
        "http://images.test:-1/",
        "http://images.test:x/",
        "http://user@images.test/",
        "http://user:password@images.test/",
        "http://@images.test/",
        "http://images.test@evil.test/",
        "http://images.test\\@evil.test/",
        "http://evil.test#@images.test/",
        "http://evil.test\\.images.test/",
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::1",
        "http://[]/",
        "http://localhost/",
        "http://localhost./",
        "http:///",
        "http://",
        "http:images.test",
        "file:///etc/passwd",
        "gopher://images.test/",
        "//images.test/",
        "http://images.test/\ud800",
        "http://\ud800.test/",
        "http://images。test。evil/",
        "http://" + "ü" * 100 + "/",
        "http://images.test/" + "a" * MAX_URL_CHARS,
    ],
)
def test_what_is_never_asked_for(url: str) -> None:
    client = fetcher(resolve=lambda host, port: pytest.fail("a name was looked up"))
    refusal(client, url)


@pytest.mark.parametrize("url", ["http://images.test:{}/\r\nX-Evil: 1", "http://images.test:{}/%0d%0aX-Evil:%201"])
def test_lines_cannot_be_smuggled_into_the_request(server: Server, url: str) -> None:
    def answer(handler: Handler) -> None:
        assert "X-Evil" not in handler.headers
        handler.reply()

    server.answer = answer
    assert fetcher(server).fetch(url.format(server.port), "here") == b"image"
    assert "\n" not in server.seen[0][0]


def test_other_scripts_are_asked_for_in_ascii() -> None:
    asked: list[tuple[str, int]] = []

    def found(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["10.0.0.1"]

    client = fetcher(resolve=found)
    assert "public" in refusal(client, "https://BÜCHER.test/")
    assert asked == [("xn--bcher-kva.test", 443)]


@pytest.mark.parametrize(
    "address",
    PRIVATE.split(),
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
    for found in ([address], ["8.8.8.8", address], [address, "8.8.8.8"]):
        assert "public" in refusal(fetcher(found=found, address_allowed=is_public), "http://images.test/")


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


def test_a_name_that_is_not_found() -> None:
    def nothing(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "no such name at 127.0.0.1")

    assert "found" in refusal(fetcher(resolve=nothing), "http://images.test/")
    assert "public" in refusal(fetcher(found=[]), "http://images.test/")


def test_a_redirect_within_the_list_is_followed(server: Server) -> None:
    def answer(handler: Handler) -> None:
        if handler.path == "/b/c":
            handler.reply()
        else:
            handler.reply(b"", 302, Location="../b/c")

    server.answer = answer
    assert fetcher(server).fetch(f"http://images.test:{server.port}/a/", "here") == b"image"


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{}/secret",
        "http://localhost:{}/secret",
        "http://evil.test:{}/secret",
        "//127.0.0.1:{}/secret",
        "http://[::1",
        "file:///etc/passwd",
        "http://user@images.test:{}/secret",
        "ftp://images.test:{}/secret",
        "http://images.test:{}/secret\x00",
    ],
)
def test_a_redirect_elsewhere_is_refused_and_nothing_is_sent(server: Server, target: str) -> None:
    server.answer = lambda handler: handler.reply(b"", 301, Location=target.format(server.port))
    refusal(fetcher(server), f"http://images.test:{server.port}/")
    assert {path for path, _ in server.seen} <= {"/", "/secret%00"}


def test_a_name_that_turns_private_after_a_redirect_is_refused(server: Server) -> None:
    found = iter([["127.0.0.1"], ["10.0.0.1"]])
    server.answer = lambda handler: handler.reply(b"", 307, Location="/secret")
    client = fetcher(server, resolve=lambda host, port: next(found))
    assert "public" in refusal(client, f"http://images.test:{server.port}/")
    assert len(server.seen) == 1


def test_redirects_end(server: Server) -> None:
    server.answer = lambda handler: handler.reply(b"", 308, Location="/")
    assert "too often" in refusal(fetcher(server), f"http://images.test:{server.port}/")
    assert len(server.seen) == fetch.MAX_REDIRECTS + 1


@pytest.mark.parametrize("status", [204, 301, 304, 401, 404, 500])
def test_other_answers_are_no_image(server: Server, status: int) -> None:
    server.answer = lambda handler: handler.reply(b"", status)
    assert str(status) in refusal(fetcher(server), f"http://images.test:{server.port}/")


def test_another_kind_of_content_is_refused(server: Server) -> None:
    server.answer = lambda handler: handler.reply(Content_Type="text/html")
    assert "did not send an image" in refusal(fetcher(server), f"http://images.test:{server.port}/")


@pytest.mark.parametrize("length", ["", "1001", "5"])
def test_too_long_a_body_is_refused(server: Server, length: str) -> None:
    server.answer = lambda handler: handler.reply(b"x" * 1001, Content_Length=length)
    if length == "5":
        assert fetcher(server).fetch(f"http://images.test:{server.port}/", "here") == b"x" * 5
    else:
        assert "more than 1000 bytes" in refusal(fetcher(server), f"http://images.test:{server.port}/")


@pytest.mark.parametrize("part", ["status", "headers", "body", "nothing", "continue"])
def test_a_trickle_ends_at_the_deadline(server: Server, part: str) -> None:
    gone = threading.Event()

    def trickle(handler: Handler) -> None:
        starts = {"headers": b"HTTP/1.1 200 OK\r\nA: ", "body": b"HTTP/1.1 200 OK\r\n\r\n"}
        handler.wfile.write(starts.get(part, b""))
        for _ in range(200):
            drop = {"nothing": b"", "continue": b"HTTP/1.1 100 Continue\r\n\r\n"}.get(part, b"H")
            handler.wfile.write(drop)
            if gone.wait(0.05):
                return

    server.answer = trickle
    began = time.monotonic()
    message = refusal(fetcher(server, max_seconds=0.5), f"http://images.test:{server.port}/")
    gone.set()
    assert time.monotonic() - began < 8
    assert "0.5 seconds" in message or part == "status"


@pytest.mark.parametrize("raw", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000])
def test_what_is_not_http_is_refused(server: Server, raw: bytes) -> None:
    def answer(handler: Handler) -> None:
        handler.wfile.write(raw)

    server.answer = answer
    assert "closed the connection early" in refusal(fetcher(server), f"http://images.test:{server.port}/")


def test_a_closed_port_is_refused_and_the_next_address_tried(server: Server) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    client = Fetcher(
        frozenset({f"images.test:{port}"}),
        max_bytes=10,
        resolve=lambda host, port: ["127.0.0.1"],
        address_allowed=lambda address: True,
    )
    assert "reached" in refusal(client, f"http://images.test:{port}/")
    both = fetcher(server, found=["127.0.0.2", "127.0.0.1"], address_allowed=lambda address: True)
    assert both.fetch(f"http://images.test:{server.port}/", "here") == b"image"


def test_https_names_the_host_and_checks_it(server: Server) -> None:
    asked: list[str | None] = []

    class Context(ssl.SSLContext):
        def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
            asked.append(kwargs.get("server_hostname"))
            return super().wrap_socket(sock, *args, **kwargs)

    client = fetcher(server, tls=lambda: Context(ssl.PROTOCOL_TLS_CLIENT))
    assert "reached" in refusal(client, f"https://images.test:{server.port}/")
    assert asked == ["images.test"]
    plain = ssl.create_default_context()
    assert plain.check_hostname
    assert plain.verify_mode is ssl.CERT_REQUIRED
