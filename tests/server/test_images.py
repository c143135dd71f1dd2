"""Images over HTTP, on models that see: what is a data URI works, what is not is a 400 and no request leaves for it."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.rigs import TransformersRig
from drivetrain.worker.media.fetch import is_public
from server.serving import OpenWorker, Served, fake, serving
from tiny import pictures

PNG = pictures.png(pictures.circle())
OUR_SIDE = "127.0.0.1"
"""Where the test's host listens. A redirect leads from it to another address of this machine."""

INSIDE = "127.0.0.2"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        to = self.server.redirect_to
        self.send_response(302 if to else 200)
        for name, value in {"Location": to, "Content-Type": "image/png", "Content-Length": str(len(PNG))}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(PNG)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Silent."""


class Host(http.server.ThreadingHTTPServer):
    """Gives everybody an image, and counts who connected and what was asked for."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.connections = 0
        self.asked: list[str] = []
        self.redirect_to = ""

    @property
    def netloc(self) -> str:
        return f"{self.server_address[0]!s}:{self.server_address[1]}"

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who broke off is none of this test's business."""


@contextlib.contextmanager
def listening(address: str) -> Iterator[Host]:
    with Host(address) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    with listening(OUR_SIDE) as ours, listening(INSIDE) as inside:
        yield ours, inside


@pytest.fixture(scope="module", params=["fake", "transformers"])
def shared_seeing(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], hosts: tuple[Host, Host]
) -> Iterator[Served]:
    """Every host of the test is on the list, so nothing but its address can keep a request from leaving."""
    allowed = tuple(f"{name}:{host.server_address[1]}" for host in hosts for name in (*NAMES, OUR_SIDE, INSIDE))
    open_worker: OpenWorker
    if request.param == "fake":
        open_worker = fake({"media_hosts": allowed}, vision=True)
    else:
        rig = TransformersRig(checkpoint, "llava")

        def open_worker() -> contextlib.AbstractAsyncContextManager[Any]:
            return rig.open(media_hosts=allowed)

    with serving(open_worker) as made:
        yield made


NAMES = ("localhost", "[::1]", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]")


@pytest.fixture
def seeing(shared_seeing: Served, hosts: tuple[Host, Host]) -> Iterator[Served]:
    for host in hosts:
        host.connections, host.asked, host.redirect_to = 0, [], ""
    yield shared_seeing
    shared_seeing.settle()


def messages(*urls: Any, text: str = "Describe it.") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def body(served: Served, *urls: Any, **fields: Any) -> dict[str, Any]:
    return {"model": served.model, "messages": messages(*urls), "max_tokens": 4, "temperature": 0, **fields}


def refused(served: Served, hosts: tuple[Host, Host], url: Any) -> dict[str, Any]:
    """Refused at its place, before anybody was called; and the server goes on."""
    error = served.refused("/v1/chat/completions", body(served, url))
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith("messages[0].content[0]")
    assert [host.connections for host in hosts] == [0, 0]
    return error


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_data_uris_work(seeing: Served, hosts: tuple[Host, Host]) -> None:
    without = seeing.client.chat.completions.create(**body(seeing))
    for url in (uri(PNG), uri(pictures.jpeg(pictures.stripes()), "image/jpeg"), uri(PNG, "IMAGE/PNG")):
        answer = seeing.client.chat.completions.create(**body(seeing, url))
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        if seeing.worker.metadata.engine == "transformers":  # The fake counts no tokens for an image.
            assert without.usage is not None
            assert answer.usage.prompt_tokens > without.usage.prompt_tokens
    assert [host.connections for host in hosts] == [0, 0]


def test_a_stream_says_what_the_whole_answer_says(seeing: Served) -> None:
    whole = seeing.client.chat.completions.create(**body(seeing, uri(PNG))).choices[0]
    *chunks, done = seeing.events("/v1/chat/completions", body(seeing, uri(PNG)))
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole.message.content


