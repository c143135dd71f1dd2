"""Ollama's API over the bare wire: on each engine, and what a scripted model says, as its docs have it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from drivetrain.core.errors import EngineFailed
from server.conftest import can
from server.serving import Served, fake, says, serving, thoughtful

CHAT, GENERATE = "/api/chat", "/api/generate"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź \\"1\\" 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
CALLED = [
    {"name": "get_weather", "arguments": {"city": 'Łódź "1" 🙂'}},
    {"name": "now", "arguments": {}},
]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
USER = {"role": "user", "content": "How is the weather in Łódź?"}
END = {
    "done", "done_reason", "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
    "eval_count", "eval_duration",
}  # fmt: skip


def body(served: Served, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [USER]} if path == CHAT else {"prompt": USER["content"]}
    options = {"temperature": 0, "num_predict": 400, **fields.pop("options", {})}
    return {"model": served.model, **asked, "options": options, **fields}


def ask(served: Served, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    status, document = served.post(path, body(served, path, stream=False, **fields))
    assert status == 200, document
    return document


def streamed(served: Served, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    """A stream is what comes if nothing is said of it."""
    status, headers, data = served.request("POST", path, body(served, path, **fields))
    assert (status, headers["content-type"]) == (200, "application/x-ndjson"), data
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().splitlines()]


def joined(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One document from a stream, as a client joins it."""
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole: dict[str, Any] = dict(lines[-1])
    if "message" in whole:
        parts = [line["message"] for line in lines]
        message: dict[str, Any] = {"role": "assistant", "content": "".join(part["content"] for part in parts)}
        if thinking := "".join(part.get("thinking", "") for part in parts):
            message["thinking"] = thinking
        if calls := [call for part in parts for call in part.get("tool_calls", ())]:
            message["tool_calls"] = calls
        return whole | {"message": message}
    return whole | {"response": "".join(line["response"] for line in lines)}


def lasting(document: dict[str, Any]) -> dict[str, Any]:
    """Without times and made-up ids."""
    return {
        name: [call["function"] for call in value] if name == "tool_calls" else value
        for name, value in (document.get("message") or {"content": document["response"]}).items()
    } | {name: document[name] for name in ("model", "done_reason", "prompt_eval_count", "eval_count")}


def refused(served: Served, fields: dict[str, Any], status: int = 400, path: str = CHAT) -> dict[str, Any]:
    got, document = served.post(path, fields)
    assert got == status, document
    assert isinstance(document["error"], str)
    return document


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_text_on_each_engine(served: Served, path: str) -> None:
    """Whole and streamed; the same text as from a chat with the same prompt."""
    system = {"role": "system", "content": "Be brief."}
    more: Any = {"messages": [system, USER]} if path == CHAT else {"system": "Be brief."}
    whole = ask(served, path, options={"num_predict": 8}, **more)
    lines = streamed(served, path, options={"num_predict": 8}, **more)
    messages: Any = [system, USER]
    chat = served.client.chat.completions.create(model=served.model, messages=messages, max_tokens=8, temperature=0)
    assert chat.usage is not None
    assert lasting(whole) == lasting(joined(lines))
    assert lasting(whole)["content"] == chat.choices[0].message.content
    assert whole["prompt_eval_count"] == chat.usage.prompt_tokens
    assert whole["eval_count"] == chat.usage.completion_tokens
    assert (whole["done_reason"] == "length") == (chat.choices[0].finish_reason == "length")


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_the_last_line_tells_times(path: str) -> None:
    with says("one two three", ids_per_step=2) as served:
        for end in (ask(served, path), streamed(served, path)[-1]):
            assert set(end) >= END
            assert all(isinstance(end[name], int) and end[name] >= 0 for name in END if name.endswith("duration"))
            assert end["total_duration"] >= end["prompt_eval_duration"] + end["eval_duration"]
            assert end["created_at"].endswith("Z")
            assert datetime.fromisoformat(end["created_at"]).tzinfo is not None
            assert end["done_reason"] == "stop"


