"""`drivetrain doctor URL`: real servers that are well and that are not, and others that are no servers of ours."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_odd_servers import Behaviour, behaving, endless, giving, silent, trickling
from cli_rigs import Outcome, run_apart, run_here, without_settings

import drivetrain
from drivetrain.core.engine import Engine, ModelSpec, WeightsFormat
from drivetrain.core.errors import EngineFailed
from drivetrain.core.status import State
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.engines.remote.address import Key
from drivetrain.scale.fleet.policy import FleetLimits
from drivetrain.tools.doctor import examine
from drivetrain.tools.doctor.page import FetchedPage
from drivetrain.tools.doctor.reading import ServerReader
from drivetrain.worker import worker as worker_module
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from server.fleet_serving import fake_offer, serving_fleet
from server.serving import Served, fake, serving
from server.test_process import started

KEY = "a-secret-of-ours"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., str]:
    def write(*secrets: str) -> str:
        file = tmp_path / "-".join(secrets)
        file.write_text("# ours\n" + "\n".join(secrets) + "\n")
        return str(file)

    return write


def codes(outcome: Outcome) -> set[tuple[str, str]]:
    """Of `--json`: each finding with its level."""
    return {(finding["code"], finding["level"]) for finding in outcome.json["findings"]}


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextlib.contextmanager
def asking(served: Served, number: int = 1, **body: Any) -> Iterator[None]:
    """Requests that run meanwhile, and are left at the end."""
    leave = threading.Event()
    body = {"model": served.model, "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True, **body}
    data = json.dumps(body).encode()

    def ask() -> None:
        with served.raw() as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            leave.wait(60)

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: served.worker.status.running + served.worker.status.waiting >= number)
        yield
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_one_that_is_well(capsys: Capture) -> None:
    with serving(fake({"max_running": 2, "max_waiting": 3})) as served:
        for _ in range(3):
            served.works()
        served.settle()
        outcome = run_here(capsys, "doctor", served.base)
        shown = run_here(capsys, "doctor", f"{served.base}/v1", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0].startswith(f"{served.base}  drivetrain ")
    for words in (
        "ready, answered in", "fake  ready  fake on none", "0 of 2 running, 0 of 3 waiting; last progress",
        "3: 3 finished (3 length); 0 % failed", "(3 requests)", "(3 gaps)", "in prompts (0 % from the prefix cache)",
        "0 preemptions, 0 restarts", "memory cpu", "No findings: all is well.",
    ):  # fmt: skip
        assert words in outcome.out, outcome.out
    assert len(outcome.out.splitlines()) < 24
    assert shown.code == 0
    (model,) = shown.json["models"]
    assert (shown.json["kind"], shown.json["ready"], shown.json["unread"]) == ("drivetrain", True, [])
    assert (shown.json["findings"], shown.json["needs_key"], model["endings"]) == ([], False, {"finished": 3})
    assert model["first_token"]["count"] == 3
    assert 0 < model["first_token"]["median_s"] <= model["first_token"]["p99_s"]


def test_a_process_by_a_process() -> None:
    with started("fake", "--port", "0", "--quiet", environment={"DRIVETRAIN_API_KEY": KEY}) as server:
        server.wait_ready()
        well = run_apart("doctor", server.base, environment={"DRIVETRAIN_API_KEY": KEY})
        locked = run_apart("doctor", server.base, environment={"DRIVETRAIN_API_KEY": ""})
    gone = run_apart("doctor", server.base)
    assert (well.code, well.err) == (0, "")
    assert "No findings" in well.out
    assert locked.code == 2
    assert "The server requires a key." in locked.out
    assert KEY not in well.out + locked.out
    assert (gone.code, gone.out) == (2, "")
    assert gone.error == f"{server.base}/v1 cannot be reached: nobody listens there"


def test_overloaded(capsys: Capture) -> None:
    settings = {"max_running": 1, "max_waiting": 1}
    with serving(fake(settings, repeat=True, step_delay_s=0.02)) as served:
        with asking(served, 2):
            for _ in range(5):
                served.refused("/v1/completions", {"model": "fake", "prompt": "x"}, status=429)
            outcome = run_here(capsys, "doctor", served.base)
            found = run_here(capsys, "doctor", served.base, "--json")
        served.settle()
    assert outcome.code == found.code == 1
    assert "1 of 1 running, 1 of 1 waiting" in outcome.out
    assert "! fake: 100 % of requests were refused as overloaded (5 of 5)." in outcome.out
    assert "(1 at once and 1 in the queue)" in outcome.out
    assert "refused     5 overloaded" in outcome.out
    assert codes(found) == {("overloaded", "act")}


def test_failures(capsys: Capture) -> None:
    with serving(fake(fault=EngineFailed("a wire broke"), fault_at_step=1)) as served:
        served.refused("/v1/completions", {"model": "fake", "prompt": "x"}, status=500)
        few = run_here(capsys, "doctor", served.base, "--json")
        for _ in range(2):
            served.refused("/v1/completions", {"model": "fake", "prompt": "x"}, status=500)
        outcome = run_here(capsys, "doctor", served.base)
    assert (few.code, codes(few)) == (0, set())
    assert outcome.code == 1
    assert "3 engine_error; 100 % failed" in outcome.out
    assert "! fake: 100 % of requests were lost to a failure of the engine (3 of 3)." in outcome.out


def test_a_model_that_fails_and_one_that_is_not_loaded(capsys: Capture, keys: Callable[..., str]) -> None:
    offers = (
        fake_offer("good"),
        fake_offer("bad", script={"load_error": RuntimeError("no wheels")}),
        fake_offer("later"),
    )
    with serving_fleet(*offers, limits=FleetLimits(max_loaded=1), api_keys=(KEY,), admin_keys=("admin",)) as fleet:
        assert fleet.complete("bad")[0] == 503
        fleet.until(lambda: dict(fleet.fleet.member("bad").report(0.0))["failure"] is not None)
        base = f"http://127.0.0.1:{fleet.port}"
        plain = run_here(capsys, "doctor", base, "--api-key-file", keys(KEY, "another"))
        outcome = run_here(
            capsys, "doctor", base, "--api-key-file", keys(KEY), "--admin-key-file", keys("admin"), "--json"
        )
        wrong = run_here(capsys, "doctor", base, "--api-key-file", keys(KEY), "--admin-key-file", keys("nimda"))
    assert (plain.code, outcome.code, wrong.code) == (1, 1, 1)
    assert "! bad: The model could not be loaded." in plain.out
    assert "- /admin/models could not be read: status 401: this API key is not an admin key" in plain.out
    assert "→ pass a key from the server's own admin key file" in plain.out
    assert "later  unloaded\n" in plain.out
    assert "! /admin/models could not be read" in wrong.out
    models = {model["name"]: model for model in outcome.json["models"]}
    assert models["bad"]["state"] == "failed"
    assert "no wheels" in models["bad"]["failure"]
    assert models["bad"]["retry_in_s"] > 0
    assert codes(outcome) >= {("failed", "act")}
    assert "unread" not in {code for code, _ in codes(outcome)}
    assert KEY not in plain.out + outcome.out + wrong.out


@contextlib.asynccontextmanager
async def reviving(worker: EngineWorker) -> AsyncIterator[EngineWorker]:
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def test_an_engine_that_is_started_again(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr("drivetrain.worker.health.revival.FIRST_S", 0.2)
    first, broken = FakeEngine(Script()), threading.Event()
    broken.set()

    def remake() -> Engine:
        return FakeEngine(Script(load_error=RuntimeError("not yet") if broken.is_set() else None))

    def make() -> contextlib.AbstractAsyncContextManager[EngineWorker]:
        spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
        return reviving(EngineWorker(first, spec, Settings(), remake=remake))

    with serving(make) as served:
        served.loop.call_soon_threadsafe(first.die)
        until(lambda: served.worker.state is State.RESTARTING)
        while_down = run_here(capsys, "doctor", served.base)
        broken.clear()
        until(lambda: served.worker.state is State.READY)
        after = run_here(capsys, "doctor", served.base)
    assert (while_down.code, after.code) == (1, 1)
    assert "NOT READY" in while_down.out
    assert "! fake: The engine has failed and is being restarted." in while_down.out
    assert "1 restart\n" in after.out
    assert "! fake: The engine was restarted 1 time." in after.out


def test_an_engine_that_hangs_and_one_that_has_just_begun(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "STILL_S", 0.2)
    monkeypatch.setattr(examine, "LOOK_AGAIN_S", 0.5)
    with serving(fake(repeat=True, hang_at_step=3)) as served:
        with asking(served):
            time.sleep(0.3)
            hangs = run_here(capsys, "doctor", served.base)
        served.settle()
    with serving(fake(repeat=True, step_delay_s=0.01, first_delay_s=0.4)) as served:
        time.sleep(0.3)
        with asking(served):
            begun = run_here(capsys, "doctor", served.base)
        served.settle()
    assert hangs.code == 1
    assert "! fake: 1 request running, and no progress for " in hangs.out
    assert begun.code == 0, begun.out


def test_an_upstream_that_is_gone(capsys: Capture) -> None:
    with contextlib.ExitStack() as stack:
        here, gone = stack.enter_context(serving(fake())), contextlib.ExitStack()
        there = gone.enter_context(serving(fake()))
        served = stack.enter_context(serving(lambda: drivetrain.Worker.open(f"{here.base}/v1,{there.base}/v1")))
        well = run_here(capsys, "doctor", served.base)
        gone.close()
        for _ in range(100):
            served.works()
            if not all(served.worker.status.upstreams):
                break
        outcome = run_here(capsys, "doctor", served.base)
    assert (well.code, outcome.code) == (0, 1)
    assert "2 of 2 up" in well.out
    assert "1 of 2 up" in outcome.out
    assert "! fake: The breaker is open for 1 of 2 upstreams (number 2)." in outcome.out


def test_the_wrong_key_and_none(capsys: Capture, monkeypatch: pytest.MonkeyPatch, keys: Callable[..., str]) -> None:
    with serving(fake(), api_keys=(KEY,)) as served:
        none = run_here(capsys, "doctor", served.base)
        wrong = run_here(capsys, "doctor", served.base, "--api-key-file", keys("not-the-one"))
        shown = run_here(capsys, "doctor", served.base, "--api-key-file", keys("not-the-one"), "--json")
        monkeypatch.setenv("DRIVETRAIN_API_KEY", KEY)
        right = run_here(capsys, "doctor", served.base)
        monkeypatch.delenv("DRIVETRAIN_API_KEY")
        monkeypatch.setenv("MINE", KEY)
        named = run_here(capsys, "doctor", served.base, "--api-key-env", "MINE", "--json")
    assert (none.code, wrong.code, shown.code, right.code, named.code) == (2, 2, 2, 0, 0)
    assert "The server requires a key." in none.out
    assert "--api-key-file FILE, or DRIVETRAIN_API_KEY" in none.out
    assert "The server refuses this key." in wrong.out
    assert "not-the-one" not in wrong.out + shown.out
    assert (shown.json["kind"], codes(shown)) == ("locked", {("locked", "act")})
    assert (named.json["needs_key"], named.json["sent_key"]) == (True, True)
    assert KEY not in right.out + named.out


def test_one_that_listens_to_all_without_a_key(capsys: Capture, keys: Callable[..., str]) -> None:
    with serving(fake(), host="0.0.0.0", insecure_no_key=True) as served:
        url = f"http://0.0.0.0:{served.port}"  # this machine, by another address than its own for itself
        outcome = run_here(capsys, "doctor", url, "--json")
        with_key = run_here(capsys, "doctor", url, "--api-key-file", keys(KEY), "--json")
    assert outcome.code == with_key.code == 1
    assert ("no_key", "act") in codes(outcome)
    assert codes(with_key) >= {("no_key", "act"), ("key_in_clear", "note")}


def test_one_that_is_loading(capsys: Capture) -> None:
    with serving_fleet(fake_offer("slow", load_s=60), early=True) as fleet:
        fleet.until(lambda: fleet.states() == {"slow": "loading"})
        outcome = run_here(capsys, "doctor", f"http://127.0.0.1:{fleet.port}")
    assert outcome.code == 1
    assert "NOT READY" in outcome.out
    assert "! slow: The model is being loaded (25 %)." in outcome.out


PEER = {
    "/health": b"",
    "/v1/models": b'{"object": "list", "data": [{"id": "theirs\\u001b[2J", "object": "model"}]}',
    "/metrics": b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 7\nother_series 4\n",
}


def test_a_server_of_another_kind(capsys: Capture) -> None:
    with behaving(giving(PEER, "server: llama.cpp\r\n")) as url:
        outcome = run_here(capsys, "doctor", url)
        shown = run_here(capsys, "doctor", url, "--json")
    assert outcome.code == shown.code == 2
    assert "an OpenAI API server (llama.cpp), up" in outcome.out
    assert "theirs\\x1b[2J  listed" in outcome.out
    assert "gauges  running 2, waiting 7" in outcome.out
    assert "! This is not a Drivetrain server. It speaks the OpenAI API." in outcome.out
    assert "drivetrain conform URL" in outcome.out
    assert (shown.json["kind"], shown.json["gauges"]) == ("openai", {"running": 2, "waiting": 7})


def test_only_pages_that_tell_more_are_asked(capsys: Capture) -> None:
    """The page of a model that is being loaded would be refused, and counted as a refusal."""
    cards = [{"id": "a/b", "state": "ready"}, {"id": "c", "state": "loading"}, {"id": "d", "alias_of": "a/b"}]
    give, asked = giving({"/v1/models": json.dumps({"data": cards}).encode()}), list[str]()

    def behaviour(connection: socket.socket, path: str) -> None:
        asked.append(path)
        give(connection, path)

    with behaving(behaviour) as url:
        run_here(capsys, "doctor", url)
    others = ["/admin/models", "/health", "/metrics", "/ready", "/status", "/v1/models"]
    assert sorted(asked) == [*others, "/v1/models/a%2Fb"]


def test_nothing_of_the_kind(capsys: Capture) -> None:
    with behaving(giving({"/": b"<h1>It works!</h1>"})) as url:
        outcome = run_here(capsys, "doctor", url)
    assert outcome.code == 2
    assert "! This is not a Drivetrain server.\n" in outcome.out
    assert "check the address" in outcome.out


LONG = b"x" * 65536
CHUNK = b"%x\r\n%b\r\n" % (len(LONG), LONG)


@pytest.mark.parametrize(
    "behaviour",
    [
        silent,
        trickling,
        endless(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", LONG),
        endless(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", CHUNK),
        endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        endless(b"", LONG),
        lambda connection, path: None,
        lambda connection, path: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"),
        lambda connection, path: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"),
    ],
)
def test_servers_that_are_odd_are_told_in_time(capsys: Capture, behaviour: Behaviour) -> None:
    with behaving(behaviour) as url:
        began = time.monotonic()
        outcome = run_here(capsys, "doctor", url, "--timeout", "0.5")
        took_s = time.monotonic() - began
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert "! There is no answer: " in outcome.out
    assert ", up" not in outcome.out
    assert took_s < 20


def test_what_a_server_says_steers_no_terminal_and_shows_no_key(capsys: Capture, keys: Callable[..., str]) -> None:
    evil = f"\x1b]0;owned\x07{KEY}\u202e" + "x" * 5000
    status = {
        "version": evil, "tokens_per_s": "many", "memory": [{"device": evil}], "state": evil,
        "models": {evil: {"state": evil, "running": 10**400, "endings": {evil: 3}, "engine_alive": True}},
    }  # fmt: skip
    cards = {"data": [{"id": evil, "owned_by": "drivetrain"}, {"id": "../../admin", "owned_by": "drivetrain"}]}
    metrics = f'drivetrain_refusals_total{{param="{KEY}",reason="\x1b[31m"}} 3\ndrivetrain_build_info 1\n'
    pages = {
        "/health": b"{}", "/ready": b"{}", "/status": json.dumps(status).encode(),
        "/v1/models": json.dumps(cards).encode(), "/metrics": metrics.encode(), "/admin/models": b"[" * 100_000,
    }  # fmt: skip
    with behaving(giving(pages, f"server: {KEY}\r\n")) as url:
        outcome = run_here(capsys, "doctor", url, "--api-key-file", keys(KEY))
        shown = run_here(capsys, "doctor", url, "--api-key-file", keys(KEY), "--json")
    for out in (outcome.out, shown.out):
        assert KEY not in out
        assert all(line.isprintable() for line in out.splitlines())
        assert max(map(len, out.splitlines())) < 1500
    assert outcome.code in {0, 1}
    assert len(shown.json["models"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://127.0.0.1:1"], "cannot be reached: nobody listens there"),
        (["http://no-such-host.invalid"], "cannot be reached: there is no host with that name"),
        (["127.0.0.1:8000"], "is not a URL"),
        (["http://user:pw@127.0.0.1:1"], "must not hold a name"),
        (["http://127.0.0.1:1", "--timeout", "0"], "--timeout is 0"),
        (["http://127.0.0.1:1", "--timeout", "nan"], "--timeout is nan"),
        (["http://127.0.0.1:1", "--api-key-file", "/no/such/file"], "cannot be read"),
        (["--api-key-file", "/no/such/file"], "a key is for a server"),
    ],
)
def test_asked_wrongly(capsys: Capture, arguments: list[str], words: str) -> None:
    outcome = run_here(capsys, "doctor", *arguments)
    assert outcome.code == 2
    assert words in outcome.error
    assert not outcome.out


def test_a_key_that_no_header_can_carry(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "käy")
    outcome = run_here(capsys, "doctor", "http://127.0.0.1:1")
    assert outcome.code == 2
    assert outcome.error == "the key from DRIVETRAIN_API_KEY contains characters that cannot be sent in a header"


def test_it_needs_no_extra() -> None:
    text = "import sys, drivetrain.cli.doctor.server; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "drivetrain.tools.doctor.examine" in loaded
    assert not loaded & {"starlette", "uvicorn", "pydantic", "prometheus_client", "httpx", "torch", "numpy"}


def test_a_full_backlog_is_no_hang(capsys: Capture) -> None:
    """Nobody accepts, so nobody answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        outcome = run_here(capsys, "doctor", f"http://127.0.0.1:{listener.getsockname()[1]}", "--timeout", "0.3")
    assert outcome.code == 2


def test_a_signal_while_a_page_is_read_ends_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has a task of its own."""
    read = ServerReader.get

    async def get(reader: ServerReader, path: str, *key: Key) -> FetchedPage:
        if path.endswith("/ready"):
            signal.raise_signal(signal.SIGTERM)
        return await read(reader, path, *key)

    monkeypatch.setattr(ServerReader, "get", get)
    with serving(fake()) as served:
        outcome = run_here(capsys, "doctor", served.base)
    assert outcome.code == 143
    assert outcome.err == "drivetrain: terminated\n"
