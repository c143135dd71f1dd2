"""What is judged from a report: each finding, the edge of it, and which of them need action."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diagnosis_pages import page, pages

from drivetrain.tools.doctor import text
from drivetrain.tools.doctor.findings import findings
from drivetrain.tools.doctor.gather import gather
from drivetrain.tools.doctor.report import (
    Finding,
    HistogramTimes,
    Memory,
    ModelReport,
    Refusal,
    ServerKind,
    ServerReport,
    Severity,
    Unread,
)

WELL = ModelReport(
    name="m", state="ready", engine="llamacpp", engine_alive=True, running=1, max_running=4, waiting=0, max_waiting=64,
    endings={"finished": 1000}, kv_used=0.5, preemptions=0, restarts=0, loads=1, unloads=0,
)  # fmt: skip
GB = 10**9


def told(model: dict[str, Any] | None = None, **server: Any) -> tuple[Finding, ...]:
    """What is found where these fields differ from a server that is well."""
    report = ServerReport(
        url="http://127.0.0.1:8000", kind=ServerKind.OURS, local=True, encrypted=False, sent_key=False, ready=True,
        latency_s=0.002, clock_ahead_s=0.4, uptime_s=3600.0, models=(replace(WELL, **(model or {})),),
        memory=(Memory("cpu", GB, 0, 16 * GB, 8 * GB), Memory("cuda:0", 70 * GB, 0, 80 * GB, GB)),
    )  # fmt: skip
    return findings(replace(report, **server))


def ended(**others: int) -> dict[str, Any]:
    return {"endings": {"finished": 1000 - sum(others.values()), **others}}


def test_one_that_is_well() -> None:
    assert told() == ()


ACT, NOTE = Severity.ACT, Severity.NOTE
OF_MODELS: list[tuple[str, Severity, dict[str, Any], str]] = [
    ("failed", ACT, {"state": "failed", "engine_alive": None, "failure": "no weights"}, "no weights"),
    ("failed", ACT, {"state": "failed", "engine_alive": None}, "could not be loaded"),
    ("failed", ACT, {"state": "failed"}, "hangs"),
    ("restarting", ACT, {"state": "restarting", "engine_alive": False}, "being restarted"),
    ("loading", NOTE, {"state": "loading", "engine_alive": None, "loading_share": 0.25}, "25 %"),
    ("draining", ACT, {"state": "draining"}, "shutting down"),
    ("engine_down", ACT, {"engine_alive": False}, "has stopped"),
    ("stalled", ACT, {"stalled_s": 40.0}, "1 request running, and no progress for 40 s"),
    ("upstream_down", ACT, {"upstreams": (True, False, False)}, "2 of 3 upstreams (number 2, 3)"),
    ("restarted", ACT, {"restarts": 1}, "1 time."),
    ("overloaded", ACT, ended(overloaded=120), "12 % of requests were refused as overloaded (120 of 1,000)"),
    ("unavailable", ACT, ended(not_ready=30, not_loaded=30), "6.0 % of requests"),
    ("failures", ACT, ended(engine_error=10), "1.0 % of requests"),
    ("out_of_memory", ACT, ended(out_of_memory=1), "0.1 % of requests"),
    ("deadlines", ACT, ended(deadline_exceeded=50), "5.0 % of requests"),
    ("kv_full", ACT, {"kv_used": 0.98, "preemptions": 50}, "50 preemptions; the memory for keys and values is 98 %"),
    ("kv_full", NOTE, {"kv_used": 0.98, "waiting": 3}, "0 preemptions; the memory"),
    ("long_queue", NOTE, {"queue": HistogramTimes(900, 0.5, 10.0, 160.0)}, "10 s or more"),
    ("turns", NOTE, {"loads": 300, "unloads": 300}, "300 times for 1,000 requests"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "level", "changes", "words"), OF_MODELS)
def test_of_a_model(code: str, level: Severity, changes: dict[str, Any], words: str) -> None:
    (found,) = told(changes)
    assert (found.code, found.level, found.model) == (code, level, "m")
    assert words in found.what
    assert found.means
    assert found.remedy


@pytest.mark.parametrize(
    "changes",
    [
        ended(overloaded=49), ended(engine_error=9), ended(deadline_exceeded=49), ended(not_loaded=49),
        ended(cancelled=900), ended(invalid_request=900),
        {"endings": {"finished": 1, "overloaded": 2}},
        {"kv_used": 1.0}, {"preemptions": 49}, {"queue": HistogramTimes(900, 0.5, 9.9, 160.0)},
        {"loads": 300, "unloads": 0}, {"loads": 2, "unloads": 2, "endings": {"finished": 2}},
        {"state": "unloaded", "engine_alive": None}, {"upstreams": (True, True)},
    ],
)  # fmt: skip
def test_no_finding_below_its_edge(changes: dict[str, Any]) -> None:
    assert told(changes) == ()


def test_restarts_count_by_the_day() -> None:
    day = 86_400.0
    assert [f.level for f in told({"restarts": 3}, uptime_s=3 * day)] == [ACT]
    assert [f.level for f in told({"restarts": 3}, uptime_s=4 * day)] == [NOTE]


@pytest.mark.parametrize(
    ("engine", "words"),
    [("llamacpp", "--slots"), ("native", "--max-batch"), ("remote", "upstreams"), (None, "--slots")],
)
def test_the_remedy_is_that_of_the_engine(engine: str | None, words: str) -> None:
    (found,) = told({"engine": engine, **ended(overloaded=120)})
    assert words in found.remedy
    assert "(4 at once and 64 in the queue)" in found.means


OF_SERVERS: list[tuple[str, Severity, dict[str, Any], str]] = [
    ("locked", ACT, {"kind": ServerKind.LOCKED}, "requires a key"),
    ("locked", ACT, {"kind": ServerKind.LOCKED, "sent_key": True}, "refuses this key"),
    ("not_ours", ACT, {"kind": ServerKind.PEER}, "speaks the OpenAI API"),
    ("not_ours", ACT, {"kind": ServerKind.UNKNOWN}, "not a Drivetrain server"),
    ("silent", ACT, {"kind": ServerKind.UNKNOWN, "latency_s": None, "unread": (Unread("/health", 0, "late"),)}, "late"),
    ("no_key", ACT, {"needs_key": False, "local": False}, "requires no key"),
    ("key_in_clear", NOTE, {"needs_key": True, "local": False, "sent_key": True}, "unencrypted"),
    ("slow", NOTE, {"latency_s": 0.5}, "500 ms"),
    ("slow", ACT, {"latency_s": 2.5}, "2.5 s"),
    ("clocks", NOTE, {"clock_ahead_s": -45.0}, "45 s behind"),
    ("clocks", NOTE, {"clock_ahead_s": 7200.0}, "2 h ahead of"),
    ("unread", ACT, {"unread": (Unread("/metrics", 0, "it is slow"),)}, "/metrics could not be read: it is slow"),
    ("unread", NOTE, {"unread": (Unread("/status", 404, "status 404"),)}, "status 404"),
    ("unread", NOTE, {"unread": (Unread("/admin/models", 401, "a key is needed"),)}, "a key is needed"),
    ("unread", ACT, {"unread": (Unread("/admin/models", 401, "?"),), "sent_admin_key": True}, "/admin/models"),
    ("not_ready", ACT, {"ready": False}, "not ready"),
    ("memory", ACT, {"memory": (Memory("cpu", GB, 0, 100 * GB, 4 * GB),)}, "4.0 %"),
    ("invalid_requests", NOTE, {"refusals": (Refusal("unsupported", "logprobs", 200),)}, "200 requests of about 1,000"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "level", "changes", "words"), OF_SERVERS)
def test_of_the_server(code: str, level: Severity, changes: dict[str, Any], words: str) -> None:
    (found,) = told(**changes)
    assert (found.code, found.level, found.model) == (code, level, None)
    assert words in found.what
    assert found.means
    assert found.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"needs_key": False}, {"needs_key": True, "local": False},
        {"sent_key": True, "local": False, "encrypted": True}, {"sent_key": True},
        {"latency_s": 0.49}, {"clock_ahead_s": 29.0}, {"latency_s": None, "clock_ahead_s": None, "ready": None},
        {"refusals": (Refusal("invalid_request", "n", 199), Refusal("overloaded", "", 900))},
        {"refusals": (Refusal("invalid_request", "n", 19),), "models": ()},
    ],
)  # fmt: skip
def test_nothing_to_say_of_the_server(changes: dict[str, Any]) -> None:
    assert told(**changes) == ()


def test_not_ready_needs_no_finding_of_its_own_where_a_model_says_why() -> None:
    found = told({"state": "loading", "engine_alive": None}, ready=False)
    assert [(f.code, f.level) for f in found] == [("loading", ACT)]


def test_what_needs_action_comes_first() -> None:
    found = told({"queue": HistogramTimes(900, 0.5, 20.0, 160.0), **ended(engine_error=500)}, latency_s=0.6)
    assert [f.code for f in found] == ["failures", "slow", "long_queue"]


def test_the_guide_names_each_finding_and_its_level() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "doctor.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", guide, re.MULTILINE)
    levels = {code: {level for c, level, *_ in [*OF_MODELS, *OF_SERVERS] if c == code} for code, _ in rows}
    assert [code for code, _ in rows] == list(dict.fromkeys(code for code, _ in rows))
    assert {code for code, _ in rows} == {code for code, *_ in [*OF_MODELS, *OF_SERVERS]}
    for code, said in rows:
        assert levels[code] <= {{"!": ACT, "-": NOTE}[mark] for mark in said.strip().split(" or ")}, code


def test_the_text_of_all_of_it() -> None:
    report = gather(pages())
    lines = text.lines(replace(report, findings=findings(report)))
    assert lines[0] == "http://127.0.0.1:8000  drivetrain 0.1.0, up for 2 h, ready, answered in 2.0 ms"
    shown = "\n".join(lines)
    for words in (
        "small  ready  native on cpu, float32, context 2,048  (also alias)",
        "requests        2 of 4 running, 1 of 8 waiting; last progress 500 ms ago",
        "ended           100: 90 finished (80 stop, 10 length), 10 overloaded; 0 % failed",
        "queue           median 1.0 ms, p99 over 10.0 ms (100 requests)",
        "first token     nothing measured yet",
        "tokens          1,000 in prompts (25 % from the prefix cache), 500 generated",
        "engine          KV cache 98 % full, 7 preemptions, 3 restarts",
        "upstreams       1 of 2 up",
        "\nbig  failed\n",
        "refused     10 overloaded, 4 invalid_request (temperature)",
        "! big: The model could not be loaded: no weights",
        "    → fix the cause, then POST /admin/models/load",
    ):
        assert words in shown, shown
    assert len(lines) < 50


def test_what_is_the_same_for_many_is_said_once() -> None:
    report = gather(pages())
    failing = [replace(WELL, name=f"m{i}", state="restarting", engine_alive=False) for i in range(7)]
    report = replace(report, models=(*failing, replace(WELL, **ended(engine_error=500))))
    shown = "\n".join(text.lines(replace(report, findings=findings(report))))
    assert shown.count("! m") == 6
    assert "! m4: The engine has failed and is being restarted.\n! … and 2 more of this kind\n    Req" in shown
    assert "! m: 50 % of requests" in shown
    assert shown.count("check again in a minute") == 1


def test_many_models_are_a_line_each() -> None:
    states = {f"m{i}": {"state": "ready", "engine_alive": True, "running": i, "waiting": 0} for i in range(60)}
    status = page({"models": states, "version": "1", "tokens_per_s": 0, "memory": []})
    nothing = page({"data": []})
    lines = text.lines(gather(pages(status=status, metrics=page(text=""), models=nothing, admin=nothing, cards={})))
    assert "m7  ready, 7 running, 0 waiting" in lines
    assert "… and 30 models more (--json has all)" in lines
    assert len(lines) < 40