@pytest.mark.parametrize("ids_per_step", [1, 3, 50])
def test_calls_whole_and_streamed(ids_per_step: int) -> None:
    with says(CALLS, ids_per_step=ids_per_step) as served:
        whole = ask(served, tools=TOOLS)
        lines = streamed(served, tools=TOOLS)
    assert whole["message"]["content"] == "Let me see."
    assert [call["function"] for call in whole["message"]["tool_calls"]] == CALLED
    assert lasting(joined(lines)) == lasting(whole)
    assert sum("tool_calls" in line["message"] for line in lines) == 2


@pytest.mark.parametrize(
    "results",
    [
        [{"role": "tool", "content": "sunny"}, {"role": "tool", "content": "noon"}],
        [
            {"role": "tool", "content": "noon", "tool_name": "now"},
            {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
        ],
    ],
)
@pytest.mark.parametrize("with_ids", [True, False])
def test_the_round_trip_of_calls(results: list[dict[str, Any]], with_ids: bool) -> None:
    with says(CALLS) as served:
        first = ask(served, tools=TOOLS)
        if not with_ids:
            first["message"]["tool_calls"] = [{"function": call["function"]} for call in first["message"]["tool_calls"]]
        again = ask(served, tools=TOOLS, messages=[USER, first["message"], *results])
        assert again["prompt_eval_count"] > first["prompt_eval_count"]
        wrong = [USER, first["message"], {"role": "tool", "content": "x", "tool_name": "nothing"}]
        error = refused(served, body(served, tools=TOOLS, messages=wrong))
    assert error["param"] == "messages[2].tool_name"


def test_thinking_is_apart() -> None:
    with serving(thoughtful(text="<think>\nEasy.\n</think>\n\nParis", ids_per_step=3)) as served:
        whole = ask(served, think=True)
        lines = streamed(served)
        generated = ask(served, GENERATE)
        error = refused(served, body(served, think=False))
        ask(served, messages=[USER, whole["message"], USER])
        shown = served.post("/api/show", {"model": served.model})[1]
    assert whole["message"] == {"role": "assistant", "content": "Paris", "thinking": "Easy."}
    assert joined(lines)["message"] == whole["message"]
    assert (generated["response"], generated["thinking"]) == ("Paris", "Easy.")
    assert error["param"] == "think"
    assert "thinking" in shown["capabilities"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_schema_on_each_engine(served: Served, path: str) -> None:
    if not can(served, "response_format"):
        pytest.skip("this engine honours no schema")
    schema = {
        "type": "object",
        "properties": {"old": {"type": "boolean"}},
        "required": ["old"],
        "additionalProperties": False,
    }
    said = lasting(ask(served, path, format=schema, options={"num_predict": 60}))
    assert isinstance(json.loads(said["content"])["old"], bool)


def test_the_options_are_those_of_a_chat(served: Served) -> None:
    if not can(served, "top_k", "seed"):
        pytest.skip("this engine samples nothing")
    options = {"temperature": 1.0, "seed": 7, "top_k": 20, "top_p": 0.9, "repeat_penalty": 1.1, "num_predict": 8}
    sampled: Any = {"seed": 7, "temperature": 1.0, "top_p": 0.9, "max_tokens": 8}
    chat = served.client.chat.completions.create(
        model=served.model,
        messages=[{"role": "user", "content": str(USER["content"])}],
        extra_body={"top_k": 20, "repetition_penalty": 1.1},
        **sampled,
    )
    idle = {"num_gpu": 99, "use_mmap": True, "num_keep": 4, "mirostat": 0, "mirostat_tau": 5.0, "repeat_last_n": -1}
    answer = ask(served, options={**options, **idle, "num_ctx": 100_000}, keep_alive="5m")
    assert answer["message"]["content"] == chat.choices[0].message.content


def test_a_raw_prompt_is_the_whole_prompt(served: Served) -> None:
    whole = ask(served, GENERATE, prompt="Once upon", raw=True, options={"num_predict": 5})
    plain = served.client.completions.create(model=served.model, prompt="Once upon", max_tokens=5, temperature=0)
    assert plain.usage is not None
    assert whole["response"] == plain.choices[0].text
    assert whole["prompt_eval_count"] == plain.usage.prompt_tokens


def test_stops_limits_and_logprobs() -> None:
    with says("one two three four") as served:
        stopped = ask(served, options={"stop": ["three"]})
        cut = ask(served, options={"num_predict": 5})
        full = ask(served, options={"num_predict": -2})
        whole = ask(served, logprobs=True, top_logprobs=2)
        lines = streamed(served, logprobs=True, top_logprobs=2)
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("one two ", "stop")
    assert (cut["done_reason"], full["done_reason"]) == ("length", "stop")
    told = [entry for line in lines for entry in line.get("logprobs", ())]
    assert told == whole["logprobs"]
    assert "".join(entry["token"] for entry in told) == "one two three four"
    assert all(set(entry) == {"token", "logprob", "bytes", "top_logprobs"} for entry in told)


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (CHAT, {"messages": []}, "load"),
        (CHAT, {}, "load"),
        (CHAT, {"keep_alive": 0}, "unload"),
        (GENERATE, {}, "load"),
        (GENERATE, {"prompt": "", "keep_alive": "10m"}, "load"),
        (GENERATE, {"keep_alive": 0, "stream": False}, "unload"),
    ],
)
def test_without_a_prompt_the_model_is_loaded(unharmed: Served, path: str, fields: dict[str, Any], reason: str) -> None:
    status, document = unharmed.post(path, {"model": unharmed.model, **fields})
    assert (status, document["done"], document["done_reason"]) == (200, True, reason)
    assert document.get("response", document.get("message", {}).get("content")) == ""
    assert unharmed.post(path, {"model": "nobody", **fields})[0] == 404


