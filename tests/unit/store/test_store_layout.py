"""Where things lie, how they appear whole, and who may touch them when."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import LoadFailed
from drivetrain.store import manifest
from drivetrain.store.layout import STALE_AFTER_S, Layout, default_root, disk_errors, is_stale
from drivetrain.store.locks import locked, locked_if_free
from drivetrain.store.manifest import BadManifest, FileRecord, Manifest


def test_root_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_root({}) == Path("/home/someone/.cache/drivetrain")
    assert default_root({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/drivetrain")
    assert default_root({"XDG_CACHE_HOME": "relative"}) == Path("/home/someone/.cache/drivetrain")
    assert default_root({"XDG_CACHE_HOME": "/var/cache", "DRIVETRAIN_HOME": "~/models"}) == Path("/home/someone/models")
    assert default_root({"DRIVETRAIN_HOME": "here"}) == Path.cwd() / "here"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "a\\b", "a\0", "a..b", "~", "-x", "x" * 300])
def test_only_plain_names_become_paths(name: str, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for path in (layout.model, layout.partial, layout.lock, layout.derived_of):
        with pytest.raises(ValueError, match="not a plain folder name"):
            path(name)
    with pytest.raises(ValueError, match="not a plain folder name"):
        layout.derived("digest", name)


def test_publish_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for text in ("first", "second"):
        staged = layout.partial("a") / "content"
        staged.mkdir(parents=True)
        (staged / "file").write_text(text)
        layout.publish(staged, layout.model("a"))
        assert (layout.model("a") / "file").read_text() == text
        assert not staged.exists()
    assert [path.name for path in layout.partial_folders()] == ["a"]


def test_disk_errors_are_one_line_without_paths() -> None:
    for code, words in ((errno.ENOSPC, "the disk is full; free some space"), (errno.EACCES, "Permission denied")):
        with pytest.raises(LoadFailed, match=words) as caught, disk_errors("store tiny"):
            raise OSError(code, os.strerror(code), "/srv/secret")
        assert caught.value.message.startswith("cannot store tiny: ")
        assert "DRIVETRAIN_HOME" in caught.value.message
        assert "/srv" not in caught.value.message


def test_lock_is_exclusive_between_threads_and_says_that_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a.lock"
    waited: list[float] = []
    entered = threading.Event()
    release = threading.Event()

    def pause(delay_s: float) -> None:
        release.set()
        time.sleep(0.01)

    def second() -> None:
        with locked(path, waited.append, pause):
            entered.set()

    thread = threading.Thread(target=second)
    with locked(path):
        thread.start()
        assert release.wait(5)
        assert not entered.is_set()
        with locked_if_free(path) as is_ours:
            assert not is_ours
    assert entered.wait(5)
    thread.join()
    assert waited[0] == 0.0
    assert list(path.parent.iterdir()) == []


def test_lock_counts_exactly_under_contention(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with locked(path, sleep=lambda s: None):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1
    assert not path.exists()


def test_stale_partials_go_and_held_ones_stay(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for name in ("old", "new", "held"):
        layout.partial(name).mkdir(parents=True)
        (layout.partial(name) / "x.part").write_bytes(b"12345")
    for path in (layout.partial("old"), layout.partial("old") / "x.part"):
        os.utime(path, (0, 0))
    assert is_stale(layout.partial("old"), STALE_AFTER_S + 1)
    assert layout.clear_partials(stale_only=True) == 5
    assert [path.name for path in layout.partial_folders()] == ["held", "new"]
    with locked(layout.lock("held")):
        assert layout.clear_partials() == 5
    assert [path.name for path in layout.partial_folders()] == ["held"]


GOOD = Manifest(
    name="tiny",
    reference="tiny",
    source="wheel tiny==1",
    format=WeightsFormat.GGUF,
    files=(FileRecord("tiny.gguf", 3, "a" * 64),),
    pulled_at="2026-01-01T00:00:00+00:00",
)


def test_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    GOOD.write(tmp_path)
    assert manifest.read(tmp_path) == GOOD
    assert GOOD.digest == "a" * 64
    assert GOOD.size_bytes == 3
    assert GOOD.damage(tmp_path) == "tiny.gguf is missing"
    (tmp_path / "tiny.gguf").write_bytes(b"12")
    assert GOOD.damage(tmp_path) == "tiny.gguf has 2 bytes instead of 3"
    (tmp_path / "tiny.gguf").write_bytes(b"123")
    assert GOOD.damage(tmp_path) is None


def test_digest_of_several_files_does_not_depend_on_their_order() -> None:
    files = (FileRecord("a", 1, "a" * 64), FileRecord("b", 1, "b" * 64))

    def digest(*records: FileRecord) -> str:
        return Manifest(
            name="m", reference="m", source="", format=WeightsFormat.SAFETENSORS, files=records, pulled_at=""
        ).digest

    assert digest(*files) == digest(*reversed(files))
    assert digest(*files) != digest(files[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 99'),
        ('"tiny.gguf"', '"../tiny.gguf"'),
        ('"tiny.gguf"', '"/etc/passwd"'),
        ('"size_bytes": 3', '"size_bytes": "3"'),
        ("a" * 64, "../../x"),
        ('"gguf"', '"pickle"'),
        ('"files": [', '"files": [5, '),
        ('"name": "tiny"', '"name": 5'),
        ("{", "["),
    ],
)
def test_bad_manifest(old: str, new: str, tmp_path: Path) -> None:
    GOOD.write(tmp_path)
    path = tmp_path / manifest.FILENAME
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadManifest):
        manifest.read(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(BadManifest):
        manifest.read(tmp_path)
