"""Several models behind one server: what a client sees of them that come and go, and who may make them."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
import time
from typing import Any

import pytest

import drivetrain
from drivetrain.core.engine import Progress
from drivetrain.core.errors import LoadFailed
from drivetrain.engines.fake import FakeEngine
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.scale.fleet.policy import FleetLimits
from drivetrain.server import run
from server.fleet_serving import ServedFleet, fake_offer, serving_fleet

ONE = FleetLimits(max_loaded=1, turn_s=0.05, room_wait_s=20)
FOR_EVER: dict[str, Any] = {"repeat": True, "step_delay_s": 0.005}


async def _broken(report: Progress) -> Opened:
    raise LoadFailed("the file /models/broken.gguf is damaged")


BROKEN = Offer(name="broken", open=_broken)


def stream(served: ServedFleet, model: str) -> http.client.HTTPConnection:
    """An answer that goes on until it is closed; its first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    body = {"model": model, "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200
    assert response.readline().startswith(b"data: ")
    return connection


def test_models_come_and_go_and_one_that_fails_harms_nobody() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b", aliases=("gpt",)), BROKEN, limits=ONE) as served:
        assert [served.said(name, max_tokens=9) for name in ("a", "b", "gpt", "a")] == ["a", "b", "b", "a"]
        status, headers, document = served.complete("broken")
        assert (status, headers["retry-after"]) == (503, "5")
        assert document["error"]["code"] == "not_loaded"
        assert document["error"]["message"] == "broken could not be loaded: the file … is damaged"
        assert served.said("b") == "b"
        assert served.ask("GET", "/ready")[0] == 200
        assert served.complete("nobody")[0] == 404
        assert served.report("broken")["failed_loads"] == 1
        series = served.metrics()
        assert {name: series[f'drivetrain_model_loaded{{model="{name}"}}'] for name in ("a", "b", "broken")} == {
            "a": 0,
            "b": 1,
            "broken": 0,
        }
        assert series['drivetrain_model_loads_total{model="b"}'] == 2
        assert series['drivetrain_model_unloads_total{model="a"}'] == 2
        assert series['drivetrain_model_failed_loads_total{model="broken"}'] == 1
        assert series['drivetrain_model_requests_waiting{model="broken"}'] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x", "stream": True}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [65]}),
    ],
)
def test_every_way_in_loads_a_model(path: str, body: dict[str, Any]) -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b"), limits=ONE) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        connection.request("POST", path, json.dumps({"model": "b", **body}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
        connection.close()
        assert served.states() == {"a": "unloaded", "b": "ready"}
        served.until(lambda: served.report("b")["in_use"] == 0)


def test_a_card_tells_whether_a_model_is_loaded_and_loads_none() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b", aliases=("org/gpt",)), limits=ONE) as served:
        assert served.states() == {"a": "ready", "b": "unloaded", "org/gpt": "unloaded"}
        _, _, loaded = served.ask("GET", "/v1/models/a")
        assert loaded["capabilities"]["engine"] == "fake"
        _, _, unloaded = served.ask("GET", "/v1/models/org/gpt")
        assert (unloaded["id"], unloaded["alias_of"], unloaded["state"]) == ("org/gpt", "b", "unloaded")
        assert "capabilities" not in unloaded
        assert served.states()["b"] == "unloaded"
        _, _, status = served.ask("GET", "/status")
        assert (status["state"], status["models"]["b"]) == ("ready", {"state": "unloaded", "waiting": 0})


def test_a_wait_is_told_and_is_within_the_requests_time() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b", load_s=3.0), limits=ONE) as served:
        began = time.monotonic()
        status, _, document = served.complete("b", timeout_s=0.2)
        assert (status, document["error"]["code"]) == (504, "deadline_exceeded")
        assert time.monotonic() - began < 2.8
        waiting = threading.Thread(target=lambda: served.said("b"))
        waiting.start()
        served.until(lambda: served.ask("GET", "/status")[2]["waiting"] == 1)
        assert served.report("b")["progress"] == {"what": "loading", "share": 0.25}
        waiting.join(20)
        assert served.said("b", timeout_s=5) == "b"
        assert served.complete("a", timeout_s=99999)[2]["error"]["param"] == "timeout_s"


