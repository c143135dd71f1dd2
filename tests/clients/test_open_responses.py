"""Every event and body of `/v1/responses` against the schemas of the Open Responses document.

They are `openresponses_types`, which is generated from that document. What we send beyond it is the field `receipt`,
when a request asks for one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from openresponses_types import types as document
from pydantic import BaseModel, Field, create_model

from clients.asked import LIMIT, QUESTION, Alarm, Ticket
from clients.conftest import MODEL, Scripted
from clients.wire import held_to, posted, streamed

PATH = "/v1/responses"
ANSWER = {"model": MODEL, "input": QUESTION, "max_output_tokens": LIMIT, "temperature": 0}
TOOLS = [
    {"type": "function", "name": kind.__name__, "parameters": kind.model_json_schema(), "strict": True}
    for kind in (Alarm, Ticket)
]
SCHEMA = {"type": "json_schema", "name": "ticket", "schema": Ticket.model_json_schema(), "strict": True}
ASKED: dict[str, dict[str, Any]] = {
    "text": {"instructions": "Be brief.", "max_output_tokens": 12, "metadata": {"a": "b"}, "top_p": 0.9},
    "incomplete": {"max_output_tokens": 2, "ignore_eos": True},
    "logprobs": {"max_output_tokens": 4, "top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "structured": {"text": {"format": SCHEMA}},
    "any JSON": {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 8},
    "a tool": {"tools": TOOLS, "tool_choice": {"type": "function", "name": "Alarm"}, "parallel_tool_calls": False},
    "some tool": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tool_calls": 1},
    "allowed tools": {
        "tools": TOOLS,
        "tool_choice": {
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "Ticket"}]
        },
        "parallel_tool_calls": False,
    },
    "a call that is cut off": {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 6},
    "every field that is returned": {
        "max_output_tokens": 4,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "truncation": "auto", "store": False, "background": False,
        "safety_identifier": "me", "prompt_cache_key": "key", "metadata": {}, "reasoning": {}, "service_tier": "auto",
    },
}  # fmt: skip


def _mended() -> type[BaseModel]:
    """The document has `schema` as an object or null; the package's generator made of it a field that is only null."""
    bases = {kind.__name__: kind for kind in (document.ResponseResource, document.TextField)}
    schema = create_model(
        "JsonSchema", __base__=document.JsonSchemaResponseFormat,
        schema_=(dict[str, Any] | None, Field(alias="schema")),
    )  # fmt: skip
    formats = document.TextResponseFormat | document.JsonObjectResponseFormat | schema
    text = create_model("Text", __base__=bases["TextField"], format=(formats, ...))
    resource: type[BaseModel] = create_model("Resource", __base__=bases["ResponseResource"], text=(text, ...))
    return resource


RESPONSE = _mended()


def _events() -> dict[str, type[BaseModel]]:
    """Each class of an event by its type, with our mended response in those that have one."""
    found: dict[str, type[BaseModel]] = {}
    for class_name, kind in vars(document).items():
        if not class_name.endswith("StreamingEvent"):
            continue
        (name,) = kind.model_fields["type"].annotation
        whole = "response" in kind.model_fields
        found[str(name)] = create_model(kind.__name__, __base__=kind, response=(RESPONSE, ...)) if whole else kind
    return found


EVENTS = _events()


def check_stream(sent: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Valid, numbered without a gap, each item opened once, in order, and closed; the last response has them all."""
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    for name, data in sent:
        held_to(EVENTS[name], data)
    names = [name.removeprefix("response.") for name, _ in sent]
    assert names[:2] == ["created", "in_progress"]
    opened = [data["output_index"] for name, data in sent if name == "response.output_item.added"]
    assert opened == list(range(len(opened)))
    done = [data["item"] for name, data in sent if name == "response.output_item.done"]
    assert sent[-1][1]["response"]["output"] == done[: len(sent[-1][1]["response"]["output"])]
    within: int | None = None
    for name, data in sent:
        if name == "response.output_item.added":
            assert within is None
            within = data["output_index"]
        elif "output_index" in data:
            assert data["output_index"] == within
            within = None if name == "response.output_item.done" else within
    return names


@pytest.mark.shows("Open Responses", "every body and event valid: text, tools, structured, cut off, logprobs")
@pytest.mark.parametrize("case", ASKED)
def test_what_is_sent_is_what_the_document_has(url: str, case: str) -> None:
    base = url.removesuffix("/v1")
    body = {**ANSWER, **ASKED[case]}
    whole = json.loads(posted(base, PATH, **body))
    held_to(RESPONSE, whole)
    sent = streamed(base, PATH, **body)
    names = check_stream(sent)
    last = sent[-1][1]["response"]
    assert names[-1] == last["status"] == whole["status"]
    assert [item["type"] for item in last["output"]] == [item["type"] for item in whole["output"]]
    assert set(last) == set(whole)


def test_a_receipt_is_all_that_is_sent_beyond_the_document(url: str) -> None:
    base = url.removesuffix("/v1")
    whole = json.loads(posted(base, PATH, **ANSWER | {"max_output_tokens": 4}, receipt=True))
    assert whole.pop("receipt")
    held_to(RESPONSE, whole)


@pytest.mark.shows("Open Responses", "every body and event valid: reasoning, several items, a failure in mid-stream")
def test_reasoning_and_calls(scripted: Scripted) -> None:
    base, model = scripted["reasons"]
    body = {**ANSWER, "model": model, "tools": TOOLS, "include": ["reasoning.encrypted_content"]}
    whole = json.loads(posted(base, PATH, **body))
    held_to(RESPONSE, whole)
    names = check_stream(streamed(base, PATH, **body))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert {"reasoning.delta", "reasoning.done", "output_text.delta", "function_call_arguments.delta"} < set(names)


@pytest.mark.shows("Open Responses", "every body and event valid: reasoning, several items, a failure in mid-stream")
def test_a_failure_in_mid_stream(scripted: Scripted) -> None:
    base, model = scripted["fails"]
    sent = streamed(base, PATH, **{**ANSWER, "model": model})
    for name, data in sent:
        held_to(EVENTS[name], data)
    assert [name for name, _ in sent[-2:]] == ["error", "response.failed"]
