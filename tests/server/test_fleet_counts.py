"""What `/metrics` counts of models that come and go: never less than before, and in the end what the clients saw."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from typing import Any

from drivetrain.core.engine import Progress
from drivetrain.core.errors import LoadFailed
from drivetrain.core.stats import ENDINGS
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.scale.fleet.policy import FleetLimits
from server.fleet_serving import ServedFleet, fake_offer, serving_fleet

ONE = FleetLimits(max_loaded=1, turn_s=0.05, room_wait_s=20)
COUNTED = ("_total", "_bucket", "_count", "_sum")
BOTH: dict[str, Any] = {"limits": ONE, "metrics_compat": "vllm"}


async def _broken(report: Progress) -> Opened:
    raise LoadFailed("it is damaged")


def counters(served: ServedFleet) -> dict[str, float]:
    """All that must never fall."""
    series = served.metrics()
    return {key: n for key, n in series.items() if key.partition("{")[0].endswith(COUNTED) and "model" in key}


def of(series: dict[str, float], name: str, model: str, **labels: str) -> float:
    shown = ",".join(f'{key}="{value}"' for key, value in sorted({"model": model, **labels}.items()))
    return series[f"{name}{{{shown}}}"]


class Client:
    """Asks for one model or the other in many ways, and keeps what it was told."""

    def __init__(self, served: ServedFleet) -> None:
        self.served = served
        self.endings: Counter[tuple[str, str]] = Counter()
        self.prompt: Counter[str] = Counter()
        self.completion: Counter[str] = Counter()

    def ask(self, model: str, **more: Any) -> None:
        status, _, document = self.served.complete(model, ignore_eos=True, **more)
        if status != 200:
            self.endings[model, document["error"]["code"]] += 1
            return
        self.endings[model, "finished"] += 1
        self.prompt[model] += document["usage"]["prompt_tokens"]
        self.completion[model] += document["usage"]["completion_tokens"]

    def leave(self, model: str) -> None:
        """In the midst of a stream, or before its model is there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=60)
        body = {"model": model, "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        assert connection.getresponse().readline().startswith(b"data: ")
        connection.close()
        self.endings[model, "cancelled"] += 1

    def run(self, number: int) -> None:
        for turn in range(6):
            model = "ab"[(number + turn) % 2]
            self.ask(model, max_tokens=number + turn + 1)
            self.ask(model, n=9999)
            self.ask("ba"[turn % 2], timeout_s=0.001, max_tokens=4000)
            if turn % 3 == 0:
                self.ask("broken")
                self.leave(model)


def test_counts_go_on_over_loads_and_evictions_and_are_what_clients_saw() -> None:
    steady = {"repeat": True, "step_delay_s": 0.001}
    offers = (fake_offer("a", script=steady), fake_offer("b", script=steady), Offer(name="broken", open=_broken))
    with serving_fleet(*offers, **BOTH) as served:
        before = counters(served)
        clients = [Client(served) for _ in range(4)]
        threads = [threading.Thread(target=client.run, args=(number,)) for number, client in enumerate(clients)]
        for thread in threads:
            thread.start()
        looks = 0
        while any(thread.is_alive() for thread in threads):
            now = counters(served)
            assert before.keys() <= now.keys()
            assert not {key: (n, now[key]) for key, n in before.items() if now[key] < n}
            before, looks = now, looks + 1
        assert looks > 5
        served.until(lambda: all(served.report(name)["in_use"] == 0 for name in ("a", "b", "broken")))
        seen = counters(served)
        endings = sum((client.endings for client in clients), Counter[tuple[str, str]]())
        assert min(endings[name, how] for name in "ab" for how in ("finished", "cancelled", "invalid_request")) > 0
        assert min(served.report(name)["unloads"] for name in "ab") > 1
        for name in ("a", "b", "broken"):
            told = {how: of(seen, "drivetrain_requests_total", name, ending=how) for how in ENDINGS}
            assert told == {how: endings[name, how] for how in ENDINGS}
            assert of(seen, "drivetrain_answers_total", name, reason="length") == endings[name, "finished"]
            assert of(seen, "drivetrain_answer_length_tokens_count", name) == endings[name, "finished"]
            whole = sum(client.completion[name] for client in clients)
            assert of(seen, "drivetrain_answer_length_tokens_sum", name) == whole
            assert of(seen, "drivetrain_completion_tokens_total", name) >= whole
            assert of(seen, "drivetrain_prompt_tokens_total", name) >= sum(client.prompt[name] for client in clients)


def test_one_that_is_not_loaded_has_its_counts_and_no_gauges() -> None:
    with serving_fleet(fake_offer("a"), fake_offer("b"), **BOTH) as served:
        client = Client(served)
        for model in "abba":
            client.ask(model, max_tokens=3)
            client.ask(model, max_tokens=2, n=2)
        served.until(lambda: served.report("a")["in_use"] == 0)
        series = served.metrics()
        for model in "ab":
            assert of(series, "drivetrain_requests_total", model, ending="finished") == 4
            assert of(series, "drivetrain_completion_tokens_total", model) == client.completion[model] == 14
            assert of(series, "drivetrain_prompt_tokens_total", model) == client.prompt[model]
            assert of(series, "drivetrain_first_token_seconds_count", model) == 4
            assert of(series, "drivetrain_answers_total", model, reason="length") == 6
            assert series[f'vllm:generation_tokens_total{{engine="0",model_name="{model}"}}'] == 14
        gauges = {
            key for key in series if key.startswith(("drivetrain_requests_running", "drivetrain_ready", "vllm:num_"))
        }
        assert gauges >= {'drivetrain_requests_running{model="a"}', 'drivetrain_ready{model="a"}'}
        assert [key for key in gauges if '"b"' in key] == ['vllm:num_preemptions_total{engine="0",model_name="b"}']
        assert [served.metrics()[f'drivetrain_model_loaded{{model="{model}"}}'] for model in "ab"] == [1, 0]
        assert served.ask("GET", "/status")[2]["completion_tokens"] == 28


def test_the_wait_for_a_load_is_in_none_of_the_times() -> None:
    load_s = 1.0
    with serving_fleet(fake_offer("a"), fake_offer("b", load_s=load_s), limits=ONE) as served:
        began = time.monotonic()
        assert served.complete("b", max_tokens=2)[0] == 200
        assert time.monotonic() - began >= load_s
        served.until(lambda: served.report("b")["in_use"] == 0)
        series = served.metrics()
    for name in ("queue", "first_token", "request"):
        assert of(series, f"drivetrain_{name}_seconds_count", "b") == 1
        assert of(series, f"drivetrain_{name}_seconds_sum", "b") < load_s
