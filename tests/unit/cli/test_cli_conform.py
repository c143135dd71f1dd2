"""`drivetrain conform`: what it prints, writes and exits with, against a real server on the fake engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.tools.conform import runner
from drivetrain.tools.conform.case import Area
from drivetrain.tools.conform.cases import ALL
from drivetrain.tools.conform.cases.quick import QUICK, quick_of
from server.serving import Served, fake, serving

KEY = "conform-secret"


@pytest.fixture(scope="module")
def good() -> Iterator[Served]:
    with serving(fake()) as made:
        yield made


@pytest.fixture(scope="module")
def lax() -> Iterator[Served]:
    """It ignores what it does not know."""
    with serving(fake(), unknown_fields="warn") as made:
        yield made


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with serving(fake(), api_keys=(KEY,)) as made:
        yield made


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_passes(capsys: pytest.CaptureFixture[str], good: Served) -> None:
    outcome = run_here(capsys, "conform", good.base, "--only", "models,ids", "--only", "chat.shape", "-q")
    assert outcome.code == 0
    assert not outcome.err
    assert f"fake at {good.base}/v1 (engine fake" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines() if line]
    assert ["models", "4", "-", "-", "-"] in rows
    assert ["chat", "1", "-", "-", "-"] in rows
    assert rows[-1] == ["all", "8", "-", "-", "-"]


def test_fails_with_the_exchange(capsys: pytest.CaptureFixture[str], lax: Served, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    outcome = run_here(capsys, "conform", lax.base, "--only", "parameters.unknown,images.png", "-q", *files)
    assert outcome.code == 1
    assert "FAIL parameters.unknown: drivetrain_conform_no_such_field = 1 was accepted" in outcome.out
    assert "> POST /v1/chat/completions {" in outcome.out
    assert "< status 200" in outcome.out
    assert "Not offered:\n    images.png: the server says: " in outcome.out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["counts"] == {"pass": 0, "fail": 1, "not offered": 1, "not run": 0}
    assert found["model"] == "fake"
    assert found["complete"] is True
    (exchange,) = found["cases"][0]["exchanges"]
    assert "drivetrain_conform_no_such_field" in exchange["request"]
    html = (tmp_path / "r.html").read_text()
    assert "drivetrain_conform_no_such_field" in html
    assert outcome.err.splitlines() == [f"written: {tmp_path / 'r.json'}", f"written: {tmp_path / 'r.html'}"]


def test_the_key_is_sent_and_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, locked: Served, tmp_path: Path
) -> None:
    assert "put its key into DRIVETRAIN_API_KEY or OPENAI_API_KEY" in run_here(capsys, "conform", locked.base).error
    for name in ("OPENAI_API_KEY", "DRIVETRAIN_API_KEY"):
        monkeypatch.setenv(name, KEY)
        files = ["--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
        outcome = run_here(capsys, "conform", locked.base, "--only", "auth", *files)
        assert outcome.code == 0, outcome.out
        assert "auth  7     -     -            -" in outcome.out
        written = (tmp_path / "r.json").read_text() + (tmp_path / "r.html").read_text()
        assert KEY not in outcome.out + outcome.err + written


def test_a_quick_run_says_so(capsys: pytest.CaptureFixture[str], good: Served, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--report", str(tmp_path / "r.html")]
    outcome = run_here(capsys, "conform", good.base, "--quick", "-q", *files)
    assert outcome.code == 0, outcome.out
    asked = len(quick_of(ALL))
    said = f"A quick run: {asked} of {len(ALL)} cases; without --quick, all are asked."
    assert outcome.out.splitlines()[-1] == said
    assert said in (tmp_path / "r.html").read_text()
    found = json.loads((tmp_path / "r.json").read_text())
    assert (len(found["cases"]), found["quick_of"], found["complete"]) == (asked, len(ALL), True)


def test_what_does_not_fit_into_the_time_is_not_run(
    capsys: pytest.CaptureFixture[str], good: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.cli.conform.run.QUICK_S", 0.0)
    outcome = run_here(capsys, "conform", good.base, "--quick", "--only", "models", "-q")
    assert outcome.code == 1, "nothing was asked"
    asked = len(quick_of([case for case in ALL if case.area == "models"]))
    assert f"0 of {len(ALL)} cases; its time was over before {asked} more; without" in outcome.out
    assert "models.list: the time of a quick run was over" in outcome.out


def test_quick_cases_are_of_every_area_and_fit_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert [name for name in QUICK if name not in {case.id for case in ALL}] == []
    assert len(set(QUICK)) == len(QUICK)
    assert {case.area for case in quick_of(ALL)} == set(Area)
    assert [case.id for case in quick_of([case for case in ALL if case.area == "ids"])] == ["ids.unique"]
    unlisted = [case for case in ALL if case.area == "ids" and case.id not in QUICK]
    assert quick_of(unlisted) == []
    listed = run_here(capsys, "conform", "--list", "--quick", "--only", "ids").out
    assert [line.split()[0] for line in listed.splitlines()] == ["case", "ids.unique"]
    none = run_here(capsys, "conform", "--list", "--quick", "--only", "ids.header")
    assert none.code == 2
    assert "none of these cases is a quick one: leave out --quick or --only ids.header" in none.error


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "conform", "--list")
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["case", *(case.id for case in ALL)]
    only = run_here(capsys, "conform", "--list", "--only", "ids").out
    assert [line.split()[0] for line in only.splitlines()] == ["case", *(c.id for c in ALL if c.area == "ids")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give the URL"),
        (["localhost:8000"], "is not a URL"),
        (["http://127.0.0.1:1"], "cannot be reached"),
        (["http://127.0.0.1:1", "--only", "stop"], "there is no area or case 'stop'; did you mean stops?"),
        (["http://127.0.0.1:1", "--timeout", "0"], "--timeout is 0"),
        (["http://127.0.0.1:1", "--timeout", "nan"], "--timeout is nan"),
        (["http://127.0.0.1:1", "--json", "/no/such/folder/x"], "cannot be written"),
        (["http://user:pw@127.0.0.1:1"], "must not hold a name"),
    ],
)
def test_asked_wrongly(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    outcome = run_here(capsys, "conform", *arguments)
    assert outcome.code == 2
    assert words in outcome.error
    assert not outcome.out


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], good: Served) -> None:
    outcome = run_here(capsys, "conform", good.base, "--model", "nobody")
    assert outcome.code == 2
    assert "there is no model 'nobody'" in outcome.error
    assert "['fake']" in outcome.error


def test_a_key_that_no_header_can_carry(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "a\nb")
    outcome = run_here(capsys, "conform", "http://127.0.0.1:1")
    assert outcome.code == 2
    assert "characters that cannot be sent in a header" in outcome.error


def test_an_interrupt_tells_what_was_found(tmp_path: Path) -> None:
    with serving(fake(repeat=True, step_delay_s=0.05)) as slow:
        command = [sys.executable, "-m", "drivetrain", "conform", slow.base, "--only", "models,chat,stops"]
        process = subprocess.Popen(
            [*command, "--json", str(tmp_path / "r.json")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                if "checking chat" in line:
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        slow.settle(10)
    assert process.returncode == 130
    assert "The run was interrupted: cases are missing." in out
    assert "interrupted" in err.splitlines()[-1]
    assert "Traceback" not in err
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["complete"] is False
    assert found["counts"]["pass"] >= 4


def test_a_signal_during_a_callback_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop logs what a callback raises, and goes on."""

    async def find_model(*_: object) -> str:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        await asyncio.wait_for(asyncio.Event().wait(), 20)
        raise AssertionError

    monkeypatch.setattr(runner, "find_model", find_model)
    outcome = run_here(capsys, "conform", "http://127.0.0.1:1")
    assert outcome.code == 143
    assert outcome.err == "drivetrain: terminated\n"
