"""Strict schemas made at random: an answer that ends as its grammar lets it is one call, whole and valid."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from test_call_grammars import hints, vocabulary
from walks import Walk

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tools import Tool, ToolChoice, ToolMode
from drivetrain.text.answers import parse_answer
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.rules import AnswerRules
from drivetrain.text.grammar.trial import Trial

SCHEMAS = 12
VALUES: list[Any] = ["a", "b c", "true", "5", "null", 5, 1, 0, True, None, "x\ny", "é", "", " s ", 1.5, "</parameter"]
PATTERNS = ["^[a-z]{2}$", "^a.b$", r"^\d+$", r"^[^\n]*$", r"^\w[\W\d]$", r"^a\.b/c$"]
SIMPLE = ["string", "integer", "number", "boolean", "null"]


class Schemas:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def parameters(self) -> dict[str, Any]:
        tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}
        return {**self._object(0), "$defs": {"some": self._value(2), "tree": tree}}

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        keys = rng.sample(["a", "b", "c_d", "e_f", "self", "type"], rng.randint(0, 4))
        required = [key for key in keys if rng.random() < 0.5]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {key: self._value(depth) for key in keys},
            "required": required,
        }
        others = rng.random()
        if others < 0.5:
            schema["additionalProperties"] = False
        elif others < 0.6:
            schema["additionalProperties"] = {"type": "integer"}
        elif others < 0.65:
            required.append("extra")
        return schema

    def _value(self, depth: int) -> Any:
        rng = self._rng
        simple = [{"type": kind} for kind in SIMPLE]
        made = [
            *simple,
            {"type": "string"},
            {"type": "string", "minLength": rng.choice([0, 2]), "maxLength": rng.choice([3, 5])},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"type": "integer", "minimum": rng.choice([-5, 1]), "maximum": rng.choice([9, 100])},
            {"type": rng.sample([*SIMPLE, "array", "object"], 2)},
            {"enum": rng.sample(VALUES, 3)},
            {"enum": rng.sample(VALUES, 4), "type": rng.choice(["string", ["string", "null"], ["boolean", "integer"]])},
            {"const": rng.choice(VALUES)},
            {},
            True,
        ]
        if depth < 3 and rng.random() < 0.5:
            made = [
                {"type": "array", "items": self._value(depth + 1), "minItems": 1, "maxItems": rng.randint(1, 3)},
                self._object(depth + 1),
                {"$ref": rng.choice(["#/$defs/some", "#/$defs/tree"])},
                {"anyOf": [self._value(depth + 1), self._value(depth + 1)]},
            ]
        return rng.choice(made)


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("form", ["qwen-xml", "glm", "gemma4", "llama-pythonic", "hermes"])
def test_calls_fit_their_schema(trial: Trial, form: str, special: bool) -> None:
    tokenizer, ends = vocabulary(form, special)
    compiler = GrammarCompiler(tokenizer, ends, trial, context_length=4096)
    num_read = 0
    for seed in range(SCHEMAS):
        schema = Schemas(seed).parameters()
        tool = Tool("f", parameters=json.dumps(schema), strict=True)
        rules = AnswerRules(form, (tool,), ToolChoice(ToolMode.REQUIRED), parallel=False)
        try:
            grammar = compiler.compile(rules)
        except InvalidRequest:
            continue
        for walk in range(2):
            ids = Walk(grammar, tokenizer, [*hints(form), "null", "1e5", "'"], walk).run()
            message = parse_answer(ids, form=form, tokenizer=tokenizer, tools=[tool.as_function])
            shown = (schema, tokenizer.decode(ids, skip_special=False), message)
            assert message.content is None, shown
            assert [(call.name, call.flaw) for call in message.tool_calls] == [("f", None)], shown
            arguments = json.loads(message.tool_calls[0].arguments, parse_float=_finite)
            assert jsonschema_rs.is_valid(schema, arguments), shown
            num_read += 1
    assert num_read >= SCHEMAS


def _finite(text: str) -> float:
    """The validator takes no infinity."""
    return max(-1e300, min(float(text), 1e300))
