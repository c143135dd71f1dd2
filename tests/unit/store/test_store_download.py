"""One file over HTTP: interrupted anywhere, resumed, checked; and every failure is one clear line."""

from __future__ import annotations

import base64
import hashlib
import random
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from store_loopback import Loopback, Resource, serving

from drivetrain.core.errors import LoadFailed, ModelNotFound
from drivetrain.store import connection
from drivetrain.store.connection import CHUNK_BYTES, MAX_REDIRECTS, DownloadUrl
from drivetrain.store.download import Downloader

BODY = random.Random(1).randbytes(3_000_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with serving() as running:
        running.resources["/f"] = Resource(BODY)
        yield running


class Patience:
    """A downloader's sleep, without the waiting."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []

    def __call__(self, delay_s: float) -> None:
        self.delays_s.append(delay_s)


@pytest.fixture
def patience() -> Patience:
    return Patience()


@pytest.fixture
def downloader(patience: Patience) -> Downloader:
    return Downloader(sleep=patience, timeout_s=5)


def fetch(downloader: Downloader, loopback: Loopback, target: Path, **options: object) -> list[tuple[int, int | None]]:
    seen: list[tuple[int, int | None]] = []
    settings = {"sha256": SHA256, "what": "the file", **options}
    url = DownloadUrl.parse(f"{loopback.url}/f", "the file")
    downloader.fetch(url, target, progress=lambda done, total: seen.append((done, total)), **settings)  # type: ignore[arg-type]  # options are the test's own
    return seen


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_whole_file(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    seen = fetch(downloader, loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert left_in(tmp_path) == ["f"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)
    fetch(downloader, loopback, tmp_path / "f")
    assert loopback.count("/f") == 1  # it was there


def test_broken_connection_is_resumed_by_range(
    downloader: Downloader, patience: Patience, loopback: Loopback, tmp_path: Path
) -> None:
    loopback.resources["/f"].breaks = [1_200_000, 1_100_000]
    fetch(downloader, loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    ranges = [request.headers.get("Range") for request in loopback.requests]
    assert ranges == [None, "bytes=1200000-", "bytes=2300000-"]
    assert loopback.sent_bytes("/f") == len(BODY)  # not a byte twice
    assert patience.delays_s == [0.5, 0.5]  # an attempt that brought much does not count


def test_a_later_call_goes_on(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    loopback.resources["/f"].breaks = [500_000, 0, 0, 0, 0, 0]
    with pytest.raises(LoadFailed, match="keeps failing"):
        fetch(downloader, loopback, tmp_path / "f")
    assert left_in(tmp_path) == ["f.part"]
    fetch(downloader, loopback, tmp_path / "f")
    assert loopback.sent_bytes("/f") == len(BODY)
    assert left_in(tmp_path) == ["f"]


def test_server_that_ignores_ranges(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    loopback.resources["/f"] = Resource(BODY, ranges=False, breaks=[1_500_000])
    fetch(downloader, loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert loopback.sent_bytes("/f") == 1_500_000 + len(BODY)


def test_a_range_that_was_never_asked_for_is_not_refused(
    downloader: Downloader, loopback: Loopback, tmp_path: Path
) -> None:
    loopback.resources["/f"] = Resource(b"no such range", status=416)
    with pytest.raises(LoadFailed, match=r"keeps failing \(HTTP 416\)"):
        fetch(downloader, loopback, tmp_path / "f")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("url", ["https://h/\ud800", "https://\udc80:x@h/f"])
def test_a_url_that_is_not_text_is_malformed(url: str) -> None:
    with pytest.raises(LoadFailed, match="malformed"):
        DownloadUrl.parse(url, "f")


def test_wrong_beginning_is_fetched_again(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    fetch(downloader, loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert [request.headers.get("Range") for request in loopback.requests] == ["bytes=1000-", None]
    assert left_in(tmp_path) == ["f"]


def test_file_that_changed_between_its_pieces_is_fetched_again(loopback: Loopback, tmp_path: Path) -> None:
    loopback.resources["/f"] = Resource(bytes(len(BODY)), breaks=[1_500_000])

    def change(delay_s: float) -> None:
        loopback.resources["/f"].body = BODY

    fetch(Downloader(sleep=change, timeout_s=5), loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert [request.headers.get("Range") for request in loopback.requests] == [None, "bytes=1500000-", None]


def test_wrong_pieces_are_fetched_again_once(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(b"x")
    loopback.resources["/f"].body = bytes(len(BODY))
    loopback.resources["/f"].breaks = [len(BODY), 2_000_000]
    with pytest.raises(LoadFailed, match="wrong sha256"):
        fetch(downloader, loopback, tmp_path / "f")
    assert left_in(tmp_path) == []
    assert loopback.count("/f") == 3


def test_complete_part_needs_no_byte_more(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(BODY)
    fetch(downloader, loopback, tmp_path / "f")
    assert loopback.sent_bytes("/f") == 0
    assert left_in(tmp_path) == ["f"]


def test_part_that_is_too_long(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(BODY + b"more")
    fetch(downloader, loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY


def test_wrong_sha256_leaves_nothing(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    loopback.resources["/f"].body = BODY[:-1] + b"?"
    with pytest.raises(LoadFailed, match="wrong sha256 and was deleted"):
        fetch(downloader, loopback, tmp_path / "f")
    assert left_in(tmp_path) == []
    assert loopback.count("/f") == 1


def test_wrong_file_under_the_final_name_is_replaced(
    downloader: Downloader, loopback: Loopback, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    fetch(downloader, loopback, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY


def test_length_not_announced(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    loopback.resources["/f"] = Resource(BODY, announce_length=False, etag=None)
    seen = fetch(downloader, loopback, tmp_path / "f")
    assert seen[-1] == (len(BODY), None)


def test_busy_server_is_asked_again_as_it_says(
    downloader: Downloader, patience: Patience, loopback: Loopback, tmp_path: Path
) -> None:
    loopback.resources["/f"] = Resource(BODY, statuses=[503, 429], headers={"Retry-After": "7"})
    fetch(downloader, loopback, tmp_path / "f")
    assert patience.delays_s == [7.0, 7.0]


def test_patience_is_bounded(downloader: Downloader, patience: Patience, loopback: Loopback, tmp_path: Path) -> None:
    loopback.resources["/f"].statuses = [500] * 100
    with pytest.raises(LoadFailed, match=r"keeps failing \(HTTP 500\)"):
        fetch(downloader, loopback, tmp_path / "f")
    assert patience.delays_s == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_silent_server_is_given_up(loopback: Loopback, patience: Patience, tmp_path: Path) -> None:
    loopback.resources["/f"].stall_after = 0
    hasty = Downloader(sleep=patience, timeout_s=0.1, max_failures=2)
    with pytest.raises(LoadFailed, match="did not answer in time"):
        fetch(hasty, loopback, tmp_path / "f")


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [(404, ModelNotFound, "is not at 127.0.0.1"), (403, LoadFailed, "refuses access"), (400, LoadFailed, "HTTP 400")],
)
def test_final_statuses(
    status: int,
    error: type[Exception],
    words: str,
    downloader: Downloader,
    patience: Patience,
    loopback: Loopback,
    tmp_path: Path,
) -> None:
    loopback.resources["/f"].statuses = [status]
    with pytest.raises(error, match=words):
        fetch(downloader, loopback, tmp_path / "f")
    assert patience.delays_s == []


def test_nobody_there_is_said_quickly_with_the_remedy(
    downloader: Downloader, patience: Patience, tmp_path: Path
) -> None:
    with serving() as gone:
        pass
    with pytest.raises(LoadFailed, match=r"cannot be reached .*; check the network") as caught:
        fetch(downloader, gone, tmp_path / "f")
    assert "pull on a machine that has one" in caught.value.message
    assert len(patience.delays_s) == 1


@pytest.mark.parametrize("url", ["http://example.org/f", "ftp://127.0.0.1/f", "file:///etc/passwd", "https://", "//x"])
def test_only_https(url: str) -> None:
    with pytest.raises(LoadFailed, match="only https"):
        DownloadUrl.parse(url, "the file")


def test_redirects_are_followed_to_allowed_places_only(
    downloader: Downloader, loopback: Loopback, tmp_path: Path
) -> None:
    loopback.resources["/g"] = loopback.resources["/f"]
    loopback.resources["/f"] = Resource(status=302, headers={"Location": "/g"})
    fetch(downloader, loopback, tmp_path / "f")
    loopback.resources["/f"].headers["Location"] = "http://example.org/g"
    with pytest.raises(LoadFailed, match="only https"):
        fetch(downloader, loopback, tmp_path / "other")
    loopback.resources["/f"].headers["Location"] = "file:///etc/passwd"
    with pytest.raises(LoadFailed, match="only https"):
        fetch(downloader, loopback, tmp_path / "other")
    loopback.resources["/f"].headers["Location"] = "https://[x/"
    with pytest.raises(LoadFailed, match="malformed"):
        fetch(downloader, loopback, tmp_path / "other")


def test_redirects_are_bounded_and_never_lead_from_https_to_http(
    downloader: Downloader, loopback: Loopback, tmp_path: Path
) -> None:
    loopback.resources["/f"] = Resource(status=301, headers={"Location": "/f"})
    with pytest.raises(LoadFailed, match=r"127\.0\.0\.1 redirects too often"):
        fetch(downloader, loopback, tmp_path / "f")
    assert loopback.count("/f") == MAX_REDIRECTS
    with pytest.raises(LoadFailed, match="from https to http"):
        DownloadUrl.parse("https://example.org/a", "the file").join(f"{loopback.url}/f", "the file")


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            "HTTPS://Example.org:8443/a%20b/ü c?x=1&y=ü z#end",
            "https://example.org:8443/a%20b/%C3%BC%20c?x=1&y=%C3%BC%20z",
        ),
        ("https://[2001:db8::1]/a", "https://[2001:db8::1]/a"),
        ("http://u:p@[::1]:80/", "http://[::1]:80/"),
    ],
)
def test_links_as_people_write_them(link: str, text: str) -> None:
    assert DownloadUrl.parse(f" {link}\n", "the file").text == text


def test_proxy_of_the_environment_is_used_but_not_for_this_machine(
    downloader: Downloader, loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy, ThreadPoolExecutor(1) as pool:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://me:secret@127.0.0.1:{proxy.getsockname()[1]}")
        fetch(downloader, loopback, tmp_path / "f")
        asked = pool.submit(_refuse_tunnel, proxy)
        impatient = replace(downloader, max_unreached=1)
        with pytest.raises(
            LoadFailed, match=r"example\.org cannot be reached \(Tunnel connection failed: 407"
        ) as caught:
            impatient.fetch(
                DownloadUrl.parse("https://a:b@example.org/f", "f"), tmp_path / "g", what="f", sha256=SHA256
            )
        head = asked.result(10)
    assert head.startswith(b"CONNECT example.org:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:secret") in head
    assert b"\r\nAuthorization" not in head  # that is for the host behind it
    assert "secret" not in caught.value.message


def _refuse_tunnel(proxy: socket.socket) -> bytes:
    connection, _ = proxy.accept()
    with connection:
        head = connection.recv(65536)
        connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    return head


def test_credentials_stay_on_their_origin(downloader: Downloader, loopback: Loopback, tmp_path: Path) -> None:
    with serving() as other:
        other.resources["/f"] = Resource(BODY)
        loopback.resources["/here"] = Resource(status=302, headers={"Location": "/away"})
        loopback.resources["/away"] = Resource(status=302, headers={"Location": f"{other.url}/f"})
        url = DownloadUrl.parse(loopback.url.replace("//", "//user:pass%20word@") + "/here", "the file")
        assert "user" not in url.text
        downloader.fetch(url, tmp_path / "f", what="the file", sha256=SHA256)
        expected = "Basic " + base64.b64encode(b"user:pass word").decode()
        assert [request.headers.get("Authorization") for request in loopback.requests] == [expected, expected]
        assert [request.headers.get("Authorization") for request in other.requests] == [None]
        assert url.join("/x", "x").authorization == expected
        assert url.join(f"{other.url}/x", "x").authorization is None


def test_too_little_space_is_noticed_before(patience: Patience, loopback: Loopback, tmp_path: Path) -> None:
    small = Downloader(sleep=patience, free_bytes=lambda folder: 3_500_000)
    with pytest.raises(LoadFailed, match=r"4\.0 MB are needed, 3\.5 MB are free"):
        fetch(small, loopback, tmp_path / "f", reserve_bytes=1_000_000)
    assert left_in(tmp_path) == []
    fetch(small, loopback, tmp_path / "f")


def test_interrupt_in_the_progress_callback_keeps_the_part(loopback: Loopback, tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    url = DownloadUrl.parse(f"{loopback.url}/f", "the file")
    with pytest.raises(KeyboardInterrupt):
        Downloader().fetch(url, tmp_path / "f", what="the file", sha256=SHA256, progress=stop)
    assert (tmp_path / "f.part").stat().st_size == CHUNK_BYTES


def test_untrusted_certificate_is_final_and_says_what_to_set() -> None:
    reason = ssl.SSLCertVerificationError(1, "certificate verify failed")
    reason.verify_message = "self-signed certificate"
    error = connection.translate_reason(reason, "example.org", "the file")
    assert isinstance(error, LoadFailed)
    assert "not trusted (self-signed certificate); set SSL_CERT_FILE" in error.message


def test_bad_certificate_setting(monkeypatch: pytest.MonkeyPatch, loopback: Loopback, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "none.pem"))
    url = DownloadUrl.parse(loopback.url.replace("http:", "https:"), "the file")
    with pytest.raises(LoadFailed, match="PIP_CERT") as caught:
        Downloader().read_page(url, what="the file", accept="*/*", max_bytes=1000)
    assert str(tmp_path) not in caught.value.message


def test_page_is_bounded_and_whole(downloader: Downloader, loopback: Loopback) -> None:
    url = DownloadUrl.parse(f"{loopback.url}/f", "the page")
    with pytest.raises(LoadFailed, match="sends more than"):
        downloader.read_page(url, what="the page", accept="*/*", max_bytes=1000)
    loopback.resources["/f"].breaks = [10, 1000]
    page = downloader.read_page(url, what="the page", accept="*/*", max_bytes=len(BODY))
    assert page.body == BODY