def test_what_is_no_whole_image_is_refused(seeing: Served, hosts: tuple[Host, Host]) -> None:
    for url in (
        uri(PNG[: len(PNG) // 2]), uri(b"GIF89a"), uri(b""), uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        uri(b"<b>no</b>", "text/html"), "data:image/png;base64,####", "data:image/png;base64,AAAA", "data:,", "data:",
    ):  # fmt: skip
        refused(seeing, hosts, url)


@pytest.mark.parametrize("form", ["image_url", "url"])
def test_a_bare_string_is_refused(seeing: Served, hosts: tuple[Host, Host], form: str) -> None:
    image: Any = uri(PNG) if form == "image_url" else {"url": base64.b64encode(PNG).decode()}
    content = [{"type": "image_url", "image_url": image}]
    error = seeing.refused(
        "/v1/chat/completions", {"model": seeing.model, "messages": [{"role": "user", "content": content}]}
    )
    assert error["param"].startswith("messages")
    assert [host.connections for host in hosts] == [0, 0]


def test_files_of_the_server_are_not_read(seeing: Served, hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """A whole image lies there, so nothing but the form can be what is wrong."""
    file = tmp_path / "circle.png"
    file.write_bytes(PNG)
    for url in (f"file://{file}", f"file://localhost{file}", f"FILE:{file}", str(file), "file:///etc/passwd"):
        error = refused(seeing, hosts, url)
        assert str(file) not in error["message"]


def test_no_other_scheme(seeing: Served, hosts: tuple[Host, Host]) -> None:
    for scheme in ("ftp", "gopher", "ws", "blob:http", "javascript", "jar:http", ""):
        refused(seeing, hosts, f"{scheme}://{hosts[0].netloc}/x.png")


def test_private_addresses_are_not_called(seeing: Served, hosts: tuple[Host, Host]) -> None:
    ours, inside = hosts
    port = ours.server_address[1]
    for netloc in (ours.netloc, inside.netloc, *(f"{name}:{port}" for name in NAMES), f"user@{ours.netloc}"):
        error = refused(seeing, hosts, f"http://{netloc}/x.png")
        assert OUR_SIDE not in error["message"]
    refused(seeing, hosts, "http://169.254.169.254/latest/meta-data")
    refused(seeing, hosts, f"https://{ours.netloc}/x.png")


@pytest.fixture
def reachable(seeing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one address of the test's host counts as public, as a stranger's web server's would."""
    fetcher = seeing.worker.preparer._media._fetcher
    monkeypatch.setattr(fetcher, "_address_allowed", lambda address: address == OUR_SIDE or is_public(address))


@pytest.mark.usefixtures("reachable")
def test_an_allowed_host_is_called_once(seeing: Served, hosts: tuple[Host, Host]) -> None:
    """That the counting counts: here a request leaves."""
    ours, inside = hosts
    answer = seeing.client.chat.completions.create(**body(seeing, f"http://{ours.netloc}/x.png"))
    same = seeing.client.chat.completions.create(**body(seeing, uri(PNG)))
    assert answer.choices[0].message.content == same.choices[0].message.content
    assert (ours.connections, ours.asked, inside.connections) == (1, ["/x.png"], 0)


@pytest.mark.usefixtures("reachable")
def test_a_redirect_to_a_private_address_is_not_followed(seeing: Served, hosts: tuple[Host, Host]) -> None:
    ours, inside = hosts
    leads = (f"http://{inside.netloc}/x.png", "http://169.254.169.254/latest", "file:///etc/passwd", "http://[::1]/")
    for count, ours.redirect_to in enumerate(leads, 1):
        error = seeing.refused("/v1/chat/completions", body(seeing, f"http://{ours.netloc}/x.png"))
        assert error["param"] == "messages[0].content[0]"
        assert INSIDE not in error["message"]
        assert (ours.connections, ours.asked, inside.connections) == (count, ["/x.png"] * count, 0)


def test_a_pixel_bomb_is_judged_by_its_header(seeing: Served, hosts: tuple[Host, Host]) -> None:
    limit = seeing.worker.capabilities.limits.max_image_pixels
    for width, height in ((200_000, 200_000), (limit + 1, 1), (2**31 - 1, 2**31 - 1)):
        bomb = PNG[:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + PNG[24:]
        refused(seeing, hosts, uri(bomb))


def test_too_many(seeing: Served, hosts: tuple[Host, Host]) -> None:
    most = seeing.worker.capabilities.limits.max_images
    for url in (uri(PNG), f"http://{hosts[0].netloc}/x.png"):
        error = seeing.refused("/v1/chat/completions", body(seeing, *[url] * (most + 1)))
        assert (error["param"], error["message"]) == ("messages", f"messages is {most + 1} images; the limit is {most}")
    assert hosts[0].connections == 0


def test_the_card_says_that_it_sees(seeing: Served) -> None:
    status, _, data = seeing.request("GET", f"/v1/models/{seeing.model}")
    assert status == 200
    assert json.loads(data)["capabilities"]["vision"] is True


def test_a_model_without_vision(served: Served, hosts: tuple[Host, Host]) -> None:
    """On every engine: refused as what the model cannot do, whatever the image; nothing is fetched or answered."""
    for url in (uri(PNG), f"http://{hosts[0].netloc}/x.png"):
        error = served.refused("/v1/chat/completions", body(served, url))
        assert (error["param"], error["code"]) == ("messages", "unsupported")
    assert [host.connections for host in hosts] == [0, 0]
