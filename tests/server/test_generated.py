"""Requests made up from the OpenAPI document, good and bad: no 5xx but the documented 503 and 504."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from drivetrain.server import openapi
from server.serving import Served, fake, serving

MAX_TOKENS = 32
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

schema = schemathesis.openapi.from_dict(openapi.build())
schema.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])


@pytest.fixture(scope="module")
def target() -> Iterator[Served]:
    with serving(fake({"max_timeout_s": 5.0}, text="A short answer. ", max_concurrency=512)) as made:
        yield made
        made.settle()
        made.works()


@schema.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_every_operation(case: Any, target: Served) -> None:
    negative = case.meta is not None and case.meta.generation.mode.is_negative
    if isinstance(case.body, dict):
        capped(case.body, target, name_model=not negative)
    response = case.call(base_url=target.base, timeout=30)
    assert response.status_code < 500 or response.status_code in {503, 504}, response.text
    case.validate_response(response, checks=CHECKS)
    if (
        response.status_code >= 400
        and response.headers.get("content-type") == "application/json"
        and case.method != "HEAD"
    ):
        assert len(response.content) < 4096


def capped(body: dict[str, Any], target: Served, *, name_model: bool) -> None:
    """A request that could run for long is made short; a good one names the model that is there."""
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], MAX_TOKENS)
    if name_model and "model" in body:
        body["model"] = target.model
