"""From constraints to grammars, and what they let through."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.constraint import MAX_SCHEMA_DEPTH, Constraint, ConstraintForm, Constraints, constraint
from drivetrain.core.errors import InvalidRequest, NotReady, Overloaded
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar import compile as compiling
from drivetrain.text.grammar import trial as trials
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.rehearsal import rehearse
from drivetrain.text.grammar.trial import TOO_LARGE, Budget, Trial
from drivetrain.text.grammar.trial_helper import Helper

END = 257


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()
    assert not made.processes


@pytest.fixture
def own_trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()
    assert not made.processes


@pytest.fixture
def compiler(trial: Trial) -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer(), frozenset({END}), trial, context_length=4096)


def made(form: str, value: Any) -> Constraint:
    return constraint(ConstraintForm(form), value, name="constraint")


def verdict(compiler: GrammarCompiler, form: str, value: Any, text: str) -> str:
    """`no`, `begins`, `may end` or `must end`."""
    matcher = compiler.compile(made(form, value)).matcher()
    if not matcher.take(list(text.encode())):
        return "no"
    return "must end" if matcher.must_end else "may end" if matcher.may_end else "begins"


@pytest.mark.parametrize(
    ("form", "value", "text", "expected"),
    [
        ("regex", "[0-9]+", "12", "may end"),
        ("regex", "[0-9]{2}", "12", "must end"),
        ("regex", "[0-9]{2}", "1a", "no"),
        ("regex", "a/b", "a/b", "must end"),
        ("regex", r"a\/b", "a/b", "must end"),
        ("regex", r"\\/", "\\/", "must end"),
        ("regex", "a\nb", "a\nb", "must end"),
        ("regex", "a\\\nb", "a\nb", "must end"),
        ("regex", "^ab$", "ab", "must end"),
        ("regex", "(a+)+b", "a" * 2000, "begins"),
        ("regex", ".", "é", "must end"),
        ("choice", ["a", "ab"], "a", "may end"),
        ("choice", ["a", "ab"], "ab", "must end"),
        ("choice", ['"', "\\", "\n", "\x07"], '"', "must end"),
        ("choice", ['"', "\\", "\n", "\x07"], "\\", "must end"),
        ("choice", ["\U0001f600 €\u2028"], "\U0001f600 €\u2028", "must end"),
        ("json", True, '{"a": [1, 2.5e3, null, "\\n"]}', "must end"),
        ("json", True, "[1]", "no"),
        ("json", True, '{"a":\n', "no"),
        ("json_schema", {"type": "integer", "minimum": 3, "maximum": 12}, "13", "no"),
        ("json_schema", {"type": "integer", "minimum": 3, "maximum": 12}, "12", "must end"),
        ("json_schema", '{"enum": ["x", 1, null]}', "null", "must end"),
        ("json_schema", True, "[1, {}]", "must end"),
        ("json_schema", {"type": "string", "x-guidance": {"whitespace_flexible": True}}, '  "a"', "no"),
        ("json_schema", {"type": "string"}, r'"\n\""', "must end"),
        ("json_schema", {"type": "string"}, r'"\ud83d', "no"),
        ("json_schema", True, r'{"\ud83d', "no"),
        ("json", True, r'{"a": "\ude00', "no"),
        ("json_schema", {"properties": {"b": {}, "a": {}}, "type": "object"}, '{"b": 1, "a"', "begins"),
        ("json_schema", {"properties": {"b": {}, "a": {}}, "type": "object"}, '{"a": 1, "b"', "no"),
        ("grammar", 'root ::= "x" y*\ny ::= [0-9] # digits', "x12", "may end"),
        ("grammar", 'start: "x" Y*\nY: /[0-9]/', "x12", "may end"),
        ("grammar", 'start: %json {"type": "boolean"}', "true", "must end"),
    ],
)
def test_what_a_constraint_lets_through(
    compiler: GrammarCompiler, form: str, value: Any, text: str, expected: str
) -> None:
    assert verdict(compiler, form, value, text) == expected


def test_a_space_behind_each_comma_and_colon_and_nowhere_else(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "null"}}}}
    assert verdict(compiler, "json_schema", schema, '[{"a": null}, {}]') == "must end"
    for text in ('[{"a":null', '[{"a": null},{', '[ {"a"', '[{ "a"', '[{"a" :', '[{"a":  null', '[{"a":\tnull', " ["):
        assert verdict(compiler, "json_schema", schema, text) == "no", text


@pytest.mark.parametrize(
    ("form", "value", "words"),
    [
        ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("json_schema", {"if": {"pattern": "a"}, "then": {"minLength": 2}}, "if at #"),
        ("json_schema", {"type": "string", "format": "iri"}, "iri"),
        ("json_schema", {"oneOf": [{"minimum": 1}, {"type": "integer"}]}, "use anyOf"),
        ("json_schema", {"multipleOf": 1e-9}, "multipleOf"),
        ("json_schema", {"items": [{"multipleOf": 123_457}]}, "multipleOf"),
        ("json_schema", {"$ref": "#/nowhere"}, "nowhere"),
        ("regex", "(?<=a)b", "look"),
        ("regex", "\\", ""),
        ("grammar", "root ::= " + "(" * 5000, "GBNF"),
        ("grammar", "start: " + "(" * 5000, "nested"),
        ("grammar", "start: <|nothing|>", "special token"),
        ("grammar", "start: ;", "lexer error"),
        ("grammar", ' {"grammars": [{"lark_grammar": "start: /a/"}]}', "neither GBNF nor Lark"),
        ("grammar", '{"type": "object"}', "json_schema"),
    ],
)
def test_what_cannot_be_honoured(compiler: GrammarCompiler, form: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(made(form, value))
    assert caught.value.param == "constraint"
    assert words in caught.value.message
    assert len(caught.value.message) < 500


def test_a_message_shows_nothing_of_the_grammar_that_was_made(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(made("json_schema", {"not": {"pattern": "a secret"}}))
    assert "%json" not in caught.value.message
    assert "secret" not in caught.value.message


def test_a_grammar_is_compiled_once(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made("regex", "[a-z]{7}")
    assert compiler.kept(one) is None
    grammar = compiler.compile(one)
    assert compiler.kept(one) is grammar
    assert compiler.compile(made("regex", "[a-z]{7}")) is grammar
    monkeypatch.setattr(compiling, "KEPT", 2)
    for number in range(3):
        compiler.compile(made("regex", f"[a-z]{{{number + 1}}}"))
    assert compiler.kept(one) is None
    assert compiler.kept(made("regex", "[a-z]{3}")) is not None


def test_large_grammars_are_not_all_kept(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "KEPT_BYTES", 100)
    grammars = [compiler.compile(made("choice", [f"{letter}" * 60])) for letter in "ab"]
    assert compiler.kept(made("choice", ["a" * 60])) is None
    assert compiler.kept(made("choice", ["b" * 60])) is grammars[1]


def test_matchers_do_not_know_each_other(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(made("choice", ["ab", "cd"]))
    one, other = grammar.matcher(), grammar.matcher()
    assert one.take(list(b"ab"))
    assert one.must_end
    assert not other.may_end
    assert other.take(list(b"c"))
    assert other.forced() == list(b"d")


def test_a_trial_that_never_ends_is_ended_by_its_computing_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one runs. This schema takes some twenty seconds."""
    slow = "start: %json " + json.dumps({"type": "integer", "multipleOf": 999_983})
    one = Trial()
    try:
        assert one.run('start: "a"') == ""
        (first,) = one.processes
        assert one.run(slow) == TOO_LARGE
        assert first.poll() is not None
        assert one.run('start: "b"') == ""
        assert first not in one.processes
    finally:
        one.close()
    assert trials.MAX_CPU_S < 10


