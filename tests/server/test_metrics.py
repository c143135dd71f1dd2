"""`/metrics`: what a client saw and what the server counted agree to the last one; the formats; other names."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from drivetrain.core.constraint import GRAMMAR_KINDS
from drivetrain.core.results import ComputeThreads, EngineCounts
from drivetrain.core.stats import ENDINGS
from drivetrain.engines.fake import FakeEngine
from server.fleet_serving import fake_offer, serving_fleet
from server.serving import Served, fake, serving

HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana.json").read_text("utf-8"))
OF_OURS = 'instance=~"$instance"'
_TEXTS = "text/plain;version=1.0.0;escaping={0};q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
_PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping={0};q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
) + _TEXTS
ACCEPTED = {
    "Prometheus 2": "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "Prometheus 3": _PROMETHEUS_3.format("allow-utf-8"),
    "Prometheus 3 with legacy names": _PROMETHEUS_3.format("underscores"),
    "Prometheus 3, text first": _TEXTS.format("underscores"),
}
"""What they send when they scrape."""


def read(served: Served) -> Samples:
    text = served.request("GET", "/metrics")[2].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all series that have these labels."""
    found = [v for (n, have), v in samples.items() if n == name and labels.items() <= dict(have).items()]
    assert found, (name, labels)
    return sum(found)


def chat(served: Served, **fields: Any) -> dict[str, Any]:
    return {"model": served.model, "messages": HELLO, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields}


def test_a_mixed_load_adds_up(served: Served) -> None:
    before = read(served)
    statuses: Counter[int] = Counter()
    usage: Counter[str] = Counter()

    def ask(path: str, body: Any, **headers: str) -> None:
        status, _, data = served.request("POST", path, body, headers)
        statuses[status] += 1
        if status == 200 and not body.get("stream"):
            usage.update({k: v for k, v in json.loads(data)["usage"].items() if isinstance(v, int)})

    ask(CHAT, chat(served))
    ask(CHAT, chat(served, n=2, seed=1, temperature=1))
    ask(COMPLETIONS, {"model": served.model, "prompt": ["a", "b"], "max_tokens": 3, "ignore_eos": True})
    ask(CHAT, chat(served, temperature=9))
    ask(CHAT, chat(served, no_such_field=1))
    ask(CHAT, chat(served, max_tokens=10**7))
    ask(CHAT, {**chat(served), "model": "no-such-model"})
    assert dict(statuses) == {200: 3, 400: 3, 404: 1}
    served.settle()
    after = read(served)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - (value(before, name, **labels) if labels_in(before, name, labels) else 0)

    assert grown("drivetrain_http_responses_total", path=CHAT, status="200") == 2
    assert grown("drivetrain_http_responses_total", path=CHAT, status="400") == 3
    assert grown("drivetrain_http_responses_total", path=CHAT, status="404") == 1
    assert grown("drivetrain_http_responses_total", path=COMPLETIONS, status="200") == 1
    assert grown("drivetrain_refusals_total", reason="unsupported", param="other") == 1
    assert grown("drivetrain_refusals_total", param="temperature") == 1
    assert grown("drivetrain_refusals_total", reason="model_not_found", param="model") == 1
    assert grown("drivetrain_requests_total", ending="finished") == 4  # a list of prompts is as many requests
    # What no model could honour, and a model that is not here, is refused before a worker has it.
    assert grown("drivetrain_requests_total") == 5
    assert grown("drivetrain_answers_total", reason="length") == 5
    assert grown("drivetrain_prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("drivetrain_completion_tokens_total") == usage["completion_tokens"]
    assert grown("drivetrain_request_seconds_count") == grown("drivetrain_queue_seconds_count")
    assert grown("drivetrain_first_token_seconds_count") == 4


def labels_in(samples: Samples, name: str, labels: dict[str, str]) -> bool:
    return any(n == name and labels.items() <= dict(have).items() for n, have in samples)


def test_every_series_is_there_before_anything_happens() -> None:
    with serving(fake()) as served:
        samples = read(served)
        for ending in ENDINGS:
            assert value(samples, "drivetrain_requests_total", ending=ending) == 0
        assert value(samples, "drivetrain_answers_total", reason="stop") == 0
        assert value(samples, "drivetrain_ready") == 1
        assert value(samples, "drivetrain_build_info") == 1
        assert value(samples, "process_resident_memory_bytes") > 0
        assert value(samples, "drivetrain_request_seconds_bucket", le="+Inf") == 0


def test_histograms_are_cumulative(served: Served) -> None:
    served.works()
    samples = read(served)
    for name in ("queue", "first_token", "inter_token", "prefill", "decode", "request"):
        rows = [(dict(k)["le"], v) for (n, k), v in samples.items() if n == f"drivetrain_{name}_seconds_bucket"]
        rows.sort(key=lambda row: float(row[0]))
        numbers = [number for _, number in rows]
        assert numbers == sorted(numbers)
        assert numbers[-1] == value(samples, f"drivetrain_{name}_seconds_count")


def test_openmetrics_for_those_who_ask() -> None:
    with serving(fake()) as served:
        served.works()
        asked = {"accept": "application/openmetrics-text; version=1.0.0"}
        _, headers, data = served.request("GET", "/metrics", headers=asked)
        assert headers["content-type"].startswith("application/openmetrics-text")
        families = openmetrics.text_string_to_metric_families(data.decode())  # type: ignore[no-untyped-call]
        names = {family.name for family in families}
        assert "drivetrain_requests" in names


def test_the_names_of_vllm() -> None:
    with serving(fake(), metrics_compat="vllm") as served:
        assert served.post(CHAT, chat(served, max_tokens=4))[0] == 200
        served.settle()
        samples, model = read(served), served.model
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"):
            assert value(samples, f"vllm:{name}", model_name=model, engine="0") == 0
        assert value(samples, "vllm:generation_tokens_total") == 4
        assert value(samples, "vllm:request_success_total", finished_reason="length") == 1
        assert value(samples, "vllm:request_success_total", finished_reason="abort") == 0
        assert value(samples, "vllm:time_to_first_token_seconds_count") == 1
        assert value(samples, "vllm:inter_token_latency_seconds_count") == 3
        assert value(samples, "vllm:e2e_request_latency_seconds_count") == 1
    with serving(fake()) as served:
        assert not any(name.startswith("vllm:") for name, _ in read(served))


@pytest.mark.parametrize("accepted", ACCEPTED.values(), ids=ACCEPTED)
def test_the_names_of_vllm_keep_their_colon_for_every_prometheus(accepted: str) -> None:
    with serving(fake(), metrics_compat="vllm") as served:
        _, headers, data = served.request("GET", "/metrics", headers={"accept": accepted})
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(data.decode())}
    assert "vllm:num_requests_running" in names
    assert not [name for name in names if name.startswith("vllm_")]