def test_a_receipt_comes_with_the_end() -> None:
    with says("Fine.") as served:
        whole = ask(served, receipt=True)
        lines = streamed(served, receipt=True)
        assert "receipt" not in ask(served)
    assert [line["done"] for line in lines if "receipt" in line] == [True]
    assert lines[-1]["receipt"]["model"] == whole["receipt"]["model"]


def test_an_engine_that_fails_in_the_middle() -> None:
    with says("one two three four", fault=EngineFailed("it broke"), fault_at_step=5) as served:
        last = streamed(served)[-1]
    assert (last["error"], last["code"]) == ("it broke", "engine_error")


def test_the_models_as_they_are_listed(served: Served) -> None:
    _, _, listed = served.request("GET", "/api/tags")
    _, _, running = served.request("GET", "/api/ps")
    status, shown = served.post("/api/show", {"model": f"{served.model}:latest"})
    assert status == 200, shown
    for document in (listed, running):
        (model,) = json.loads(document)["models"]
        assert model["name"] == model["model"] == served.model
        assert set(model["details"]) >= {"format", "family", "families", "parameter_size", "quantization_level"}
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == served.worker.capabilities.context_length
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert not {"thinking", "vision"} & set(shown["capabilities"])
    assert json.loads(served.request("GET", "/api/version")[2])["version"]


def test_vectors(served: Served) -> None:
    if not served.worker.capabilities.embeddings:
        error = refused(served, {"model": served.model, "input": "x"}, path="/api/embed")
        assert error["param"] == "input"
        return
    theirs = served.client.embeddings.create(model=served.model, input=["one", "two"], encoding_format="float")
    status, document = served.post(
        "/api/embed",
        {"model": served.model, "input": ["one", "two"], "truncate": True, "options": {"num_ctx": 64}},
    )
    assert status == 200, document
    assert document["embeddings"] == [pytest.approx(one.embedding) for one in theirs.data]
    assert document["prompt_eval_count"] == theirs.usage.prompt_tokens
    one = served.post("/api/embeddings", {"model": served.model, "prompt": "one"})[1]
    assert one["embedding"] == pytest.approx(document["embeddings"][0], abs=1e-5)
    assert served.post("/api/embed", {"model": served.model, "input": []})[1]["embeddings"] == []
    long = refused(served, {"model": served.model, "input": "x " * 90_000, "truncate": True}, path="/api/embed")
    assert long["param"] == "truncate"


