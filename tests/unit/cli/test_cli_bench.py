"""`drivetrain bench`: what it prints and writes, what it refuses, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_rigs import SLOW_FAKE, Outcome, run_apart, run_here, script_fake, without_settings

SHORT = ("--streams", "1,3", "--rounds", "2", "--max-tokens", "5", "--seed", "1", "--quiet")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    return run_here(capsys, "bench", *arguments)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = bench(capsys, "--help-all")
    assert outcome.code == 0
    assert "examples:\n  drivetrain bench" in outcome.out
    assert "--temperature" not in outcome.out  # answers are greedy


def test_a_table_with_a_line_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = bench(capsys, "fake", *SHORT)
    assert (outcome.code, outcome.err) == (0, "")
    head, one, three, *_ = outcome.out.splitlines()
    assert head.split()[:3] == ["load", "target", "tokens/s"]
    assert one.startswith("1 stream   fake ")
    assert three.startswith("3 streams  fake ")
    assert one.endswith(" 0")
    assert "5 new tokens, greedy; 2 measured rounds after one warm-up round; seed 1." in outcome.out
    assert "Ceilings: not measured (the weights of no target are known here)." in outcome.out


def test_every_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "markdown", "chart")}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    outcome = bench(capsys, "fake", *SHORT, "--against", "fake", *flags)
    assert outcome.code == 0
    assert [line.partition(":")[0] for line in outcome.err.splitlines()] == ["written"] * 3
    found = json.loads(files["json"].read_text())
    assert found["workload"]["seed"] == 1
    assert found["machine"]["cpu"]["count"] >= 1
    assert found["machine"]["versions"]["python"]
    assert found["complete"] is True
    assert [level["level"] for level in found["levels"]] == [
        {"streams": 1, "requests": 1}, {"streams": 3, "requests": 1}
    ]  # fmt: skip
    for level in found["levels"]:
        for side in level["sides"]:
            assert side["answers"] == 2 * level["level"]["streams"]
            assert side["completion_tokens"] == 5 * side["answers"]
            assert len(side["rounds"]) == 2
        assert level["against"]["pairs"] == 2
    assert [target["label"] for target in found["targets"]] == ["fake", "fake again"]
    assert "| 3 streams | fake again |" in files["markdown"].read_text()
    assert ElementTree.fromstring(files["chart"].read_text()).tag.endswith("svg")


def test_an_open_loop(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = ("--rate", "200,400", "--requests", "20", "--max-tokens", "2", "--json", str(path))
    outcome = bench(capsys, "fake", *arguments)
    assert outcome.code == 0
    assert "200 requests/s  fake" in outcome.out
    levels = json.loads(path.read_text())["levels"]
    assert [level["level"] for level in levels] == [{"rate": 200.0, "requests": 20}, {"rate": 400.0, "requests": 20}]
    assert [level["sides"][0]["answers"] for level in levels] == [20, 20]


def test_settings_of_both_sides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    against = "name=other,max_running=1"
    outcome = bench(capsys, "fake", *SHORT, "--max-waiting", "9", "--against", against, "--json", str(path))
    assert outcome.code == 0
    ours, theirs = (target["facts"]["stated"]["settings"] for target in json.loads(path.read_text())["targets"])
    assert ours == {"max_waiting": 9}
    assert theirs == {"max_waiting": 9, "name": "other", "max_running": 1}
    assert "fake other: other" in outcome.out


def test_a_closed_loop_waits_where_an_open_one_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script_fake(monkeypatch, max_concurrency=1, repeat=True)
    closed = bench(capsys, "fake", "--streams", "80", "--rounds", "1", "--max-tokens", "1", "-q")
    assert closed.code == 0
    assert "requests failed" not in closed.out
    assert "80 streams, fake: it runs 1 requests at once (the others wait)" in closed.out
    stated = bench(capsys, "fake", "--streams", "80", "--rounds", "1", "--max-tokens", "9", "--max-waiting", "3", "-q")
    assert stated.code == 0
    assert "of 80 requests failed: overloaded: " in stated.out


def test_a_side_that_always_fails_ends_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script_fake(monkeypatch, fault=ValueError("it broke"), fault_at_step=3, repeat=True)
    outcome = bench(capsys, "fake", *SHORT)
    assert outcome.code == 1
    assert not outcome.out
    assert "fake answered no request of the first round: engine_error" in outcome.error


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = bench(capsys, "fake", "--explain", "--max-waiting", "7", "--against", "http://127.0.0.1:1/v1")
    assert outcome.code == 0
    assert re.search(r"max_waiting +7 +\(flag or keyword\)", outcome.out)
    assert "http://127.0.0.1:1/v1" in outcome.out


def test_http_is_a_process_of_its_own() -> None:
    outcome = run_apart("bench", "fake", *SHORT, "--http", "--name", "org/some name", "--against", "max_running=1")
    assert (outcome.code, outcome.err) == (0, "")
    assert "fake: org/some name (drivetrain serve; fake none none; name=org/some name)." in outcome.out
    assert "fake max_running=1" in outcome.out
    assert "failed:" not in outcome.out


def test_http_that_does_not_start(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("nonsense_setting = 1")
    outcome = bench(capsys, "fake", *SHORT, "--http", "--config", str(tmp_path / "config.toml"))
    assert outcome.code == 2  # refused here already
    assert "nonsense_setting" in outcome.error


# Servers at a URL


class Server(BaseHTTPRequestHandler):
    """Two tokens an answer, for the key `right`; refuses `ignore_eos` where `strict`."""

    strict = False
    seen: list[Any]

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "m"}]}) if self._known() else self._answer(401, {"error": "no"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(body)
        if not self._known():
            self._answer(401, {"error": {"message": f"Incorrect key {self.headers['authorization']}"}})
        elif self.strict and "ignore_eos" in body:
            self._answer(400, {"error": {"message": "Unrecognized request argument: ignore_eos"}})
        else:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for i in range(min(2, body["max_tokens"])):
                self._event({"choices": [{"delta": {"content": f"{i} "}}]})
            usage = {"prompt_tokens": 9, "completion_tokens": min(2, body["max_tokens"])}
            self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

    def _known(self) -> bool:
        return self.headers["authorization"] == "Bearer right"

    def _event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        return None


@contextmanager
def at_url(*, strict: bool = False) -> Iterator[tuple[str, list[Any]]]:
    seen: list[Any] = []
    handler = type("Handler", (Server,), {"strict": strict, "seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("variable", ["DRIVETRAIN_BENCH_API_KEY", "OPENAI_API_KEY"])
def test_a_url(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    monkeypatch.setenv(variable, "right")
    with at_url() as (url, seen):
        outcome = bench(capsys, url, *SHORT, "--body", '{"top_k": 1}')
    assert (outcome.code, outcome.err) == (0, "")
    assert "3 streams, 127.0.0.1" in outcome.out
    assert "answers had 2 tokens instead of 5" in outcome.out
    assert "right" not in outcome.out
    assert all(body["model"] == "m" and body["top_k"] == 1 for body in seen)
    prompts = [body["messages"][0]["content"] for body in seen]
    assert len(set(prompts)) == len(prompts) == 2 + 3 * (1 + 3)


def test_a_field_that_a_server_refuses(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_BENCH_API_KEY", "right")
    with at_url(strict=True) as (url, seen):
        refused = bench(capsys, url, *SHORT)
        taken = bench(capsys, url, *SHORT, "--omit", "ignore_eos")
    assert refused.code == 1
    assert "http 400: Unrecognized request argument: ignore_eos; leave ignore_eos out with --omit" in refused.error
    assert taken.code == 0
    assert "ignore_eos" not in seen[-1]


@pytest.mark.parametrize("named", [(), ("--model", "m")])
def test_a_wrong_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DRIVETRAIN_BENCH_API_KEY", "secret-1")
    with at_url() as (url, _):
        outcome = bench(capsys, url, *SHORT, *named)
    assert outcome.code == 1
    assert "401" in outcome.error
    assert "DRIVETRAIN_BENCH_API_KEY" in outcome.error
    assert "secret-1" not in outcome.err


def test_the_second_url_has_a_key_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's key goes to nobody else."""
    monkeypatch.setenv("DRIVETRAIN_BENCH_API_KEY", "right")
    with at_url() as (one, _), at_url() as (other, _):
        without = bench(capsys, one, *SHORT, "--against", other)
        monkeypatch.setenv("DRIVETRAIN_BENCH_AGAINST_API_KEY", "right")
        found = bench(capsys, one, *SHORT, "--against", other)
    assert (without.code, found.code) == (1, 0)
    assert "answers 401" in without.error
    assert "Ratios: 127.0.0.1:" in found.out