def test_a_client_that_leaves_while_it_waits_leaves_nothing() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b", load_s=0.6), limits=ONE) as served:
        for streamed in (True, False):
            connection = http.client.HTTPConnection("127.0.0.1", served.port)
            connection.request("POST", "/v1/completions", json.dumps({"model": "b", "prompt": "x", "stream": streamed}))
            served.until(lambda: served.report("b")["waiting"] == 1)
            connection.close()
            served.until(lambda: served.report("b")["waiting"] == 0)
        served.until(lambda: served.states()["b"] == "ready")
        assert served.report("b")["in_use"] == 0


def test_one_in_use_stays_until_its_request_ends() -> None:
    with serving_fleet(fake_offer("a", script=FOR_EVER), fake_offer("b"), limits=ONE) as served:
        busy = stream(served, "a")
        said: list[str] = []
        waiting = threading.Thread(target=lambda: said.append(served.said("b")))
        waiting.start()
        served.until(lambda: served.report("b")["waiting"] == 1)
        time.sleep(0.3)
        assert served.states() == {"a": "ready", "b": "unloaded"}
        busy.close()
        waiting.join(20)
        assert said == ["b"]


def test_no_room_in_time() -> None:
    limits = FleetLimits(max_loaded=1, turn_s=0.05, room_wait_s=0.3)
    with serving_fleet(fake_offer("a", script=FOR_EVER), fake_offer("b"), limits=limits) as served:
        busy = stream(served, "a")
        status, headers, document = served.complete("b")
        assert (status, document["error"]["code"]) == (503, "not_ready")
        assert int(headers["retry-after"]) >= 1
        assert served.said("a", max_tokens=2), "nobody waits for its place any more"
        busy.close()


def test_alternating_load_from_many() -> None:
    """Sixteen clients at once on two models with room for one: all are served."""
    with serving_fleet(fake_offer("a"), fake_offer("b"), BROKEN, limits=ONE) as served:
        answers: list[str] = []
        failures: list[int] = []

        def client(number: int) -> None:
            for turn in range(10):
                name = "ab"[(number + turn) % 2]
                answers.append(name + served.said(name, max_tokens=1))
                if number == 0:
                    failures.append(served.complete("broken")[0])

        threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(answers) == ["aa"] * 80 + ["bb"] * 80
        assert set(failures) == {503}
        served.until(lambda: all(served.report(name)["in_use"] == 0 for name in "ab"))