@pytest.mark.parametrize(
    ("name", "status"), [("fake", 200), ("fake:latest", 200), ("fake:1b", 404), ("fake:", 404), (":latest", 404)]
)
def test_a_tag_is_part_of_a_name(unharmed: Served, name: str, status: int) -> None:
    got, document = unharmed.post(CHAT, {**body(unharmed, options={"num_predict": 1}, stream=False), "model": name})
    assert got == status, document
    assert document.get("model", name) == name


def test_models_are_fetched_by_a_command(unharmed: Served) -> None:
    status, document = unharmed.post("/api/pull", {"model": f"{unharmed.model}:latest"})
    assert (status, document) == (200, {"status": "success"})
    for method, path in [
        ("POST", "pull"),
        ("POST", "push"),
        ("POST", "create"),
        ("POST", "copy"),
        ("DELETE", "delete"),
    ]:
        got, _, data = unharmed.request(method, f"/api/{path}", {"model": "other"})
        assert got == 404
        assert "drivetrain pull" in json.loads(data)["error"]


def test_errors_are_those_of_the_api() -> None:
    with serving(fake(text="Fine."), api_keys=("sesame",)) as served:
        missing, _, data = served.request("POST", CHAT, body(served))
        _, _, large = served.request("POST", CHAT, b"x" * (33 * 2**20), {"authorization": "Bearer sesame"})
        _, _, unknown = served.request("POST", "/api/nothing", {}, {"authorization": "Bearer sesame"})
        _, _, other = served.request("POST", "/api/worker/generate", {}, {"authorization": "Bearer sesame"})
    assert missing == 401
    for told in (data, large, unknown):
        assert isinstance(json.loads(told)["error"], str)
    assert json.loads(other)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
        ({"messages": [{"role": "user", "content": "x", "images": [""]}]}, "messages[0].images[0]"),
        ({"messages": [{"role": "user", "content": "x", "images": "x"}]}, "messages[0].images"),
        ({"messages": [{"role": "user", "content": "x", "images": [PNG]}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, USER]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "\ud800"}}}]},
                    USER,
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]}, "messages[0].tool_call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f", "colour": 1}}]}, "tools[0].function.colour"),
        ({"format": "yaml"}, "format"),
        ({"format": []}, "format"),
        ({"think": "a lot"}, "think"),
        ({"think": 1}, "think"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"shift": True}, "shift"),
        ({"colour": 1}, "colour"),
        ({"temperature": 1}, "temperature"),
        ({"options": []}, "options"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"num_ctx": 0}}, "options.num_ctx"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"num_keep": 24}}, "options.num_keep"),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline"),
        ({"options": {"stop": ["x"] * 17}}, "options.stop"),
        ({"options": {"max_tokens": 1}}, "options.max_tokens"),
        ({"options": {"colour": 1}}, "options.colour"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(unharmed: Served, fields: dict[str, Any], param: str) -> None:
    assert refused(unharmed, {**body(unharmed), **fields})["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"suffix": "x", "system": "x"}, "system"),
        ({"suffix": 5}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1]}, "context"),
        ({"raw": True, "system": "x"}, "system"),
        ({"raw": True, "think": True}, "think"),
        ({"prompt": 1}, "prompt"),
        ({"images": [PNG]}, "prompt"),
        ({"messages": [USER]}, "messages"),
    ],
)
def test_what_a_prompt_cannot_have(unharmed: Served, fields: dict[str, Any], param: str) -> None:
    assert refused(unharmed, {**body(unharmed, GENERATE), **fields}, path=GENERATE)["param"] == param


def test_values_that_ask_for_nothing(unharmed: Served) -> None:
    nothing = {"suffix": "", "template": "", "context": [], "system": "", "images": [], "format": "", "raw": False}
    ask(unharmed, GENERATE, prompt="x", raw=True, think=False)
    ask(unharmed, GENERATE, **nothing, think=None, keep_alive=-1, options={"seed": -1, "num_predict": -1, "top_k": 0})