def test_a_model_against_a_url(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_BENCH_API_KEY", "right")
    with at_url() as (url, _):
        outcome = bench(capsys, "fake", *SHORT, "--max-waiting", "5", "--against", url, "--against-model", "m")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Ratios: fake over 127.0.0.1:" in outcome.out


def test_the_same_url_twice_shares_no_prompt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVETRAIN_BENCH_API_KEY", "right")
    monkeypatch.setenv("DRIVETRAIN_BENCH_AGAINST_API_KEY", "right")
    with at_url() as (url, seen):
        assert bench(capsys, url, *SHORT, "--against", url).code == 0
    prompts = [body["messages"][0]["content"] for body in seen[4:]]  # behind those that tell the length
    assert len(set(prompts)) == len(prompts)


def test_a_server_that_hangs_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        outcome = bench(capsys, url, "--model", "m", *SHORT, "--timeout-s", "0.2")
    assert outcome.code == 1
    assert "timeout: no complete answer within 0.2 s" in outcome.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fake", "--streams", "0"], "--streams is '0'"),
        (["fake", "--streams", "1,-4"], "--streams is '1,-4'"),
        (["fake", "--streams", "9999999999"], "from 1 to 4096"),
        (["fake", "--streams", "2.5"], "'2.5' is not a whole number"),
        (["fake", "--streams", ","], "--streams is ','"),
        (["fake", "--rate", "nan"], "--rate is 'nan'"),
        (["fake", "--rate", "inf"], "--rate is 'inf'"),
        (["fake", "--rate", "1,-1"], "--rate is '1,-1'"),
        (["fake", "--rate", "fast"], "'fast' is not a number"),
        (["fake", "--rate", "9999", "--duration", "9999"], "more than 100000 requests"),
        (["fake", "--rate", "1", "--streams", "1"], "cannot be combined"),
        (["fake", "--rate", "1", "--duration", "nan"], "--duration is nan"),
        (["fake", "--rate", "1", "--duration", "5", "--requests", "5"], "cannot be combined"),
        (["fake", "--duration", "5"], "for an open loop"),
        (["fake", "--rounds", "0"], "--rounds is 0"),
        (["fake", "--max-tokens", "0"], "--max-tokens is 0"),
        (["fake", "--prompt-tokens", "-1"], "--prompt-tokens is -1"),
        (["fake", "--prompt-tokens", "1" * 400], "an integer of more than 30 digits"),
        (["fake", "--shared-prefix", "32"], "must be less than --prompt-tokens"),
        (["fake", "--timeout-s", "nan"], "--timeout-s is nan"),
        (["fake", "--seed", "-1"], "--seed is -1"),
        (["fake", "--temperature", "1"], "unknown option --temperature"),
        (["fake", "--json", "/no/where/x.json"], "cannot be written"),
        (["fake", "--chart", "/"], "cannot be written"),
        (["fake", "--engine", "nothing"], "engine is 'nothing'"),
        (["fake", "--against", "nothing"], "engine is 'nothing'"),
        (["fake", "--against", "model = fake, max_waitin = 1"], "did you mean max_waiting?"),
        (["fake", "--against", "max_waitin=1"], "did you mean max_waiting?"),
        (["fake", "--against", "max_waiting=many"], "'many'"),
        (["fake", "--against", "name=x,slots"], "'slots'"),
        (["fake", "--against", "engine=fake,slots=2"], "has no setting slots"),
        (["fake", "--against-model", "m"], "needs --against URL"),
        (["fake", "--against", "fake", "--against-model", "m"], "model=NAME"),
        (["fake", "--model", "m"], "--model is for a URL"),
        (["fake", "--omit", "ignore_eos"], "are for servers"),
        (["http://"], "is not a URL"),
        (["http://u:secret@127.0.0.1/v1"], "must not hold a name or a password"),
        (["gopher://127.0.0.1"], "is not a URL"),
        (["http://127.0.0.1:1/v1", "--slots", "2"], "--slots is for a model"),
        (["http://127.0.0.1:1/v1", "--http"], "--http is for a model"),
        (["http://127.0.0.1:1/v1", "--body", "[1]"], "--body: '[1]' is not a JSON object"),
        (["http://127.0.0.1:1/v1", "--body", "[" * 100_000], "is not JSON"),
        (["fake", "--body", "{}"], "are for servers"),
        (["http://127.0.0.1:1/v1", "--omit", "stream"], "stream cannot be left out"),
        (["http://127.0.0.1:1/v1", "--omit", "ignore_eos,steam"], "no field 'steam' to leave out; choose from ignore_"),
        (["http://127.0.0.1:1/v1", "--against", "fake"], "needs a model here"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    outcome = bench(capsys, *arguments)
    assert outcome.code == 2
    assert not outcome.out
    assert words in outcome.error
    assert "secret" not in outcome.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "https://127.0.0.1:1/v1"])
