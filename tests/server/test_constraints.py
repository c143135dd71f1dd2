"""Structured output through the official client, on the fake: whole, streamed, several choices, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema_rs
import openai
import pydantic
import pytest

from server.serving import Served, fake, serving

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 8},
        "open": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "open", "sizes"],
    "additionalProperties": False,
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(fake()) as made:
        yield made
        made.settle()
        made.works()


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "door", "schema": schema, **more}}


def chat(served: Served, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        model=served.model, messages=[{"role": "user", "content": "x"}], max_tokens=200, **fields
    )


def complete(served: Served, **fields: Any) -> Any:
    return served.client.completions.create(model=served.model, prompt="x", max_tokens=200, **fields)


def check(text: str | None) -> None:
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(text or "")), text


@pytest.mark.parametrize("strict", [True, False])
def test_a_schema(served: Served, strict: bool) -> None:
    choice = chat(served, response_format=json_schema(SCHEMA, strict=strict)).choices[0]
    assert choice.finish_reason == "stop"
    check(choice.message.content)


def test_streamed(served: Served) -> None:
    whole = chat(served, response_format=json_schema(SCHEMA)).choices[0].message.content
    chunks = list(chat(served, response_format=json_schema(SCHEMA), stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole
    check(text)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_choices(served: Served) -> None:
    choices = chat(served, response_format=json_schema(SCHEMA), n=3).choices
    assert len(choices) == 3
    for choice in choices:
        check(choice.message.content)


def test_any_object(served: Served) -> None:
    assert json.loads(chat(served, response_format={"type": "json_object"}).choices[0].message.content) == {}


def test_a_schema_beside_the_type(served: Served) -> None:
    check(chat(served, response_format={"type": "json_object", "schema": SCHEMA}).choices[0].message.content)


class Door(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    state: Literal["open", "shut"]
    hinges: list[int] = pydantic.Field(max_length=2)


def test_parsed_into_a_model(served: Served) -> None:
    answer = served.client.chat.completions.parse(
        model=served.model, messages=[{"role": "user", "content": "x"}], max_tokens=200, response_format=Door
    )
    door = answer.choices[0].message.parsed
    assert isinstance(door, Door)
    assert door.state in {"open", "shut"}


def test_parsed_into_a_model_as_it_streams(served: Served) -> None:
    with served.client.chat.completions.stream(
        model=served.model, messages=[{"role": "user", "content": "x"}], max_tokens=200, response_format=Door
    ) as stream:
        for _ in stream:
            pass
        door = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(door, Door)


def test_cut_by_the_limit(served: Served) -> None:
    """The official client tells it by a type of its own."""
    with pytest.raises(openai.LengthFinishReasonError):
        served.client.chat.completions.parse(
            model=served.model, messages=[{"role": "user", "content": "x"}], max_tokens=5, response_format=Door
        )


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[ab]{3}-[0-9]"}, "[ab]{3}-[0-9]"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"choice": ["alpha", "beta"]}, "alpha|beta"),
        ({"guided_choice": ["alpha", "beta"]}, "alpha|beta"),
        ({"structured_outputs": {"choice": ["alpha"]}}, "alpha"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"guided_grammar": 'start: "yes" | "no"'}, "yes|no"),
        ({"structured_outputs": {"grammar": 'root ::= [x-z] "!"'}}, "[x-z]!"),
        ({"guided_json": {"enum": ["left", "right"]}}, '"(left|right)"'),
        ({"guided_json": '{"const": 7}'}, "7"),
        ({"json_schema": {"type": "boolean"}}, "true|false"),
        ({"structured_outputs": {"json": {"type": "null"}}}, "null"),
        ({"structured_outputs": {"json_object": True}}, "{.*}"),
        ({"guided_json_object": True}, "{.*}"),
    ],
)
def test_other_spellings(served: Served, fields: dict[str, Any], pattern: str) -> None:
    answers = [
        chat(served, extra_body=fields).choices[0].message.content,
        complete(served, extra_body=fields).choices[0].text,
        "".join(chunk.choices[0].text for chunk in complete(served, extra_body=fields, stream=True)),
    ]
    for text in answers:
        assert re.fullmatch(pattern, text), text
    assert len(set(answers)) == 1


def test_several_prompts(served: Served) -> None:
    answer = served.client.completions.create(
        model=served.model, prompt=["x", "y"], n=2, max_tokens=50, extra_body={"choice": ["alpha", "beta"]}
    )
    assert {choice.text for choice in answer.choices} <= {"alpha", "beta"}
    assert len(answer.choices) == 4


def deep(levels: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(levels - 1)} if levels else {}


def wide(num: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(num)}}


def product() -> dict[str, Any]:
    """Nine times one of five: two million ways."""
    return {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(5)]} for i in range(9)]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": json_schema({"not": {"pattern": "a"}})}, "response_format", "not"),
        ({"response_format": json_schema({"type": "nonsense"})}, "response_format", "nonsense"),
        ({"response_format": json_schema(product())}, "response_format", "too large"),
        ({"guided_json": {"type": "integer", "multipleOf": 999_983}}, "guided_json", "multipleOf of 999983"),
        ({"json_schema": wide(3000)}, "json_schema", "make some of them required"),
        ({"json_schema": {"$ref": "#"}}, "json_schema", "no text satisfies it"),
        ({"response_format": json_schema(deep(100))}, None, "nested more than 64 deep"),
        ({"guided_json": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "guided_json", "nested too deeply"),
        ({"guided_json": json.dumps(deep(150))}, "guided_json", "cannot be honoured"),
        ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs", "look-ahead"),
        ({"guided_regex": "["}, "guided_regex", "unclosed"),
        ({"grammar": "root ::= ("}, "grammar", "GBNF"),
        ({"guided_grammar": "start: a\na: a"}, "guided_grammar", "no text satisfies it"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "cannot be combined"),
        ({"response_format": {"type": "json"}}, "response_format.type", "one of text"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refused(served: Served, fields: dict[str, Any], param: str | None, words: str, stream: bool) -> None:
    """By the name that the client sent, before a stream begins; the next request works."""
    for path, prompt in ((CHAT, {"messages": [{"role": "user", "content": "x"}]}), (COMPLETIONS, {"prompt": "x"})):
        error = served.refused(path, {"model": served.model, **prompt, **fields, "stream": stream})
        assert error["param"] == param
        assert words in error["message"]
        assert "constraint" not in error["message"]
        if param:
            assert error["message"].startswith(param)
    assert chat(served, extra_body={"choice": ["still here"]}).choices[0].message.content == "still here"


def test_a_large_schema(served: Served) -> None:
    """100 kB and 3,000 properties pass within the defaults, on their way and as a grammar."""
    groups = [{f"property_{g}_{i}": {"type": "string"} for i in range(300)} for g in range(10)]
    schema = {
        "type": "object",
        "properties": {f"group_{g}": {"type": "object", "properties": group} for g, group in enumerate(groups)},
        "required": ["group_7"],
    }
    assert len(json.dumps(schema)) > 100_000
    text = chat(served, response_format=json_schema(schema)).choices[0].message.content
    answer = json.loads(text)
    assert answer["group_7"] == {}
    assert jsonschema_rs.is_valid(schema, answer)


def test_too_much_at_a_place_deep_inside(served: Served) -> None:
    """Where the trial does not get, it is found when the answer does: a fault of the request all the same."""
    inner = {"type": "array", "items": wide(600), "minItems": 1}
    text = {"type": "string", "minLength": 100, "maxLength": 100}
    schema = {"type": "object", "properties": {"text": text, "inner": inner}, "required": ["text", "inner"]}
    prompt = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200}
    error = served.refused(CHAT, {"model": served.model, **prompt, "guided_json": schema})
    assert error["param"] == "guided_json"
    assert "make some of them required" in error["message"]
    chunks = served.events(CHAT, {"model": served.model, **prompt, "guided_json": schema})
    assert "make some of them required" in chunks[-2]["error"]["message"]
    assert chunks[-1] == "[DONE]"


def test_what_the_model_shows(served: Served) -> None:
    status, _, data = served.request("GET", f"/v1/models/{served.model}")
    assert status == 200
    parameters = json.loads(data)["capabilities"]["parameters"]
    for name in ("response_format", "structured_outputs", "json_schema", "guided_json", "regex", "choice", "grammar"):
        assert parameters[name]["endpoints"] == ["chat", "completions"]
        assert parameters[name]["description"]
    assert "constraint" not in parameters
