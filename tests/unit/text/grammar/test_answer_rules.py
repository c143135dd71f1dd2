"""What the rules of an answer let through, step by step, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from marked_bytes import MarkedBytes
from walks import Walk

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import Cancelled, InvalidRequest
from drivetrain.core.tokenizer import Wanted
from drivetrain.core.tools import Tool, ToolChoice, ToolMode
from drivetrain.text.answers import parse_answer
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.calls import can_write
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.rules import AnswerRules, Reasoning
from drivetrain.text.grammar.trial import MAX_CPU_S, TOO_LARGE, Budget, Trial
from drivetrain.text.hf_tokenizer import HfTokenizer
from tiny import tokenizers

ADD = Tool("add", parameters='{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
ADD_ALL = Tool("add_all")
TOOLS = (ADD, ADD_ALL)
REQUIRED, AUTO, NONE = ToolMode.REQUIRED, ToolMode.AUTO, ToolMode.NONE
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "add_all", "arguments": {}}\n</tool_call>'
FIVE = '{"city": 5}'
LLAMA = '{"name": "add", "parameters": {"a": 5}}'
TAGGED = "<function=add>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
HARMONY = (
    "<|channel|>commentary<|message|>Hm<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
)
CITY = Constraint(
    ConstraintForm.JSON_SCHEMA, '{"type": "object", "properties": {"city": {"type": "integer"}}, "required": ["city"]}'
)
ANY_LINE = Constraint(ConstraintForm.REGEX, ".*")


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()


@pytest.fixture(scope="module")
def compiler(trial: Trial) -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer(), frozenset({257}), trial, context_length=4096)


def rules(
    mode: ToolMode = REQUIRED, *names: str, form: str = "hermes", tools: tuple[Tool, ...] = TOOLS, **more: Any
) -> AnswerRules:
    return AnswerRules(form, tools, ToolChoice(mode, names), **more)


def test_they_are_counted_by_what_they_are_for() -> None:
    """Once, whatever else they hold."""
    assert rules(content=CITY).kind == "tools"
    assert rules(tools=(), content=CITY).kind == CITY.kind == "json_schema"
    assert rules(tools=(), max_reasoning_tokens=5).kind == "reasoning"


def verdict(compiler: GrammarCompiler, wanted: AnswerRules, text: str) -> str:
    """`no` with what was taken, `begins`, `may end` or `must end`."""
    matcher = compiler.compile(wanted).matcher()
    for i, byte in enumerate(text.encode()):
        if not matcher.take([byte]):
            return f"no: {text.encode()[:i].decode('utf-8', 'replace')}"
    return "must end" if matcher.must_end else "may end" if matcher.may_end else "begins"


@pytest.mark.parametrize(
    ("wanted", "text", "expected"),
    [
        (rules(REQUIRED, "add"), CALL, "must end"),
        (rules(REQUIRED, "add"), OTHER, 'no: <tool_call>\n{"name": "add'),
        (rules(REQUIRED, "add"), "Sure", "no: "),
        (rules(REQUIRED), CALL, "may end"),
        (rules(REQUIRED), f"{CALL}\n{OTHER}", "may end"),
        (rules(REQUIRED), f"{CALL}\nSo", f"no: {CALL}\n"),
        (rules(REQUIRED, parallel=False), CALL, "must end"),
        (rules(REQUIRED, "add", "add_all"), f"{CALL}\n{OTHER}", "may end"),
        (rules(AUTO), "", "may end"),
        (rules(AUTO), "No call, <tool_cal", "may end"),
        (rules(AUTO), f"Text {CALL} and {OTHER} more", "may end"),
        (rules(AUTO), 'Text <tool_call>\n{"name": "sub', 'no: Text <tool_call>\n{"name": "'),
        (rules(AUTO, parallel=False), f"Text {CALL}", "must end"),
        (rules(AUTO, "add"), OTHER, 'no: <tool_call>\n{"name": "add'),
        (rules(AUTO), "a <think> b", "no: a <think"),
        (rules(AUTO, reasoning=Reasoning.POSSIBLE), f"<think>Hm <tool_call>?</think>\n\n{CALL}", "may end"),
        (rules(AUTO, reasoning=Reasoning.POSSIBLE), "<think>Hm", "begins"),
        (rules(AUTO, reasoning=Reasoning.POSSIBLE), f"Text {CALL}", "may end"),
        (rules(REQUIRED, "add", reasoning=Reasoning.POSSIBLE), CALL, "must end"),
        (rules(REQUIRED, "add", reasoning=Reasoning.POSSIBLE), f"<think>Hm</think>\n\n{CALL}", "must end"),
        (rules(REQUIRED, "add", reasoning=Reasoning.POSSIBLE), "<think>Hm</think>\n\n\n", "no: <think>Hm</think>\n\n"),
        (rules(REQUIRED, "add", reasoning=Reasoning.BEGUN), f"Hm</think>{CALL}", "must end"),
        (rules(REQUIRED, "add", reasoning=Reasoning.BEGUN), CALL, "begins"),
        (rules(AUTO, reasoning=Reasoning.BEGUN, max_reasoning_tokens=3), "abc</think>Text", "may end"),
        (rules(AUTO, reasoning=Reasoning.BEGUN, max_reasoning_tokens=3), "abcd", "no: abc"),
        (rules(AUTO, reasoning=Reasoning.BEGUN, max_reasoning_tokens=0), "a", "no: "),
        (rules(AUTO, reasoning=Reasoning.BEGUN, max_reasoning_tokens=0), "</think>a", "may end"),
        (rules(AUTO, reasoning=Reasoning.BEGUN, max_reasoning_tokens=50), "a</think>b", "may end"),
        (rules(NONE, reasoning=Reasoning.BEGUN, max_reasoning_tokens=1), "a</think>x<think>", "no: a</think>x<think"),
        (rules(NONE, reasoning=Reasoning.POSSIBLE, max_reasoning_tokens=3), " <think>", "no:  <think"),
        (rules(NONE, reasoning=Reasoning.POSSIBLE, max_reasoning_tokens=3), "\n\n\n<think>", "no: \n\n\n<think"),
        (rules(NONE, reasoning=Reasoning.POSSIBLE, max_reasoning_tokens=3), "<think>abc</think>x", "may end"),
        (rules(NONE, reasoning=Reasoning.POSSIBLE, max_reasoning_tokens=3), "a <thin> b", "may end"),
        (rules(NONE, reasoning=Reasoning.POSSIBLE), "a <think>b", "may end"),
        (rules(NONE, form="phi4", reasoning=Reasoning.POSSIBLE, max_reasoning_tokens=3), "functools[0]", "may end"),
        (rules(NONE), f"{CALL} is not read", "may end"),
        (rules(AUTO, tools=(), reasoning=Reasoning.BEGUN), "a</think>b <tool_call>x", "may end"),
        (rules(AUTO, content=CITY), '{"city": 5}', "must end"),
        (rules(AUTO, content=CITY), CALL, "may end"),
        (rules(AUTO, content=CITY), "Text", "no: "),
        (rules(REQUIRED, content=CITY), '{"city": 5}', "no: "),
        (rules(NONE, content=CITY), CALL, "no: "),
        (rules(AUTO, content=CITY, reasoning=Reasoning.BEGUN), 'Hm</think>\n\n{"city": 5}', "must end"),
        (rules(AUTO, content=CITY, reasoning=Reasoning.BEGUN, max_reasoning_tokens=2), f"Hm</think>{FIVE}", "must end"),
        (rules(AUTO, content=ANY_LINE), '<tool_call>\n{"name": "b', 'no: <tool_call>\n{"name": "'),
        (rules(AUTO, content=ANY_LINE), "a line", "may end"),
        (rules(AUTO, content=Constraint(ConstraintForm.CHOICE, '["yes", "no"]')), "no", "must end"),
        (rules(AUTO, form="llama-json"), LLAMA, "may end"),
        (rules(AUTO, form="llama-json"), '{"name": "sub', 'no: {"name": "'),
        (rules(AUTO, form="llama-json"), '{"nam": 5} and {"name": "x", "parameters": {', "may end"),
        (rules(AUTO, form="llama-json"), f"So:\n{LLAMA}", 'no: So:\n{"name": "add", "parameters": '),
        (rules(AUTO, form="llama-json", content=CITY), '{"city": 5}', "must end"),
        (rules(AUTO, form="llama-json", content=CITY), LLAMA, "may end"),
        (rules(AUTO, form="llama-json", content=CITY, parallel=False), LLAMA, "must end"),
        (rules(AUTO, form="llama-pythonic"), "[add(a=5), add_all()]", "must end"),
        (rules(AUTO, form="llama-pythonic"), "[adder] is a list", "may end"),
        (rules(AUTO, form="llama-pythonic"), "So:\n[add(a=5", "no: So:\n[add(a="),
        (rules(REQUIRED, "add", form="llama-pythonic"), "[add(a=5)]", "must end"),
        (rules(AUTO, form="qwen-xml"), f"So: {TAGGED}", "may end"),
        (rules(AUTO, form="phi4"), "functools[", "no: functools"),
        (rules(AUTO, form="mistral"), 'Hm[TOOL_CALLS]add[ARGS]{"a": 1}', "may end"),
        (rules(AUTO, form="mistral", parallel=False), 'Hm[TOOL_CALLS]add[ARGS]{"a": 1}', "must end"),
        (rules(AUTO, form="harmony"), "<|channel|>final<|message|>Hi", "may end"),
        (rules(AUTO, form="harmony"), "Hi", "no: "),
        (rules(AUTO, form="harmony"), HARMONY, "must end"),
        (rules(NONE, form="harmony", content=CITY), '<|channel|>final<|message|>{"city": 1}', "must end"),
    ],
)  # fmt: skip
def test_what_the_rules_let_through(compiler: GrammarCompiler, wanted: AnswerRules, text: str, expected: str) -> None:
    assert verdict(compiler, wanted, text) == expected


def test_a_special_token_is_not_its_text(trial: Trial) -> None:
    tokenizer = MarkedBytes("hermes")
    compiler = GrammarCompiler(tokenizer, frozenset({tokenizer.end}), trial, context_length=4096)
    matcher = compiler.compile(rules(AUTO)).matcher()
    assert matcher.take(list(b'<tool_call>\n{"name": "sub"'))
    assert matcher.take(tokenizer.ids('<tool_call>\n{"name": "add'))
    assert not matcher.take(list(b"b"))
    spelled = compiler.compile(rules(REQUIRED)).matcher()
    assert not spelled.take(list(b"<"))


@pytest.mark.parametrize("special", [True, False])
def test_a_real_vocabulary(trial: Trial, special: bool) -> None:
    """Its tokens cross the borders of what the grammar is made of."""
    markers = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    tokenizer = HfTokenizer(tokenizers.byte_level(extra=markers if special else ()))
    ends = frozenset({tokenizer.id_of("</s>") or 0})
    compiler = GrammarCompiler(tokenizer, ends, trial, context_length=4096)
    for mode, reasoning in ((REQUIRED, Reasoning.BEGUN), (AUTO, Reasoning.POSSIBLE)):
        grammar = compiler.compile(rules(mode, reasoning=reasoning, max_reasoning_tokens=30))
        calls = 0
        for seed in range(15):
            ids = Walk(grammar, tokenizer, ["<tool_call>", "</think>", '"'], seed).run()
            prefix = "<think>" if reasoning is Reasoning.BEGUN else ""
            message = parse_answer(
                ids, form="hermes", tokenizer=tokenizer, prefix=prefix, tools=[tool.as_function for tool in TOOLS]
            )
            for call in message.tool_calls:
                assert call.flaw is None, tokenizer.decode(ids, skip_special=False)
                schema = next(tool.as_function["function"]["parameters"] for tool in TOOLS if tool.name == call.name)
                assert jsonschema_rs.is_valid(schema, json.loads(call.arguments))
            calls += len(message.tool_calls)
            assert mode is AUTO or message.content is None
        assert calls


def tool(schema: Any, *, strict: bool, name: str = "f") -> Tool:
    return Tool(name, parameters=json.dumps(schema), strict=strict)


UNUSABLE: dict[str, tuple[str, Any, str]] = {
    "keyword": ("hermes", {"properties": {"a": {"not": {"pattern": "a"}}}}, "not at #/properties/a"),
    "nowhere": ("hermes", {"properties": {"a": {"$ref": "#/$defs/x"}}}, ""),
    "multiple": ("hermes", {"properties": {"a": {"multipleOf": 1e-9}}}, "multipleOf"),
    "too wide": ("hermes", {"properties": {f"p{i}": {"type": "null"} for i in range(2000)}}, "required"),
    "never": ("hermes", {"properties": {"a": False}, "required": ["a"]}, "unsatisfiable"),
    "tagged": ("qwen-xml", {"properties": {"a": {"type": "string", "format": "date"}}}, "format"),
    "tagged union": ("glm", {"properties": {"a": {"type": ["string", "array"]}}}, "object or a list"),
    "key": ("qwen-xml", {"properties": {"a>b": {}}}, "named"),
    "python": ("llama-pythonic", {"properties": {"a b": {}}}, "named"),
    "gemma": ("gemma4", {"properties": {"a": {"allOf": [{}, {}]}}}, "allOf"),
    "gemma's empty enum": ("gemma4", {"properties": {"a": {"enum": []}}}, "enum"),
    "gemma's other enum": ("gemma4", {"properties": {"a": {"enum": [5], "type": "string"}}}, "no value"),
    "gemma's empty union": ("gemma4", {"properties": {"a": {"anyOf": []}}}, "nothing is allowed"),
    "gemma without a type": ("gemma4", {"properties": {"a": {"type": []}}}, "nothing is allowed"),
    "tagged, no schema": ("glm", {"properties": {"a": 5}}, "nothing is allowed"),
    "tagged empty enum": ("glm", {"properties": {"a": {"enum": [5], "type": ["string"]}}}, "no value"),
    "root": ("gemma4", {"anyOf": [{"required": ["a"]}]}, "anyOf"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_schema_that_cannot_be_honoured(compiler: GrammarCompiler, case: str) -> None:
    """Of a strict tool it is refused by name; others then take any object."""
    form, schema, words = UNUSABLE[case]
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(rules(form=form, tools=(ADD, tool(schema, strict=True))))
    assert caught.value.param == "tools"
    assert "the tool f " in caught.value.message
    assert words in caught.value.message
    grammar = compiler.compile(rules(REQUIRED, "f", form=form, tools=(ADD, tool(schema, strict=False))))
    ids = Walk(grammar, ByteTokenizer(), ["</parameter>", "</arg_value>", '<|"|>', ")", "]"], 1).run()
    message = parse_answer(ids, form=form, tokenizer=ByteTokenizer())
    assert [(call.name, call.flaw) for call in message.tool_calls] == [("f", None)]


@pytest.mark.parametrize("form", ["hermes", "qwen-xml", "gemma4", "llama-pythonic", "glm"])
@pytest.mark.parametrize(
    "schema",
    [{"properties": {"a": {"type": "string", "minLength": "x"}}}, {"properties": {"a": {}}, "required": [{}]},
     {"properties": {"a": {"enum": 5}}}, {"properties": {"a": {"anyOf": 5}}}, {"properties": {"a": {"$ref": 5}}},
     {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": []}, {"properties": {"a": {"type": {"x": 1}}}},
     {"properties": {"a": {"type": "array", "minItems": "x"}}}, {"properties": 5}, {"required": "a"}],
)  # fmt: skip
def test_what_is_no_schema(compiler: GrammarCompiler, form: str, schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="the tool f ") as caught:
        compiler.compile(rules(REQUIRED, form=form, tools=(tool(schema, strict=True),)))
    assert caught.value.param == "tools"
    assert compiler.compile(rules(REQUIRED, form=form, tools=(tool(schema, strict=False),))).fault == ""


class _Slow(Trial):
    """Some schemas end the trial by its limits."""

    num_runs = 0

    def run(self, lark: str, budget: Budget | None = None) -> str:
        self.num_runs += 1
        if "explode" not in lark:
            return super().run(lark, budget)
        assert budget is not None
        budget.left_s -= min(MAX_CPU_S, budget.left_s)
        return TOO_LARGE


@pytest.fixture
def slow() -> Iterator[_Slow]:
    made = _Slow()
    yield made
    made.close()


EXPLODING = tuple(tool({"properties": {"explode": {"const": i}}}, strict=False, name=f"t{i}") for i in range(8))


def test_the_tools_of_a_request_share_a_budget(slow: _Slow) -> None:
    compiler = GrammarCompiler(ByteTokenizer(), frozenset({257}), slow, context_length=4096)
    assert compiler.compile(rules(tools=EXPLODING[:2])).fault == "", "they take any object"
    runs = slow.num_runs
    with pytest.raises(InvalidRequest, match="together") as caught:
        compiler.compile(rules(tools=EXPLODING))
    assert caught.value.param == "tools"
    assert slow.num_runs == runs + 3, "the verdicts of the first two are kept, and the third more had less time"


def test_the_tool_behind_slow_ones_is_not_blamed(slow: _Slow) -> None:
    compiler = GrammarCompiler(ByteTokenizer(), frozenset({257}), slow, context_length=4096)
    strict = replace(EXPLODING[3], strict=True)
    with pytest.raises(InvalidRequest, match="together"):
        compiler.compile(rules(tools=(*EXPLODING[:2], strict)))


def test_a_spent_budget_is_no_fault_if_nothing_was_asked(slow: _Slow) -> None:
    compiler = GrammarCompiler(ByteTokenizer(), frozenset({257}), slow, context_length=4096)
    assert compiler.compile(rules(AUTO, tools=EXPLODING)).fault == ""


def test_nothing_is_tried_for_a_caller_who_has_left(slow: _Slow) -> None:
    compiler = GrammarCompiler(ByteTokenizer(), frozenset({257}), slow, context_length=4096)
    wanted = Wanted()
    wanted.over = True
    with wanted.here(), pytest.raises(Cancelled):
        compiler.compile(rules(tools=EXPLODING))
    assert slow.num_runs == 0


class _TooMuchTogether(Trial):
    def run(self, lark: str, budget: Budget | None = None) -> str:
        return TOO_LARGE if "t_one" in lark and "t_two" in lark else super().run(lark, budget)


def test_tools_that_cannot_be_honoured_together() -> None:
    """If nothing was asked of the calls, they take any object: on an engine that enforces nothing they may be too."""
    trial = _TooMuchTogether()
    try:
        compiler = GrammarCompiler(ByteTokenizer(), frozenset({257}), trial, context_length=4096)
        one, two = (tool({"properties": {key: {"type": "null"}}}, strict=False, name=key) for key in ("t_one", "t_two"))
        with pytest.raises(InvalidRequest, match="together") as caught:
            compiler.compile(rules(REQUIRED, tools=(one, two)))
        assert caught.value.param == "tools"
        wanted = rules(AUTO, tools=(replace(one, name="a"), replace(two, name="b")))
        assert verdict(compiler, wanted, CALL.replace('"add"', '"a"')) == "may end"
        assert verdict(compiler, wanted, CALL.replace('"add"', '"c"')).startswith("no: ")
    finally:
        trial.close()


def test_a_thousand_tools(compiler: GrammarCompiler) -> None:
    many = tuple(tool({"properties": {"a": {"const": i}}}, strict=True, name=f"tool_{i}") for i in range(1000))
    call = '<tool_call>\n{"name": "tool_777", "arguments": {"a": 777}}\n</tool_call>'
    assert verdict(compiler, rules(AUTO, tools=many), f"So: {call}") == "may end"
    assert verdict(compiler, rules(AUTO, tools=many), call.replace("777}", "778}")).startswith("no: ")


def test_too_many_tools_are_refused(compiler: GrammarCompiler) -> None:
    many = tuple(Tool(f"tool_{i}") for i in range(5000))
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(rules(REQUIRED, tools=many))
    assert caught.value.param == "tools"


def test_a_schema_nested_deeply(compiler: GrammarCompiler) -> None:
    schema: Any = {"type": "integer"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    inside = '{"x": ' * 60 + "5" + "}" * 60
    for form, text in (
        ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {inside}}}\n</tool_call>'),
        ("gemma4", f"<|tool_call>call:f{inside.replace(' ', '').replace(chr(34), '')}<tool_call|>"),
    ):
        wanted = rules(REQUIRED, "f", form=form, tools=(tool(schema, strict=True),))
        assert verdict(compiler, wanted, text) == "must end"


def test_references_in_every_form(compiler: GrammarCompiler) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    one = tool({"properties": {"n": {"$ref": "#/$defs/node"}}, "required": ["n"], "$defs": {"node": node}}, strict=True)
    for form, text in (
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"n": {"next": {}}}}\n</tool_call>'),
        ("qwen-xml", '<tool_call>\n<function=f>\n<parameter=n>\n{"next": {}}\n</parameter>\n</function>\n</tool_call>'),
        ("llama-pythonic", '[f(n={"next": {}})]'),
        ("gemma4", "<|tool_call>call:f{n:{next:{}}}<tool_call|>"),
    ):
        assert verdict(compiler, rules(REQUIRED, "f", form=form, tools=(one,)), text) == "must end"


GLM, GEMMA = "<tool_call>f<arg_key>a</arg_key><arg_value>", "<|tool_call>call:f{a:"


@pytest.mark.parametrize(
    ("form", "schema", "value", "expected"),
    [
        ("glm", {"type": "string", "pattern": r"^\d+$"}, "12", "begins"),
        ("glm", {"type": "string", "pattern": r"^\d+$"}, "1\u0663", "no: 1"),
        ("glm", {"type": "string", "pattern": r"^[a\w]\s$"}, "a\u00a0", "begins"),
        ("glm", {"type": "string", "pattern": r"^[a\w]\s$"}, "\u00e9", "no: "),
        ("glm", {"type": "string", "pattern": r"^\w\s$"}, "b\x85", "no: b\ufffd"),
        ("glm", {"type": "string", "pattern": r"^\\d[^\D]$"}, "\\d5", "begins"),
        ("glm", {"type": "string", "pattern": r"^\S\W\D$"}, "a\u00e9\u0663", "begins"),
        ("glm", {"type": "string", "pattern": r"^\S$"}, "\ufeff", "no: \ufffd"),
        ("glm", {}, "any <b> {", "begins"),
        ("glm", {"description": "any"}, "any <b> {", "begins"),
        ("glm", {"enum": ["b", 5, None], "type": ["string", "null"]}, "b", "begins"),
        ("glm", {"enum": ["b", 5, None], "type": ["string", "null"]}, "5", "no: "),
        ("glm", {"enum": [True, 1], "type": ["boolean", "integer"]}, "1", "begins"),
        ("gemma4", {"enum": ["x", 5], "type": "string"}, "5", "no: "),
        ("gemma4", {"enum": [1, True, 2.0], "type": ["integer"]}, "2.0", "begins"),
        ("gemma4", {"enum": [1, True, 2.5], "type": "integer"}, "t", "no: "),
        ("gemma4", {"enum": [1, 5], "const": 5}, "1", "no: "),
        ("gemma4", {"const": None}, "null", "begins"),
    ],
)
def test_values_that_are_not_written_as_json(
    compiler: GrammarCompiler, form: str, schema: Any, value: str, expected: str
) -> None:
    one = tool({"properties": {"a": schema}, "required": ["a"]}, strict=True)
    start = GLM if form == "glm" else GEMMA
    expected = expected.replace("no: ", f"no: {start}")
    assert verdict(compiler, rules(REQUIRED, "f", form=form, tools=(one,)), start + value) == expected


def test_a_grammar_goes_with_nothing_else(compiler: GrammarCompiler) -> None:
    grammar = Constraint(ConstraintForm.GRAMMAR, 'start: "a"')
    assert verdict(compiler, rules(NONE, content=grammar), "a") == "must end"
    for wanted in (rules(AUTO, content=grammar), rules(NONE, content=grammar, reasoning=Reasoning.POSSIBLE)):
        with pytest.raises(InvalidRequest, match="cannot be combined") as caught:
            compiler.compile(wanted)
        assert caught.value.param == "constraint"


def test_content_that_cannot_be_honoured(compiler: GrammarCompiler) -> None:
    content = Constraint(ConstraintForm.JSON_SCHEMA, '{"not": {}}')
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(rules(AUTO, content=content))
    assert caught.value.param == "constraint"


def test_a_form_of_the_model_s_own_cannot_be_enforced(compiler: GrammarCompiler) -> None:
    assert can_write("hermes")
    assert not can_write("response_template")
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(rules(REQUIRED, form="response_template"))
    assert caught.value.param == "tool_choice"


def test_python_names_do_not_begin_with_a_digit(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequest, match="7up") as caught:
        compiler.compile(rules(REQUIRED, form="llama-pythonic", tools=(Tool("7up"),)))
    assert caught.value.param == "tools"


def test_the_same_rules_are_compiled_once(compiler: GrammarCompiler) -> None:
    one = rules(REQUIRED, "add", parallel=False)
    assert compiler.kept(rules(REQUIRED, "add_all", parallel=False)) is None
    grammar = compiler.compile(one)
    assert compiler.kept(rules(REQUIRED, "add", parallel=False)) is grammar


def test_the_vocabulary_is_read_ahead_of_time(trial: Trial) -> None:
    class Counting(ByteTokenizer):
        num_reads = 0

        def token_bytes(self, token_id: int) -> bytes:
            self.num_reads += 1
            return super().token_bytes(token_id)

    tokenizer = Counting()
    compiler = GrammarCompiler(tokenizer, frozenset({257}), trial, context_length=4096)
    compiler.warm()
    reads = tokenizer.num_reads
    assert reads >= tokenizer.vocab_size
    compiler.warm()
    compiler.compile(rules(REQUIRED))
    assert tokenizer.num_reads == reads


@pytest.mark.parametrize("of_pieces", [False, True])
def test_a_budget_is_not_counted_in_pieces(trial: Trial, of_pieces: bool) -> None:
    """The engine is told of it, and what follows the answer by its bytes leaves the tokens to the engine."""
    compiler = GrammarCompiler(ByteTokenizer(), frozenset({257}), trial, context_length=4096, of_pieces=of_pieces)
    budget = rules(NONE, tools=(), reasoning=Reasoning.BEGUN, max_reasoning_tokens=3, content=ANY_LINE)
    grammar = compiler.compile(budget)
    assert "max_tokens=3" in grammar.text
    assert grammar.matcher().take(tuple(b"long thoughts</think>yes")) is of_pieces
    assert grammar.matcher().take(tuple(b"abc</think>yes"))
