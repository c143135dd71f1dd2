"""`drivetrain replay` with the fake: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_rigs import run_here, script_fake, without_settings

from drivetrain.core.sealing import document, opened, read, sealed
from drivetrain.worker.settings import RECEIPT_KEY_VARIABLE

ASK = ("generate", "fake", "--message", "hi", "--max-tokens", "9")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")
    monkeypatch.delenv(RECEIPT_KEY_VARIABLE, raising=False)


@pytest.fixture
def folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    """Three receipts of the fake."""
    made = tmp_path / "receipts"
    made.mkdir()
    for name, more in (("a", ("--temperature", "0")), ("b", ("--seed", "3", "--n", "2")), ("c", ("--choice", "yes"))):
        assert run_here(capsys, *ASK, *more, "--receipt", str(made / f"{name}.json")).code == 0
    return made


def test_all_come_again(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    file, html = tmp_path / "replay.json", tmp_path / "replay.html"
    done = run_here(capsys, "replay", str(folder), "--json", str(file), "--report", str(html))
    assert done.code == 0, done
    assert "of 3 receipts: 3 identical" in done.out
    assert "identical: 3" in html.read_text()
    report = json.loads(file.read_text())
    assert report["complete"]
    assert report["counts"]["identical"] == 3
    (group,) = report["groups"]
    assert group["replayed_on"]["engine"] == "fake"
    assert [Path(one["where"]).name for one in group["receipts"]] == ["a.json", "b.json", "c.json"]
    assert group["receipts"][0]["choices"][0]["logprobs"]


def test_an_engine_that_says_something_else(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_fake(monkeypatch, text="The quiet brown fox")
    html = folder / "replay.html"
    done = run_here(capsys, "replay", str(folder / "a.json"), "--report", str(html))
    assert done.code == 1
    assert "recorded: what it rated likeliest there" in html.read_text()
    assert "DIFFERENT at token 7: " in done.out
    assert "recorded  'c'#99" in done.out
    assert "again     'e'#101" in done.out


def test_a_changed_one_is_refused_and_the_others_are_replayed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    file = folder / "b.json"
    file.write_text(file.read_text().replace('"created": 1', '"created": 2', 1))
    done = run_here(capsys, "replay", str(folder))
    assert done.code == 2
    assert f"INVALID {file}: the receipt is not valid: its digest is not that of its contents" in done.out
    assert "of 3 receipts: 2 identical, 1 invalid" in done.out
    done = run_here(capsys, "replay", str(folder), "--verify")
    assert done.code == 2
    assert "of 3 receipts 2 are valid" in done.out


def test_a_model_that_is_not_here_is_not_fetched(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    receipt, _ = opened(read((folder / "a.json").read_text()))
    from dataclasses import replace

    for model, words in (("org/nobody-has-it", "is not pulled yet"), ("http://127.0.0.1:1/v1", "give it with --url")):
        other = sealed(replace(receipt, model=model, engine="native"), None)
        (folder / "a.json").write_text(json.dumps(document(other)))
        done = run_here(capsys, "replay", str(folder / "a.json"))
        assert done.code == 2
        assert "REFUSED" in done.out
        assert words in done.out


def test_with_a_key_only_what_it_signed(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("a key that nobody knows")
    signed = tmp_path / "signed.json"
    assert run_here(capsys, *ASK, "--receipt", str(signed), "--receipt-key-file", str(key)).code == 0
    done = run_here(capsys, "replay", str(signed), "--verify", "--receipt-key-file", str(key))
    assert done.code == 0
    assert "valid" in done.out
    assert "a key that nobody knows" not in done.out
    done = run_here(capsys, "replay", str(folder), "--receipt-key-file", str(key))
    assert done.code == 2
    assert "it is not signed, and a key is set" in done.out
    assert "no key to check it with" in run_here(capsys, "replay", str(signed), "--verify").out
    monkeypatch.setenv(RECEIPT_KEY_VARIABLE, "another key that nobody knows")
    assert "its signature is not by this key" in run_here(capsys, "replay", str(signed)).out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tolerance", "-1"), "--tolerance"), (("--top", "0"), "--top"), (("--verify", "--url", "x"), "--verify"),
        (("--url", "nothing"), "--url must be a URL"), (("--json", "/no/such/folder/x"), "cannot be written"),
        (("--engine", "no-such"), "engine"),
    ],
)  # fmt: skip
def test_usage_errors(capsys: pytest.CaptureFixture[str], folder: Path, more: tuple[str, ...], words: str) -> None:
    done = run_here(capsys, "replay", str(folder), *more)
    assert done.code == 2
    assert words in done.err


def test_no_receipts_are_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_here(capsys, "replay", str(tmp_path)).code == 2
    assert run_here(capsys, "replay", str(tmp_path / "missing.json")).code == 2