def test_what_clients_make_up_makes_no_series() -> None:
    with serving(fake()) as served:
        for number in range(20):
            served.request("POST", CHAT, chat(served, **{f"field_{number}": 1}))
            served.request("GET", f"/nothing/{number}")
            served.request("POST", CHAT, {**chat(served), "model": f"model-{number}"})
            served.request(f"X{number}", "/v1/models")
        samples = read(served)
        assert value(samples, "drivetrain_refusals_total", param="other") == 20
        assert value(samples, "drivetrain_http_responses_total", path="", status="404") == 20
        assert len([key for key in samples if key[0] == "drivetrain_http_responses_total"]) <= 5


def variables() -> dict[str, str]:
    return {v["name"]: v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"}


def panels() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_what_there_is() -> None:
    assert len(panels()) >= 10
    with serving(fake()) as served:
        served.refused(CHAT, chat(served, temperature=9))
        there = {name for name, _ in read(served)}
    for expression in (*panels(), *variables().values()):
        names = set(re.findall(r"\b(?:drivetrain|process)_\w+", expression))
        assert names, expression
        assert names <= there | {"drivetrain_upstream_up"}, expression


def test_the_dashboard_shows_no_process_but_ours_and_no_instance_but_the_chosen() -> None:
    for expression in panels():
        if (found := re.search(r"\bprocess_\w+", expression)) is not None:
            assert expression == f"{found[0]}{{{OF_OURS}}} and on (instance, job) drivetrain_build_info"
        else:
            series = re.findall(r"\bdrivetrain_\w+(.{0,30})", expression)
            assert all(after.startswith(f"{{{OF_OURS}") for after in series), expression


def test_the_dashboard_offers_a_model_that_was_never_loaded() -> None:
    series = re.fullmatch(r"label_values\((\w+)\{.*\}, model\)", variables()["model"])
    assert series is not None
    with serving_fleet(fake_offer("a"), fake_offer("never")) as served:
        assert served.complete("a", max_tokens=1)[0] == 200
        assert {f'{series[1]}{{model="{name}"}}' for name in ("a", "never")} <= served.metrics().keys()


def test_constraints_are_counted_by_form_and_each_is_compiled_once() -> None:
    with serving(fake()) as served:
        before = read(served)
        for form in ("json_schema", "json", "regex", "choice", "grammar", "tools", "reasoning"):
            assert value(before, "drivetrain_constrained_requests_total", form=form) == 0
        for fields in ({"choice": ["a", "b"]}, {"guided_choice": ["a", "b"]}, {"regex": "a{3}"}, {}):
            assert served.post(CHAT, chat(served, **fields))[0] == 200
        served.refused(CHAT, chat(served, regex="["))
        served.refused(CHAT, chat(served, regex=""))  # no request at all
        after = read(served)
        counted = {form: value(after, "drivetrain_constrained_requests_total", form=form) for form in GRAMMAR_KINDS}
        assert {form: n for form, n in counted.items() if n} == {"choice": 2, "regex": 1}
        assert value(after, "drivetrain_grammar_compile_seconds_count") == 3
        assert value(after, "drivetrain_grammar_compile_seconds_sum") > 0
        assert value(after, "drivetrain_grammar_mask_seconds_total") > value(
            before, "drivetrain_grammar_mask_seconds_total"
        )
        assert value(after, "drivetrain_refusals_total", reason="invalid_request", param="regex") == 2


def test_requests_that_tools_hold_to_a_grammar_are_counted() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    text = {"response_format": {"type": "json_object"}}
    with serving(fake({}, text='{"a": 1}')) as served:
        for fields in ({}, {"tool_choice": "required"}, {"tool_choice": "none"}, text, {"tool_choice": "none", **text}):
            assert served.post(CHAT, chat(served, max_tokens=60, tools=tools, **fields))[0] == 200
        samples = read(served)
    counted = {form: value(samples, "drivetrain_constrained_requests_total", form=form) for form in GRAMMAR_KINDS}
    assert {form: n for form, n in counted.items() if n} == {"tools": 3, "json": 1}


def test_an_answer_with_calls_ended_by_itself_in_the_names_of_vllm() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    with serving(fake(text=call), metrics_compat="vllm") as served:
        status, answer = served.post(CHAT, chat(served, max_tokens=200, tools=tools, ignore_eos=False))
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "tool_calls")
        served.settle()
        samples = read(served)
    assert value(samples, "drivetrain_answers_total", reason="tool_calls") == 1
    assert value(samples, "vllm:request_success_total", finished_reason="stop") == 1
    assert not labels_in(samples, "vllm:request_success_total", {"finished_reason": "tool_calls"})


