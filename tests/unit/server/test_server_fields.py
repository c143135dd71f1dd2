"""What a table of fields judges and what its JSON schema says are the same, for whatever value comes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.request import GenerateRequest
from drivetrain.server.parse.bodies import BODIES
from drivetrain.server.parse.body import Body, Field, ignored_header
from drivetrain.server.parse.custom_tools import LARK_TYPE, REGEX_TYPE
from drivetrain.server.parse.messages import MESSAGES
from drivetrain.server.parse.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from drivetrain.server.parse.responses import RESPONSE
from drivetrain.server.parse.schema import CHAT, COMPLETION
from drivetrain.server.parse.translate import chat_request, completion_request, honoured
from drivetrain.text.grammar.brackets import bar_outside
from drivetrain.text.grammar.regular import regex_of_lark

NOT_A_WHOLE_FLOAT = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer())
"""JSON Schema takes 1.0 for an integer; here it is none."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | NOT_A_WHOLE_FLOAT | TEXT
NAMES = [
    "role", "content", "type", "text", "image_url", "url", "include_usage", "1", "05", "refusal", "tool_calls",
    "function_call", "json_schema", "schema", "json", "regex", "choice", "function", "arguments", "id", "tool_call_id",
    "reasoning_content",
]  # fmt: skip
KEYS = TEXT | st.sampled_from(NAMES)
ANYTHING = st.recursive(
    LEAVES, lambda items: st.lists(items, max_size=3) | st.dictionaries(KEYS, items, max_size=3), max_leaves=8
)


