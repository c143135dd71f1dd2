"""Each request for a model is one line of the log, with an id, however far it got; none tells what was asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import NotReady
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.telemetry.logs import fields_of
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from server.serving import Served, fake, serving

CHAT = "/v1/chat/completions"
SECRET = "what nobody else may read"
MESSAGES = [{"role": "user", "content": SECRET}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(fake(text="an answer")) as made:
        yield made


def line_of(served: Served, caplog: pytest.LogCaptureFixture, path: str, body: Any) -> tuple[dict[str, Any], str]:
    """The fields of its one line, and the request's `x-request-id`."""
    with caplog.at_level(logging.INFO, logger="drivetrain.requests"):
        caplog.clear()
        content = body if isinstance(body, bytes) else None
        answer = httpx.post(served.base + path, json=None if content else body, content=content)
        served.settle()
    (record,) = [record for record in caplog.records if record.name == "drivetrain.requests"]
    assert SECRET not in caplog.text
    assert SECRET not in str(fields_of(record))
    return dict(fields_of(record)), answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "body", "ending"),
    [
        (CHAT, b'{"model": "fake", "messages": [{"role": "user", "content": "what nobody', "invalid_request"),
        (CHAT, {"model": "fake", "messages": MESSAGES, SECRET: 1}, "unsupported"),
        (CHAT, {"model": "fake", "messages": MESSAGES, "temperature": 9}, "invalid_request"),
        (CHAT, {"model": SECRET, "messages": MESSAGES}, "model_not_found"),
        ("/v1/embeddings", {"model": "fake", "input": SECRET, "dimensions": 1}, "unsupported"),
        ("/v1/embeddings", {"model": "fake", "input": SECRET}, "finished"),
        ("/v1/embeddings", {"model": "fake", "input": ""}, "invalid_request"),
    ],
)
def test_what_has_no_id_of_its_own_has_that_of_its_http_answer(
    served: Served, caplog: pytest.LogCaptureFixture, path: str, body: Any, ending: str
) -> None:
    fields, http_id = line_of(served, caplog, path, body)
    assert (fields["ending"], fields["request_id"]) == (ending, http_id)


@pytest.mark.parametrize("more", [{}, {"n": 10**6}, {"max_tokens": 10**6}])
def test_an_answer_has_its_own(served: Served, caplog: pytest.LogCaptureFixture, more: dict[str, Any]) -> None:
    fields, http_id = line_of(served, caplog, CHAT, {"model": "fake", "messages": MESSAGES, **more})
    assert (fields["ending"] == "finished") == (not more)
    assert fields["request_id"] != http_id
    assert fields["request_id"].startswith("chatcmpl-")


def test_what_comes_before_the_model_is_there_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    worker = EngineWorker(
        FakeEngine(Script()), ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE), Settings()
    )
    with caplog.at_level(logging.INFO, logger="drivetrain.requests"), pytest.raises(NotReady):
        worker.stream(prompt=SECRET, request_id="early")
    (record,) = caplog.records
    assert (fields_of(record)["ending"], fields_of(record)["request_id"]) == (NotReady.code, "early")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"temprature": 1}, "temprature"),
        ({SECRET: 1}, "other"),
        ({"x" * 99: 1}, "other"),
    ],
)
def test_a_refusal_names_the_field_if_it_looks_like_one(
    served: Served, caplog: pytest.LogCaptureFixture, more: dict[str, Any], param: str
) -> None:
    fields, _ = line_of(served, caplog, CHAT, {"model": "fake", "messages": MESSAGES, **more})
    assert fields["param"] == param


OPEN = {"type": "object", "properties": {"door": {"const": SECRET}}, "required": ["door"]}


@pytest.mark.parametrize(
    ("schema", "reason", "said"),
    [
        (OPEN, "length", True),
        ({"type": "array", "items": OPEN, "minItems": 1}, "length", True),
        ({**OPEN, "additionalProperties": {"type": "string"}}, "length", True),
        ({**OPEN, "additionalProperties": False}, "length", False),
        ({"type": "object", "additionalProperties": {"const": SECRET}, "minProperties": 1}, "length", False),  # a map
        ({**OPEN, "additionalProperties": False}, "stop", False),
        ({**OPEN, "properties": {"door": OPEN}, "additionalProperties": False}, "length", True),
        (
            {
                "type": "object",
                "properties": {"properties": {"const": SECRET}},
                "required": ["properties"],
                "additionalProperties": False,
            },
            "length",
            False,
        ),
        ({"const": {"properties": {"door": SECRET}}}, "length", False),
        ({"type": "object", "properties": {"door": True}}, "stop", False),
    ],
)
def test_an_answer_cut_off_in_an_open_schema_says_so(
    served: Served, caplog: pytest.LogCaptureFixture, schema: dict[str, Any], reason: str, said: bool
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    limit = {"max_tokens": 8 if reason == "length" else 200}
    fields, _ = line_of(served, caplog, CHAT, {"model": "fake", "messages": MESSAGES, "response_format": form, **limit})
    assert fields["finish_reasons"] == [reason]
    assert fields.get("open_schema", False) is said
    assert ("its schema is open" in caplog.text) is said