def test_an_engine_that_dies_while_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here starts it again; the server is soon ready without it, and the next request has it loaded."""
    monkeypatch.setattr("drivetrain.worker.worker.WATCH_INTERVAL_S", 0.02)
    engines: list[FakeEngine] = []
    with serving_fleet(fake_offer("a", engines=engines), fake_offer("b")) as served:
        engines[0].die()
        assert served.ask("GET", "/ready")[0] == 503
        served.until(lambda: served.ask("GET", "/ready")[0] == 200)
        served.until(lambda: served.states() == {"a": "failed", "b": "ready"})
        report = served.report("a")
        assert report["loaded_s"] is None
        assert report["failure"]["message"] == "its engine failed and could not be restarted"
        assert served.said("a", max_tokens=9) == "a"
        assert len(engines) == 2
        assert served.states() == {"a": "ready", "b": "ready"}
        assert served.metrics()['drivetrain_model_loads_total{model="a"}'] == 2


def test_administrating() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b"), limits=ONE) as served:
        assert served.admin("pin", "a", 200)["pinned"]
        assert "unpin it first" in served.admin("unload", "a", 409)["error"]["message"]
        assert served.complete("b")[0] == 503, "there is no room beside the pinned one"
        assert not served.admin("unpin", "a", 200)["pinned"]
        assert served.admin("unload", "a", 202)["state"] in {"unloading", "unloaded"}
        served.until(lambda: served.states()["a"] == "unloaded")
        assert served.admin("load", "b", 202)["id"] == "b"
        served.until(lambda: served.states()["b"] == "ready")
        served.admin("load", "nobody", 404)
        status, _, document = served.ask("POST", "/admin/models/load", {"model": "b", "force": True})
        assert "--unknown-fields" not in document["error"]["message"]  # it does not count there
        assert (status, document["error"]["param"]) == (400, "force")


def test_a_busy_model_cannot_be_unloaded() -> None:
    with serving_fleet(fake_offer("a", script=FOR_EVER)) as served:
        busy = stream(served, "a")
        assert served.admin("unload", "a", 409)["error"]["code"] == "conflict"
        busy.close()
        served.until(lambda: served.report("a")["in_use"] == 0)
        served.admin("unload", "a", 202)


@pytest.mark.parametrize(
    ("settings", "statuses"),
    [
        ({}, {"": 200}),
        ({"api_keys": ("one",)}, {"": 401, "one": 200}),
        ({"api_keys": ("one", "two")}, {"": 401, "one": 403, "wrong": 401}),
        ({"api_keys": ("one", "two"), "admin_keys": ("boss",)}, {"": 401, "one": 401, "boss": 200}),
        ({"admin_keys": ("boss",)}, {"": 401, "boss": 200}),
        ({"host": "0.0.0.0", "insecure_no_key": True}, {"": 403}),
    ],
)
def test_who_may_administrate(settings: dict[str, Any], statuses: dict[str, int]) -> None:
    with serving_fleet(fake_offer("a"), **settings) as served:
        for key, status in statuses.items():
            for method, path, body in (
                ("GET", "/admin/models", None),
                ("GET", "/admin/models/", None),
                ("POST", "/admin/models/load", {"model": "a"}),
            ):
                got = served.ask(method, path, body, key=key)[0]
                assert got == (202 if status == 200 and method == "POST" else status), (key, path)


def test_a_key_for_administrators_opens_nothing_else() -> None:
    with serving_fleet(fake_offer("a"), api_keys=("one",), admin_keys=("boss",)) as served:
        assert served.ask("GET", "/v1/models", key="boss")[0] == 401
        assert served.ask("GET", "/v1/models", key="one")[0] == 200


def test_another_drivetrain_in_front_of_a_model_that_is_not_loaded() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b"), BROKEN, limits=ONE) as served:

        async def through(model: str) -> str:
            async with drivetrain.Worker.open(f"http://127.0.0.1:{served.port}/v1#{model}") as worker:
                served.admin("unload", model, 202)
                served.until(lambda: served.states()[model] == "unloaded")
                return (await worker.generate(prompt="x", temperature=0, max_tokens=9)).text

        assert asyncio.run(through("b")) == "b"
        with pytest.raises(LoadFailed, match="503"):
            asyncio.run(through("broken"))


def test_the_end_while_others_are_still_being_loaded_lets_a_stream_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CLOSING_S", 0.1)
    steady = {"repeat": True, "step_delay_s": 0.02}
    with serving_fleet(fake_offer("a", script=steady), fake_offer("b", load_s=60), early=True) as served:
        served.until(lambda: served.states() == {"a": "ready", "b": "loading"})
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        body = {"model": "a", "prompt": "x", "max_tokens": 40, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
    rest = response.read()
    assert b'"finish_reason":"length"' in rest.replace(b": ", b":")
    assert rest.endswith(b"data: [DONE]\n\n")
    connection.close()


def test_requests_that_end_before_their_model_is_loaded_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with serving_fleet(fake_offer("a", load_s=0.5)) as served, caplog.at_level("INFO", logger="drivetrain.requests"):
        served.admin("unload", "a", 202)
        served.until(lambda: served.states() == {"a": "unloaded"})
        assert served.complete("a", timeout_s=0.1)[0] == 504
        assert served.said("a") == "a"
        series = served.metrics()
        assert series['drivetrain_requests_total{ending="deadline_exceeded",model="a"}'] == 1
        assert series['drivetrain_requests_total{ending="finished",model="a"}'] == 1
        assert any(re.fullmatch(r"req-\w{24} a deadline_exceeded without a worker", line) for line in caplog.messages)


def test_the_end_of_the_server_refuses_who_waits() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b", load_s=30), limits=ONE) as served:
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.append(served.complete("b")[0]))
        waiting.start()
        served.until(lambda: served.report("b")["waiting"] == 1)
        asyncio.run_coroutine_threadsafe(served.fleet.drain(0.5), served.loop).result(10)
        waiting.join(10)
        assert found == [503]
        assert served.ask("GET", "/ready")[0] == 503