@pytest.mark.parametrize("named", [(), ("--model", "m")])
def test_nobody_there(capsys: pytest.CaptureFixture[str], url: str, named: tuple[str, ...]) -> None:
    outcome = bench(capsys, url, *named, "-q")
    assert outcome.code == 1
    assert "Connection refused" in outcome.error


def test_a_key_that_no_header_can_carry(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_BENCH_API_KEY", "a\nb: c")
    outcome = bench(capsys, "http://127.0.0.1:1/v1")
    assert outcome.code == 2
    assert "cannot be sent in a header" in outcome.error


# Interrupts


EACH_STEP = """
from drivetrain.cli.terminal import progress
progress.APPEND_AFTER_S = progress.APPEND_EVERY_S = 0
"""
"""A line for each step, so that a test knows what is done without a clock."""


def next_line(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    while words not in (line := process.stderr.readline()):
        assert line


def until_one_was_measured(process: subprocess.Popen[str]) -> None:
    next_line(process, "round 1")  # it begins
    next_line(process, "round 1")


def without_progress(err: str) -> list[str]:
    return [line for line in err.splitlines() if "round 1" not in line and "warming up" not in line]


@contextmanager
def slow_bench(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """An open loop on the slow fake, which is not over before a signal ends it."""
    command = [sys.executable, "-c", EACH_STEP + SLOW_FAKE, "bench", "fake", "--requests", "2000", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupt_prints_what_was_measured(tmp_path: Path, number: signal.Signals, code: int, words: str) -> None:
    path = tmp_path / "out.json"
    with slow_bench("--rate", "20", "--max-tokens", "3", "--json", str(path)) as process:
        until_one_was_measured(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert without_progress(err) == [f"written: {path}", f"drivetrain: {words}", "active 0 loop None"]
    assert out.splitlines()[1].startswith("20 requests/s  fake ")
    assert "The run was not completed: this is what was measured." in out
    assert json.loads(path.read_text())["complete"] is False


def test_an_interrupt_before_anything_was_measured_prints_nothing() -> None:
    with slow_bench("--rate", "1", "--seed", "1", "--max-tokens", "3") as process:  # it warms up for seconds
        next_line(process, "warming up")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, without_progress(err)) == ("", ["drivetrain: interrupted", "active 0 loop None"])


def test_an_interrupt_ends_the_server_that_was_started() -> None:
    arguments = ["bench", "fake", "--http", "--rate", "9", "--max-tokens", "3"]
    command = [
        sys.executable,
        "-c",
        EACH_STEP + "import sys; from drivetrain.cli.main import main; sys.exit(main())",
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until_one_was_measured(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, without_progress(err)) == (130, ["drivetrain: interrupted"])
    assert "9 requests/s  fake" in out
    assert len(children) == 1
    assert not Path(f"/proc/{children[0]}").exists()
