"""Requests made up from the OpenAPI document, good and bad: no 5xx but the documented 503 and 504."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

import drivetrain
from drivetrain.server.endpoints import openapi
from drivetrain.server.parse.bodies import BODIES
from server.serving import Served, fake, serving

MAX_TOKENS = 32
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

session = requests.Session()
session.trust_env = False  # which would look for proxies and passwords at each of thirty thousand requests
GOOD_ONES, BAD_ONES = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def target() -> Iterator[Served]:
    with serving(fake({"max_timeout_s": 5.0}, text="A short answer. ", max_concurrency=512)) as made:
        yield made
        made.settle()
        made.works()


@pytest.fixture(scope="module")
def real(checkpoint: Callable[[str], Path]) -> Iterator[Served]:
    """An engine that computes, with weights that are small and random."""
    weights = checkpoint("llama")
    with serving(
        lambda: drivetrain.Worker.open(weights, timeout_s=5.0, max_timeout_s=5.0, max_tokens=MAX_TOKENS)
    ) as made:
        yield made
        made.settle()
        made.works()


def generated(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def operations(*modes: schemathesis.GenerationMode) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(openapi.build())
    schema.config.generation.update(modes=list(modes))
    found = {}
    for one in schema.get_all_operations():
        assert isinstance(one, Ok), one
        found[one.ok().label] = one.ok()
    return found


OPERATIONS = operations(GOOD_ONES, BAD_ONES)
GOOD_OPERATIONS = operations(GOOD_ONES)
"""What is refused reaches no engine: bad ones are sent to one server."""


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_operation(label: str, target: Served) -> None:
    try_out(OPERATIONS[label], target, 60)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("label", GOOD_OPERATIONS)
def test_every_operation_of_a_real_engine(label: str, real: Served) -> None:
    try_out(GOOD_OPERATIONS[label], real, 40)


def try_out(operation: Any, target: Served, max_examples: int) -> None:
    """What `schema.parametrize()` does, but here and not as tests are collected: making the cases takes seconds, and
    each test process collects every file."""

    @generated(max_examples)
    def every(case: Any) -> None:
        holds(case, target)

    build_operation_test(
        config=operation.schema.config,
        operation=operation,
        test_func=every,
        given_kwargs={},
        feedback=FeedbackSources(),
    )()


SIZES = st.sampled_from([60_000, 70_000, 300_000, 3_000_000])
ITEMS = st.sampled_from(
    [
        "1",
        "77",
        "-1",
        "1.5",
        "null",
        "true",
        '"x"',
        '"\\ud800"',
        '""',
        "[]",
        "[1]",
        "{}",
        "1e999",
        "NaN",
        "9" * 50,
        "[[1],1]",
        '{"role":"user"}',
        '{"role":"user","content":"x"}',
        '{"type":"text","text":"x"}',
    ]
)
POSTS = {
    "ChatBody": "/v1/chat/completions",
    "CompletionBody": "/v1/completions",
    "EmbeddingBody": "/v1/embeddings",
    "RerankBody": "/v1/rerank",
    "ScoreBody": "/score",
    "TokenizeBody": "/tokenize",
    "DetokenizeBody": "/detokenize",
}
GOOD: dict[str, dict[str, Any]] = {
    "ChatBody": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "CompletionBody": {"prompt": "x", "max_tokens": 1},
    "EmbeddingBody": {"input": "x"},
    "RerankBody": {"query": "x", "documents": ["x"]},
    "ScoreBody": {"text_1": "x", "text_2": "x"},
    "TokenizeBody": {"prompt": "x"},
    "DetokenizeBody": {"tokens": [1]},
}
FIELDS = [(body.name, name) for body in BODIES if body.name in POSTS for name in body.fields]


@pytest.mark.slow
@given(where=st.sampled_from(FIELDS), item=ITEMS, size=SIZES, way=st.sampled_from(["list", "deep", "text", "keys"]))
@generated(150)
def test_large_bodies_on_a_real_engine(where: tuple[str, str], item: str, size: int, way: str, real: Served) -> None:
    body, name = where
    count = size // (len(item) + 1)
    value = {
        "list": lambda: f"[{','.join([item] * count)}]",
        "deep": lambda: "[" * (count // 2) + item + "]" * (count // 2),
        "text": lambda: json.dumps("x" * size),
        "keys": lambda: "{" + ",".join(f'"{n}":{item}' for n in range(size // (len(item) + 9))) + "}",
    }[way]()
    rest = json.dumps({"model": real.model, **{key: one for key, one in GOOD[body].items() if key != name}})
    status, _, answer = real.request("POST", POSTS[body], f'{rest[:-1]},"{name}":{value}}}'.encode())
    assert status < 500 or status in {503, 504}, answer
    assert status == 200 or len(answer) < 4096


def holds(case: Any, target: Served) -> None:
    negative = case.meta is not None and case.meta.generation.mode.is_negative
    if isinstance(case.body, dict):
        capped(case.body, target, name_model=not negative)
    response = case.call(base_url=target.base, session=session, timeout=30)
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