def test_threads_that_an_engine_leaves_to_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    health = FakeEngine.health
    monkeypatch.setattr(FakeEngine, "health", lambda engine: replace(health(engine), threads=ComputeThreads(3, 8)))
    with serving(fake()) as served:
        samples = read(served)
        monkeypatch.undo()
        unknown = read(served)
    assert value(samples, "drivetrain_compute_threads", state="taken") == 3
    assert value(samples, "drivetrain_compute_threads", state="yielded") == 5
    assert not labels_in(unknown, "drivetrain_compute_threads", {})


def test_what_a_running_engine_has_counted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    health, counts = FakeEngine.health, EngineCounts(3, 0.5, accepted_tokens=5, refused_tokens=2)
    monkeypatch.setattr(FakeEngine, "health", lambda engine: replace(health(engine), counts=counts))
    with serving(fake(), metrics_compat="vllm") as served:
        samples = read(served)
    assert value(samples, "drivetrain_preemptions_total") == value(samples, "vllm:num_preemptions_total") == 3
    assert value(samples, "drivetrain_grammar_mask_seconds_total") == 0.5
    assert value(samples, "drivetrain_draft_tokens_total", outcome="accepted") == 5
    assert value(samples, "drivetrain_draft_tokens_total", outcome="refused") == 2


def test_one_line_an_ending_without_a_word_of_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    secret = "a very secret prompt"
    with serving(fake()) as served, caplog.at_level(logging.INFO, logger="drivetrain.requests"):
        asked = {**chat(served), "messages": [{"role": "user", "content": secret}]}
        status, answer = served.post(CHAT, asked)
        assert status == 200
        served.post(CHAT, {**asked, "temperature": 9})
        served.settle()
    records = [r for r in caplog.records if r.name == "drivetrain.requests"]
    assert len(records) == 2
    finished, refused = (record.drivetrain for record in records)  # type: ignore[attr-defined]
    assert finished["ending"] == "finished"
    assert finished["finish_reasons"] == ["length"]
    assert finished["completion_tokens"] == 6
    assert finished["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert finished["total_s"] >= finished["first_s"] >= finished["queue_s"] >= 0
    assert refused["ending"] == "invalid_request"
    said = " ".join(f"{r.getMessage()} {r.drivetrain}" for r in records)  # type: ignore[attr-defined]
    assert secret not in said
    assert answer["choices"][0]["message"]["content"] not in said


def test_clients_that_leave_are_no_server_errors() -> None:
    with serving(fake({}, repeat=True, step_delay_s=0.02)) as served:
        body = json.dumps(chat(served, max_tokens=500)).encode()
        for _ in range(5):
            with served.raw() as sock:
                head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1:{served.port}\r\ncontent-length: {len(body)}\r\n\r\n"
                sock.sendall(head.encode() + body)
                until(lambda: served.worker.status.running == 1)
            until(lambda: served.worker.status.running == 0)
        samples = read(served)
        assert value(samples, "drivetrain_requests_total", ending="cancelled") == 5
        assert not labels_in(samples, "drivetrain_http_responses_total", {"path": CHAT})


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