def test_a_budget_for_several_trials() -> None:
    slow = "start: %json " + json.dumps({"type": "integer", "multipleOf": 999_983})
    one, budget = Trial(), Budget()
    try:
        assert one.run('start: "a"', budget) == ""
        assert 0 < budget.left_s < trials.MAX_REQUEST_CPU_S
        budget.left_s = 0.2
        assert one.run(slow, budget) == TOO_LARGE
        assert budget.is_spent
        before = one.processes
        assert one.run('start: "a"', budget) == TOO_LARGE
        assert one.processes == before, "nothing more is tried"
    finally:
        one.close()


def test_a_closed_trial_starts_no_process() -> None:
    one = Trial()
    one.close()
    with pytest.raises(NotReady):
        one.run('start: "a"')
    assert not one.processes


def test_modules_of_the_working_directory_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    one = Trial()
    try:
        assert one.run('start: "a"') == ""
    finally:
        one.close()


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_a_process_that_cannot_start_is_no_fault_of_the_grammar(
    monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    one = Trial()
    with pytest.raises(Overloaded, match="cannot be started"):
        one.run('start: "a"')
    assert not one.processes


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Files that the test opens; and as many may be open as this system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened: list[int] = []
    yield opened
    for file in opened:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_beside_more_files_than_select_knows(own_trial: Trial, files: list[int]) -> None:
    files += [os.dup(0) for _ in range(1100)]
    assert own_trial.run('start: "a"') == ""


def test_without_a_file_left_it_is_no_fault_of_the_grammar(own_trial: Trial, files: list[int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files += [os.dup(0) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[-1] + 1, hard))
    try:
        with pytest.raises(NotReady, match="ulimit -n"):
            own_trial.run('start: "a"')
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert own_trial.run('start: "a"') == ""


def test_what_else_prints_when_python_starts_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    one = Trial()
    try:
        assert one.run('start: "a"') == ""
    finally:
        one.close()


def test_a_process_that_was_stopped_is_replaced(own_trial: Trial) -> None:
    """And the grammar is not blamed for it."""
    own_trial.start()
    (stopped,) = own_trial.processes
    stopped.send_signal(signal.SIGSTOP)
    assert own_trial.run('start: "a"') == ""
    assert stopped.poll() == -signal.SIGKILL
    assert stopped not in own_trial.processes


@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_where_every_process_is_stopped_nobody_is_blamed(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whoever sends the signals: it is worth trying again."""
    ask = Helper.ask

    def stopped(helper: Helper, question: bytes) -> bytes:
        helper.process.send_signal(signal.Signals[name])
        return ask(helper, question)

    monkeypatch.setattr(Helper, "ask", stopped)
    with pytest.raises(NotReady, match="from outside") as caught:
        trial.run('start: "a"')
    assert caught.value.retry_after_s
    monkeypatch.undo()
    assert trial.run('start: "a"') == "", "it is not remembered"


@pytest.mark.parametrize("text", ["\x7f", '"', "\\", "\n", "\x01", "é", "\U0001f600"])
def test_any_character_of_a_choice(compiler: GrammarCompiler, text: str) -> None:
    matcher = compiler.compile(made("choice", [f"a{text}"])).matcher()
    assert matcher.take(list(f"a{text}".encode()))
    assert matcher.must_end


@pytest.mark.parametrize("schema", [True, {}])
def test_any_json_is_on_one_line(compiler: GrammarCompiler, schema: Any) -> None:
    matcher = compiler.compile(made("json_schema", schema)).matcher()
    assert matcher.take(list(b'{"a": '))
    assert not matcher.take(list(b"\n"))


def test_a_process_that_was_killed_between_trials(own_trial: Trial) -> None:
    own_trial.start()
    (process,) = own_trial.processes
    process.kill()
    process.wait()
    assert own_trial.run('start: "a"') == ""


def test_the_process_ends_with_its_input() -> None:
    one = Trial()
    assert one.run('start: "a"') == ""
    (process,) = one.processes
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0
    assert process.stdout is not None
    process.stdout.close()


def test_faults_over_single_bytes() -> None:
    assert rehearse('start: "a"').fault == ""
    assert rehearse("start: a\na: a").fault == "no text satisfies it"
    assert "unknown" in rehearse("start: b").fault


@pytest.mark.parametrize(
    "value",
    [{}, {"regex": "a", "choice": ["a"]}, {"regexp": "a"}, "a", 5, ["a"], {"regex": 5}, {"regex": ""},
     {"choice": []}, {"choice": "a"}, {"choice": [1]}, {"choice": [""]}, {"json": False}, {"json": 1},
     {"json_schema": [1]}, {"json_schema": "["}, {"json_schema": "5"}, {"json_schema": {"const": float("nan")}},
     {"json_schema": {1: object()}}, {"regex": "\ud800"}, {"json_schema": {"const": "\ud800"}}, {"choice": ["\ud800"]}],
)  # fmt: skip
def test_what_is_no_constraint(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Constraints().judge("constraint", value)
    assert (caught.value.param or "").startswith("constraint")


def test_nesting_without_end() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    for value in (schema, '{"a":' * 10_000 + "1" + "}" * 10_000):
        with pytest.raises(InvalidRequest, match="nested"):
            Constraints().judge("constraint", {"json_schema": value})


def test_as_deep_as_a_schema_may_be() -> None:
    """Brackets in texts do not count."""
    text = '"[[{\\"[\\\\"'
    at_most = f'{{"const":{"[" * (MAX_SCHEMA_DEPTH - 1)}{text},{{}}{"]" * (MAX_SCHEMA_DEPTH - 1)}}}'
    with pytest.raises(InvalidRequest, match="nested"):
        Constraints().judge("constraint", {"json_schema": at_most})
    assert Constraints().judge("constraint", {"json_schema": at_most.replace(",{}", ",1")}).source


def test_the_order_of_properties_is_kept() -> None:
    judged = Constraints().judge("constraint", {"json_schema": {"properties": {"z": {}, "a": {}}}})
    assert judged.source.index('"z"') < judged.source.index('"a"')
    assert Constraints().judge("constraint", judged) is judged
