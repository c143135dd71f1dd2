"""Lark grammars without recursion as regexes, and texts that are held to them inside calls of every form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from answers_written import WRITTEN
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tools import Tool, ToolChoice, ToolMode
from drivetrain.text.answers import FORMS
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.brackets import bar_outside
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.regular import MAX_CHARS, regex_of_lark
from drivetrain.text.grammar.rules import AnswerRules
from drivetrain.text.grammar.trial import Trial

PATCH = """
// As agents have it.
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: add | "*** Delete " name LF
    | "*** Move " name LF
add: "*** Add " name LF ("+" /(.*)/ LF)+ -> added
?name: /(.+)/
%import common.LF
"""
GOOD = (
    "*** Begin\n*** Delete a.py\n*** End",
    '*** Begin\n*** Add b.py\n+x = "1"\n+\n+\\t /ü 🗼\n*** Move c\n*** End\n',
)
BAD = ("", "*** Begin\n*** End", "*** Begin\n*** Delete \n*** End", "*** Begin\n+x\n*** End", GOOD[0] + "\nmore")


def test_a_grammar_is_its_regex() -> None:
    found = re.compile(regex_of_lark(PATCH))
    assert all(found.fullmatch(text) for text in GOOD)
    assert not any(found.fullmatch(text) for text in BAD)


@pytest.mark.parametrize(
    ("body", "fits", "not_"),
    [
        ('"a" "b"~2..3 ["c"]', ("abb", "abbbc"), ("ab", "abbbb")),
        ('("x"i | "0".."9")* "."', (".", "xX7."), ("x", "a.")),
        ('/a|b/ "+" /[c-d]/i "\\n"', ("a+C\n", "b+d\n"), ("a+e\n", "b")),
        ("WORD ~ 2", (), ()),
    ],
)
def test_what_a_rule_may_have(body: str, fits: tuple[str, ...], not_: tuple[str, ...]) -> None:
    found = re.compile(regex_of_lark(f"start.2: {body}\n%import common.WORD"))
    assert all(found.fullmatch(text) for text in fits)
    assert not any(found.fullmatch(text) for text in not_)


DOUBLED = "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(40)) + 'a40: "x"'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "there is no rule start"),
        ("a: start\nstart: a", "the rule start refers to itself"),
        ("start: b", "the rule b does not exist"),
        ("start: 'a'", "cannot be read"),
        ('start: "a', "cannot be read"),
        ('start: ("a"', "ends too early"),
        ('start: "a")', "cannot be read"),
        ('start: "b".."a"', "a range goes"),
        ("start: /a/x", "the flags x"),
        ('start: "a"\n%ignore " "', "%ignore"),
        ("start: %json {}", "cannot be read"),
        ('start: "a"\nstart: "b"', "the rule start is there twice"),
        ('start other: "a"', "begins no rule"),
        ("start: /a)|(b/", "do not fit"),
        ('a: "' + "x" * 19_000 + '"\nstart: ' + "a " * 5_000, f"more than {MAX_CHARS} characters"),
        ('start: "a" ' + "|" * 60_000, "it has more than 50000 characters"),
        ('"a"', "begins no rule"),
        (DOUBLED, f"more than {MAX_CHARS} characters"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested more than"),
    ],
)
def test_what_is_refused(source: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(why)):
        regex_of_lark(source)


@pytest.mark.parametrize(
    ("pattern", "outside"),
    [
        ("a(b|c)[|]\\|", False), ("a|(b)", True), ("[]|]", False), ("[^]|]a|b", True), ("", False),
        ("a)|(b", None), ("(a", None), ("[a", None), ("a\\", None), ("[" * 100_000, None),
    ],
)  # fmt: skip
def test_bars_outside_brackets(pattern: str, outside: bool | None) -> None:
    assert bar_outside(pattern) is outside


def test_line_ends_of_other_systems() -> None:
    assert re.fullmatch(regex_of_lark('start: "a"\r\n  | "b"\r\n'), "b")


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_held_to_it_inside_a_call(trial: Trial, form: str) -> None:
    schema = {"input": {"type": "string", "pattern": f"^(?:{regex_of_lark(PATCH)})$"}}
    parameters = {"type": "object", "properties": schema, "required": ["input"], "additionalProperties": False}
    rules = AnswerRules(form, (Tool("f", parameters=json.dumps(parameters)),), ToolChoice(ToolMode.REQUIRED))
    grammar = GrammarCompiler(ByteTokenizer(), frozenset((257,)), trial, context_length=4096).compile(rules)
    write = next(write for name, write, _ in WRITTEN.values() if name == form)
    for text in (*GOOD, *BAD):
        written = write([("f", {"input": text})]).removesuffix("<|call|>")
        written = written.replace("[TOOL_CALLS] [", "[TOOL_CALLS][").replace(', "id": "Xy9012345"', "")
        if form == "llama-pythonic":
            written = f"[f(input={json.dumps(text, ensure_ascii=False)})]"
        matcher = grammar.matcher()
        held = all(matcher.take([byte]) for byte in written.encode()) and matcher.may_end
        assert held == (text in GOOD), written
