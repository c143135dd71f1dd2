"""What a MODEL on the command line means, and that nothing hostile gets further than one clean error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.errors import ModelNotFound
from drivetrain.store.references import HubId, LocalPath, RemoteUrl, ShortName, folder_name, parse


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_short_name_wins_over_a_folder_of_that_name() -> None:
    Path("smollm2-135m").mkdir()
    assert parse("smollm2-135m") == ShortName("smollm2-135m")
    assert parse("SmolLM2-135M:q4_1") == ShortName("smollm2-135m:Q4_1")
    assert isinstance(parse("./smollm2-135m"), LocalPath)


def test_a_familys_name_means_its_usual_size() -> None:
    assert parse("llama3.2") == parse("Llama3.2") == ShortName("llama3.2-3b")
    Path("llama3.2").mkdir()
    assert isinstance(parse("llama3.2"), LocalPath), "a folder of the name comes first"


@pytest.mark.parametrize("text", ["models/tiny", "models/tiny/", "./models/tiny", "models/tiny///", "~/models/tiny"])
def test_existing_folder(text: str, tmp_path: Path) -> None:
    Path("models/tiny").mkdir(parents=True)
    reference = parse(text)
    assert reference == LocalPath(text, (tmp_path / "models/tiny").resolve())
    assert reference.name == "tiny"


def test_existing_folder_wins_over_a_hub_id() -> None:
    assert isinstance(parse("org/name"), HubId)
    Path("org/name").mkdir(parents=True)
    assert isinstance(parse("org/name"), LocalPath)


def test_links_are_resolved_but_a_file_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.gguf").symlink_to(tmp_path / "blob")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert parse("model.gguf") == LocalPath("model.gguf", tmp_path.resolve() / "model.gguf")
    assert parse("./link") == LocalPath("./link", tmp_path.resolve() / "folder")
    assert parse("model.gguf").name == "model"


@pytest.mark.parametrize(
    "text", ["./nothing", "../nothing", "/no/such/folder", "~/nothing", "weights.gguf", "a/b.GGUF"]
)
def test_missing_path_names_only_what_was_typed(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such folder or file") as caught:
        parse(text)
    assert repr(text) in caught.value.message
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", HubId("HuggingFaceTB/SmolLM2-135M-Instruct")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubId("org/name", "refs/pr/1")),
        ("bartowski/some.model_x-GGUF:Q4_K_M", HubId("bartowski/some.model_x-GGUF", None, "Q4_K_M")),
        ("org/name@main:Q8_0", HubId("org/name", "main", "Q8_0")),
    ],
)
def test_hub_ids(text: str, expected: HubId) -> None:
    assert parse(text) == expected
    assert expected.name == text


def test_each_hub_id_has_a_folder_of_its_own() -> None:
    texts = ["a/b", "a/b-c", "a-b/c", "a/b@c", "a/b@c/d", "a/b@c-d", "a/b:c", "a/b@c:d", "a/b@c--d"]
    folders = {folder_name(reference) for text in texts if isinstance(reference := parse(text), HubId)}
    assert len(folders) == len(texts)
    assert not any("/" in folder for folder in folders)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://example.org", "HTTPS://example.org/v1"])
def test_urls(url: str) -> None:
    assert parse(url) == RemoteUrl(url)


@pytest.mark.parametrize(
    "url", ["ftp://example.org/x", "file:///etc/passwd", "http://", "http://[::1", "http://a:99999/", "https://a b/"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ModelNotFound, match="URL"):
        parse(url)


def test_a_key_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ModelNotFound, match="must not hold") as caught:
        parse("https://user:secret@example.org/v1")
    assert "secret" not in caught.value.message


def test_unknown_name_has_close_matches_or_the_possible_forms() -> None:
    with pytest.raises(ModelNotFound, match="did you mean smollm2-135m"):
        parse("smollm2-135")
    with pytest.raises(ModelNotFound, match=r"did you mean llama3\.2-3b or llama3\.2-1b"):
        parse("llama3.2:3b")
    with pytest.raises(
        ModelNotFound, match=r"drivetrain list --known\), a local folder or \.gguf file, a Hugging Face id"
    ):
        parse("entirely-else")


HOSTILE = [
    "", " ", "\t\n", "\0", "smollm2-135m\0", "./x\0y", "x" * 10_000, "x/" * 5_000, "./" + "y" * 300, "CON\x1b[31m",
    "a/../b", "../a/b/..", "org/..", "../../etc/shadow-none", "org/na..me", "org/name@../x", "org/name:..", "a/b/c",
    "org/name@", "org//name", "org/name.git", "org/na--me", "-org/name", "org/name:", "@", ":", "org/naïve",
    "org/name\n", "\ud800", "org/\udcff", "~no-such-user/x", " smollm2-135m", "smollm2-135m ",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_one_clean_short_line(text: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse(text)
    message = caught.value.message
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 400
    message.encode()


@given(st.text(max_size=60))
def test_any_text_gives_a_reference_or_the_one_error(text: str) -> None:
    try:
        reference = parse(text)
    except ModelNotFound:
        return
    if isinstance(reference, HubId):
        assert os.sep not in folder_name(reference)
        assert ".." not in folder_name(reference)