def near(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the schema takes, and some that it only nearly takes."""
    if "anyOf" in schema:
        return st.one_of([near(option) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    match schema.get("type"):
        case "integer" | "number":
            low = schema["minimum"] if "minimum" in schema else schema["exclusiveMinimum"]
            step = 1 if schema["type"] == "integer" else 0.25
            edges = [edge + by for edge in (low, schema["maximum"]) for by in (-step, 0, step)]
            return st.sampled_from(edges)
        case "string":
            return TEXT | st.integers(0, 300).map(lambda n: "x" * n)
        case "boolean":
            return st.booleans()
        case "array":
            item = near(schema["items"])
            return st.lists(item | LEAVES, max_size=3) | st.lists(item, max_size=3)
        case "object":
            told = schema.get("properties", {})
            if not told:
                return st.dictionaries(KEYS, near(schema.get("additionalProperties") or {}) | LEAVES, max_size=3)
            parts = {name: near(one) for name, one in told.items()}
            return st.fixed_dictionaries(parts) | st.fixed_dictionaries({}, optional=parts)
    return ANYTHING


FIELDS = [
    (f"{body.name}.{name}", field)
    for i, body in enumerate(BODIES)
    for name, field in body.fields.items()
    if not any(field is earlier for before in BODIES[:i] for earlier in before.fields.values())
]
"""Each once, in the first body that has it."""


@pytest.mark.parametrize(("name", "field"), FIELDS, ids=[name for name, _ in FIELDS])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_judge_and_the_schema_agree(name: str, field: Field, data: st.DataObject) -> None:
    values, told = judged(name)
    value = data.draw(values)
    assert accepted(Body("One", {"it": field}), {"it": value}) == told.is_valid(value), value


@cache
def judged(name: str) -> tuple[st.SearchStrategy[Any], Any]:
    """Values for the field, and what its schema says of them: made once, for each example would take as long again."""
    schema = dict(FIELDS)[name].schema()
    return ANYTHING | near(schema), validator(schema)


def validator(schema: dict[str, Any]) -> Any:
    """What a text holds inside is told by its media type, which a validator only judges as a format."""
    spelled = json.dumps(schema).replace('"contentMediaType"', '"format"')
    return jsonschema_rs.validator_for(json.loads(spelled), validate_formats=True, formats=FORMATS)


def is_regex(text: str) -> bool:
    return bar_outside(text) is not None


def is_lark(text: str) -> bool:
    try:
        regex_of_lark(text)
    except InvalidRequest:
        return False
    return True


def is_schema(text: str) -> bool:
    try:
        return isinstance(json.loads(text), (dict, bool))
    except ValueError:
        return False


FORMATS = {"application/schema+json": is_schema, LARK_TYPE: is_lark, REGEX_TYPE: is_regex}


def accepted(body: Body, given: dict[str, Any]) -> bool:
    try:
        body.judge(given, lenient=False)
    except InvalidRequest as exc:
        return not (len(exc.message) < 1000 and exc.param)  # then it is no refusal that anybody could use
    return True


@given(value=ANYTHING, name=st.sampled_from(sorted(PARAMETERS)))
def test_a_request_made_by_hand_is_judged_as_well(value: Any, name: str) -> None:
    kind = PARAMETERS[name].kind
    try:
        made = GenerateRequest(**{name: value})
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            kind.judge(name, value)
        return
    again = GenerateRequest(**made.given())
    assert again == made == GenerateRequest.of_judged(made.given()) == made.having(**made.given())
    hash(made.stop_token_ids)


def test_a_change_judges_only_what_it_changes() -> None:
    made = GenerateRequest.of_judged({"prompt": "x", "n": -1})  # which nobody has judged
    assert made.having(seed=3).given() == {"prompt": "x", "n": -1, "seed": 3}
    assert made.having(n=None).given() == {"prompt": "x"}
    with pytest.raises(InvalidRequest, match="temperature is 9"):
        made.having(temperature=9)


def test_every_parameter_is_told_where_it_can_be_asked() -> None:
    """But for what only Python callers have, and what has other names here."""
    not_over_http = {
        "images", "prompt_logprobs", "constraint", "request_id", "trace_context", "sequence_bias",
        "exponential_decay_length_penalty",
    }  # fmt: skip
    assert PARAMETERS.keys() - (CHAT.fields.keys() | COMPLETION.fields.keys()) == not_over_http


def test_what_a_model_does_not_do_is_left_out_where_the_server_is_lenient() -> None:
    given = {"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2, "seed": 1, "made_up": 1}
    able = Capabilities(parameters=frozenset(PARAMETERS) - {"n"}, context_length=9)
    asked = chat_request(CHAT.judge(given, lenient=True), {})
    mine = honoured(asked, able)
    assert (mine.n, mine.requests[0].n, mine.requests[0].seed) == (1, None, 1)
    assert mine.headers == {"x-drivetrain-ignored": "made_up, n"}
    del given["made_up"]
    strict = chat_request(CHAT.judge(given, lenient=False), {})
    assert honoured(strict, able) is strict


def refusal(body: Body, name: str) -> str:
    with pytest.raises(Unsupported) as caught:
        body.judge({name: 1}, lenient=False)
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "chat", "completion"),
    [
        ("temprature", "temperature", "temperature"),
        ("maxTokens", "max_tokens", "max_tokens"),
        ("max_completion_token", "max_completion_tokens", "max_tokens"),
        ("max_completions_tokens", "max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens", "max_tokens"),
        ("topK", "top_k", "top_k"),
        ("repeat_penalty", "repetition_penalty", "repetition_penalty"),
        ("message", "messages", ""),
        ("respons_format", "response_format", "response_format"),
        ("structured_output", "structured_outputs", "structured_outputs"),
        ("prompts", "", "prompt"),
        # near to what is not honoured
        ("users", "", ""),
        ("best_of_n", "", ""),
        ("tool", "tools", ""),
        ("enable_thinking", "chat_template_kwargs", ""),
        ("thinking_budget", "max_reasoning_tokens", ""),
        ("skip_special_token", "", ""),
        # another thing
        ("top_a", "", ""),
        ("length_penalty", "", ""),
        ("min_length", "", ""),
        ("dynamic_temperature", "", ""),
        ("temp", "", ""),
    ],
)
def test_what_was_meant_is_a_field_that_does_something(name: str, chat: str, completion: str) -> None:
    for body, meant in ((CHAT, chat), (COMPLETION, completion)):
        hint = f"did you mean {meant}?" if meant else "see /openapi.json"
        assert refusal(body, name).startswith(f"{name} is not a parameter of this endpoint; {hint} (")


@pytest.mark.parametrize(
    ("body", "name", "hint"),
    [
        (COMPLETION, "messages", "it belongs to /v1/chat/completions"),
        (RESPONSE, "messages", "it belongs to /v1/chat/completions"),
        (CHAT, "prompt", "it belongs to /v1/completions"),
        (CHAT, "input", "it belongs to /v1/responses, or to /v1/embeddings"),
        (CHAT, "system", "it belongs to /v1/messages"),
        (MESSAGES, "max_tokens_to_sample", "send max_tokens to /v1/messages"),
        (CHAT, "options", "it belongs to /api/chat"),
        (OLLAMA_CHAT, "prompt", "it belongs to /api/generate"),
        (OLLAMA_GENERATE, "messages", "it belongs to /api/chat"),
        (OLLAMA_CHAT, "temperature", "did you mean options.temperature?"),
        (OLLAMA_GENERATE, "num_predict", "did you mean options.num_predict?"),
        (CHAT, "include_usage", "did you mean stream_options.include_usage?"),
    ],
)
def test_a_field_of_another_body_says_where_it_belongs(body: Body, name: str, hint: str) -> None:
    assert f"{name} is not a parameter of this endpoint; " in refusal(body, name)
    assert hint in refusal(body, name)


def test_no_field_that_does_nothing_is_ever_meant() -> None:
    for body in BODIES:
        for name, field in body.fields.items():
            if field.inert or field.refused:
                for near in (name[:-1], f"{name}s", name.title()):
                    assert near in body.fields or f"did you mean {name}?" not in refusal(body, near)


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}, {"max_tokens": -1}])
def test_more_tokens_than_a_completion_has_by_itself(given: dict[str, Any]) -> None:
    """`max_tokens` is not blamed on a client that sent none."""
    body = COMPLETION.judge({"model": "m", "prompt": "x", "min_tokens": 17, **given}, lenient=False)
    with pytest.raises(InvalidRequest, match=r"min_tokens is 17, .* 16 tokens .*; send max_tokens too") as caught:
        completion_request(body, {}, max_prompts=1)
    assert caught.value.param == "min_tokens"
    body |= {"max_tokens": 17}
    assert completion_request(body, {}, max_prompts=1).requests[0].max_tokens == 17


def test_ignored_names_are_bounded() -> None:
    given = {"model": "m", "prompt": "x", **{f"\x00{'y' * 500}{n}": 1 for n in range(500)}}
    headers = COMPLETION.judge(given, lenient=True).headers
    (value,) = headers.values()
    assert value.isprintable()
    assert 800 < len(value) <= 1000
    *names, more = value.split(", ")
    assert len({len(name) for name in names}) == 1
    assert more == "..."
    assert list(ignored_header(["😀" * 100, "x"]).values()) == ["..."]
