"""From pages to a report: all that they tell, with any of them missing, and whatever they hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from diagnosis_pages import ADMIN, CARDS, METRICS, STATUS, missing, page, pages
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.cli.terminal.values import plain
from drivetrain.engines.remote.address import Key
from drivetrain.tools.doctor import text
from drivetrain.tools.doctor.findings import findings
from drivetrain.tools.doctor.gather import gather
from drivetrain.tools.doctor.page import FetchedPage
from drivetrain.tools.doctor.redact import MAX_CHARS, Redactor
from drivetrain.tools.doctor.report import HistogramTimes, Memory, ModelReport, Refusal, ServerKind, Unread


def test_all_of_it() -> None:
    report = gather(pages())
    assert (report.kind, report.version, report.ready, report.local) == (ServerKind.OURS, "0.1.0", True, True)
    assert (report.needs_key, report.sent_key, report.unread) == (False, False, ())
    assert (report.clock_ahead_s, report.uptime_s, report.tokens_per_s) == (0.0, 7200.0, 12.5)
    assert report.refusals == (Refusal("overloaded", "", 10), Refusal("invalid_request", "temperature", 4))
    assert report.memory == (Memory("cpu", 10, 0, 1000, 400),)
    small, big = report.models
    assert small == ModelReport(
        name="small", state="ready", aliases=("alias",), engine="native", device="cpu", dtype="float32",
        context_length=2048, engine_alive=True, pinned=True, loads=1, running=2, max_running=4, waiting=1,
        max_waiting=8, since_progress_s=0.5, endings={"finished": 90, "overloaded": 10},
        answers={"stop": 80, "length": 10}, queue=HistogramTimes(100, 0.001, 0.01, 0.01),
        prompt_tokens=1000, cached_tokens=250, completion_tokens=500,
        kv_used=0.98, preemptions=7, restarts=3, upstreams=(True, False),
    )  # fmt: skip
    assert (big.state, big.loaded, big.failure, big.retry_in_s) == ("failed", False, "no weights", 40.0)


@pytest.mark.parametrize("left", ["status", "metrics", "models"])
def test_one_page_is_enough_to_know_that_it_is_ours(left: str) -> None:
    gone = {name: missing() for name in ("status", "metrics", "models", "admin") if name != left}
    report = gather(pages(**gone, cards={}))
    assert report.kind is ServerKind.OURS
    small = report.models[0]
    assert small.name == "small"
    if left != "models":
        assert (small.running, small.ended, small.share("overloaded")) == (2, 100, 0.1)
    assert len(report.unread) == 3
    assert report.unread[0].status == 404


def test_a_model_that_only_the_metrics_know() -> None:
    (only,) = gather(pages(status=missing(), models=missing(), admin=missing(), cards={})).models
    assert (only.state, only.loaded, only.since_progress_s) == ("unknown", True, 0.5)


def test_a_page_that_did_not_come() -> None:
    slow = FetchedPage(problem="it did not answer within 5 seconds")
    report = gather(pages(metrics=slow))
    assert report.unread == (Unread("/metrics", 0, "it did not answer within 5 seconds"),)
    assert report.models[0].endings == {"finished": 90, "overloaded": 10}
    assert report.models[0].queue is None


def test_not_ready_is_a_page_that_was_read() -> None:
    report = gather(pages(ready=page({"status": "not ready"}, 503)))
    assert report.ready is False
    assert not report.unread


REFUSED = page({"error": {"message": "an API key is required", "code": "invalid_api_key"}}, 401)


def test_the_key() -> None:
    shut = dict.fromkeys(("ready", "status", "metrics", "models", "admin"), REFUSED)
    locked = gather(pages(**shut, cards={}))
    assert (locked.kind, locked.needs_key, locked.ready, locked.models) == (ServerKind.LOCKED, True, None, ())
    assert gather(pages(sent_key=True, open=REFUSED)).needs_key is True
    assert gather(pages(sent_key=True, open=page(STATUS))).needs_key is False
    assert gather(pages(sent_key=True, open=FetchedPage(problem="?"))).needs_key is None


def test_another_server() -> None:
    listed = page({"object": "list", "data": [{"id": "theirs", "owned_by": "vllm"}, {"no": "id"}, 7]})
    gauges = 'vllm:num_requests_running{engine="0",model_name="theirs"} 3.0\n'
    report = gather(pages(status=missing(), metrics=page(text=gauges), models=listed, admin=missing(), cards={}))
    assert (report.kind, report.gauges) == (ServerKind.PEER, {"running": 3.0})
    assert [model.name for model in report.models] == ["theirs"]
    nothing = {name: missing() for name in ("health", "ready", "status", "metrics", "models", "admin")}
    assert gather(pages(**nothing, cards={})).kind is ServerKind.UNKNOWN


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def spoilt(document: Any, data: st.DataObject) -> Any:
    """The same with any of its values in place of some."""
    if data.draw(st.integers(0, 5)) == 0:
        return data.draw(json_values)
    if isinstance(document, dict):
        return {name: spoilt(value, data) for name, value in document.items()}
    return [spoilt(value, data) for value in document] if isinstance(document, list) else document


@given(st.data(), st.sampled_from(["status", "models", "admin", "metrics"]))
def test_whatever_the_pages_hold_there_is_a_report(data: st.DataObject, which: str) -> None:
    whole: dict[str, Any] = {"status": STATUS, "models": CARDS, "admin": ADMIN, "metrics": METRICS}
    if which == "metrics":
        lines = METRICS.splitlines()
        lines[data.draw(st.integers(0, len(lines) - 1))] = data.draw(st.text(max_size=60))
        changed = page(text="\n".join(lines).encode("utf-8", "replace").decode())
    else:
        changed = page(text=json.dumps(spoilt(whole[which], data)))
    report = gather(pages(**{which: changed}))
    found = findings(report)
    told = "\n".join(text.lines(report))
    assert told.isprintable() or all(line.isprintable() for line in told.split("\n"))
    assert all(one.what and one.means and one.remedy for one in found)
    json.dumps(plain(report), allow_nan=False)


def test_however_much_there_is_the_report_is_short() -> None:
    many = range(5000)
    lines = [f'drivetrain_requests_total{{ending="e{i}",model="small"}} 1' for i in many]
    lines += [f'drivetrain_refusals_total{{param="p{i}",reason="r"}} 1' for i in many]
    lines += [f'drivetrain_upstream_up{{model="small",upstream="{i}"}} 0' for i in many]
    cards = [{"id": f"a{i}", "owned_by": "drivetrain", "alias_of": "small"} for i in many]
    devices = [{"device": f"d{i}", "total_bytes": 1} for i in many]
    states = {**STATUS["models"], **{f"m{i}": {"state": "unloaded"} for i in many}}  # type: ignore[dict-item] # it is one
    status = page({**STATUS, "memory": devices, "models": states})
    report = gather(pages(metrics=page(text="\n".join(lines)), models=page({"data": cards}), status=status))
    assert len(json.dumps(plain(replace(report, findings=findings(report))))) < 300_000
    assert len("\n".join(text.lines(replace(report, findings=findings(report))))) < 10_000


def test_words_hide_keys_and_spell_out_what_cannot_be_printed() -> None:
    words = Redactor([Key("sesame"), Key()])
    assert words.text("open sesame\x1b[31m\n\u202e\ud800") == "open …\\x1b[31m\\n\\u202e\\ud800"
    assert len(words.text("x" * 10_000)) == MAX_CHARS
    assert words.json(b'{"sesame": ["\\u0073esame\\u0007", 1]}') == {"…": ["…\\x07", 1]}


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[" * 100_000, b"1" * 10_000])
def test_what_is_no_json_is_none(data: bytes) -> None:
    assert Redactor([]).json(data) is None
