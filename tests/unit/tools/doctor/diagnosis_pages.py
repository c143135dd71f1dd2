"""Pages of a server for tests, as the reader would have brought them."""

from __future__ import annotations

import json
from typing import Any

from drivetrain.http.address import Address
from drivetrain.tools.doctor.page import FetchedPage, Pages
from drivetrain.tools.doctor.redact import Redactor
from drivetrain.tools.doctor.series import Series

WORDS = Redactor([])
NOT_FOUND = {"error": {"message": "no such endpoint", "code": "not_found"}}
METRICS = """
# HELP drivetrain_requests_running requests running now
# TYPE drivetrain_requests_running gauge
drivetrain_requests_running{model="small"} 2.0
drivetrain_requests_waiting{model="small"} 1.0
drivetrain_requests_total{ending="finished",model="small"} 90.0
drivetrain_requests_total{ending="overloaded",model="small"} 10.0
drivetrain_requests_total{ending="cancelled",model="small"} 0.0
drivetrain_answers_total{model="small",reason="stop"} 80.0
drivetrain_answers_total{model="small",reason="length"} 10.0
drivetrain_queue_seconds_bucket{le="0.001",model="small"} 50.0
drivetrain_queue_seconds_bucket{le="0.01",model="small"} 90.0
drivetrain_queue_seconds_bucket{le="+Inf",model="small"} 100.0
drivetrain_prompt_tokens_total{model="small"} 1000.0
drivetrain_cached_prompt_tokens_total{model="small"} 250.0
drivetrain_completion_tokens_total{model="small"} 500.0
drivetrain_kv_cache_used_ratio{model="small"} 0.98
drivetrain_preemptions_total{model="small"} 7.0
drivetrain_engine_restarts_total{model="small"} 3.0
drivetrain_last_progress_seconds{model="small"} 0.5
drivetrain_upstream_up{model="small",upstream="0"} 1.0
drivetrain_upstream_up{model="small",upstream="1"} 0.0
drivetrain_refusals_total{param="",reason="overloaded"} 10.0
drivetrain_refusals_total{param="temperature",reason="invalid_request"} 4.0
drivetrain_model_loads_total{model="small"} 1.0
process_start_time_seconds 1.0e+09
drivetrain_build_info{version="0.1.0"} 1.0
"""
STATUS = {
    "state": "ready", "running": 2, "waiting": 1, "tokens_per_s": 12.5, "version": "0.1.0",
    "memory": [
        {"device": "cpu", "allocated_bytes": 10, "cached_bytes": 0, "total_bytes": 1000, "available_bytes": 400}
    ],
    "models": {
        "small": {
            "state": "ready", "engine_alive": True, "running": 2, "waiting": 1, "max_waiting": 8,
            "endings": {"finished": 90, "overloaded": 10}, "prompt_tokens": 1000, "completion_tokens": 500,
            "seconds_since_progress": 0.5,
        },
        "big": {"state": "failed", "waiting": 0},
    },
}  # fmt: skip
CARDS = {
    "object": "list",
    "data": [
        {"id": "small", "owned_by": "drivetrain", "state": "ready"},
        {"id": "alias", "owned_by": "drivetrain", "state": "ready", "alias_of": "small"},
        {"id": "big", "owned_by": "drivetrain", "state": "failed"},
    ],
}
CARD = {
    **CARDS["data"][0],  # type: ignore[dict-item] # a list of objects
    "capabilities": {
        "engine": "native", "device": "cpu", "dtype": "float32", "context_length": 2048, "max_concurrency": 4
    },
}  # fmt: skip
ADMIN = {
    "data": [
        {"id": "small", "pinned": True, "failure": None, "progress": None},
        {"id": "big", "pinned": False, "failure": {"message": "no weights", "retry_in_s": 40.0}},
    ]
}


def page(document: Any = None, status: int = 200, text: str | None = None, **more: Any) -> FetchedPage:
    data = json.dumps(document).encode() if text is None else text.encode()
    return FetchedPage(
        status=status, document=WORDS.json(data), series=Series.parse(data.decode(), WORDS), took_s=0.002, **more
    )


def missing() -> FetchedPage:
    return page(NOT_FOUND, 404)


def pages(**changes: Any) -> Pages:
    """A server of ours with one model that runs, and one that failed."""
    known: dict[str, Any] = {
        "address": Address.parse("http://127.0.0.1:8000"),
        "sent_key": False,
        "sent_admin_key": False,
        "health": page({"status": "ok"}, headers={"date": "Sun, 09 Sep 2001 03:46:40 GMT"}),
        "ready": page({"status": "ready"}),
        "status": page(STATUS),
        "metrics": page(text=METRICS),
        "models": page(CARDS),
        "admin": page(ADMIN),
        "open": None,
        "cards": {"small": page(CARD)},
        "asked_at": 1_000_007_200.0,
    }
    return Pages(**{**known, **changes})
