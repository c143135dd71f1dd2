"""From the rules of an answer to a grammar: reasoning, then calls in the form that the model writes, or content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drivetrain.core.constraint import ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import Tool, ToolMode
from drivetrain.text.answers.forms import (
    INDEX_HERE,
    NAME_HERE,
    Arguments,
    CallWriting,
    Form,
    PythonCalls,
    TaggedArguments,
)
from drivetrain.text.answers.table import FORMS
from drivetrain.text.answers.values import GEMMA
from drivetrain.text.grammar.gemma_calls import GemmaWriter
from drivetrain.text.grammar.keyword_calls import KeywordWriter
from drivetrain.text.grammar.lark import json_terms, lark_of, terms_of
from drivetrain.text.grammar.rules import AnswerRules, Reasoning
from drivetrain.text.grammar.spelling import TEXT, GrammarText, either
from drivetrain.text.grammar.tagged_calls import TaggedWriter

_ANY = r"(.|\n)*"
_JSON = (ConstraintForm.JSON, ConstraintForm.JSON_SCHEMA)


def can_write(form: str) -> bool:
    """Whether calls in this form can be enforced."""
    return form in FORMS and FORMS[form].writing is not None


def callable_tools(rules: AnswerRules) -> tuple[Tool, ...]:
    """Those of the tools that the choice leaves."""
    names = rules.choice.names
    if rules.choice.mode is ToolMode.NONE:
        return ()
    return tuple(tool for tool in rules.tools if not names or tool.name in names)


def check_rules(rules: AnswerRules) -> None:
    """Raise `InvalidRequest` for what does not go together."""
    form, tools = FORMS.get(rules.form), callable_tools(rules)
    if form is None or (tools and form.writing is None):
        raise InvalidRequest(f"answers in the form {rules.form} cannot be enforced", param="tool_choice")
    if rules.content is not None and rules.content.form is ConstraintForm.GRAMMAR and (tools or _reasons(rules)):
        what = "tools" if tools else "a model that reasons"
        raise InvalidRequest(f"constraint is a grammar, which cannot be combined with {what}", param="constraint")
    if isinstance(form.arguments, PythonCalls):
        for tool in tools:
            if tool.name[0].isdigit():
                what = "which cannot be called in Python's way: names must not begin with a digit"
                raise InvalidRequest(f"tools has {tool.name}, {what}", param="tools")


def answer_lark(rules: AnswerRules, tokenizer: Tokenizer | None = None) -> str:
    """Markers that are special tokens of the tokenizer are ids; without one, all are text.

    The rules are those that `check_rules` lets pass. Raises `CannotWrite` for a schema that the form cannot write.
    """
    if rules.content is not None and rules.content.form is ConstraintForm.GRAMMAR:
        return lark_of(rules.content)
    return _Answer(rules, FORMS[rules.form], callable_tools(rules), GrammarText(tokenizer)).text()


def arguments_lark(rules: AnswerRules, tool: Tool) -> str:
    """Of the arguments of one tool alone, with all markers as text. Raises `CannotWrite`."""
    grammar = GrammarText()
    return grammar.text(_writer(grammar, FORMS[rules.form]).arguments(schema_of(tool), "arguments"))


def schema_of(tool: Tool) -> dict[str, Any]:
    return {"type": "object", **json.loads(tool.parameters)}


def _reasons(rules: AnswerRules) -> bool:
    return rules.reasoning is not Reasoning.NONE and FORMS[rules.form].reasoning is not None


class _Answer:
    def __init__(self, rules: AnswerRules, form: Form, tools: tuple[Tool, ...], grammar: GrammarText) -> None:
        self._rules = rules
        self._form = form
        self._tools = tools
        self._numbers = {tool.name: number for number, tool in enumerate(tools)}
        self._grammar = grammar
        self._writing = form.writing or CallWriting("")
        self._content = rules.content
        self._objects = False
        if tools and self._content is not None and self._content.form in _JSON and self._writing.call.startswith("{"):
            # Only as JSON of a schema each can calls be told from content that is JSON too.
            self._writing, self._objects = replace(self._writing, call="", ends=""), True
        self._may_have_several = rules.parallel and not rules.choice.is_named and self._writing.between is not None

    def text(self) -> str:
        """Blank lines behind the reasoning are part of free text, if that comes next."""
        free, fixed = self._free(), self._fixed()
        if not _reasons(self._rules):
            return self._grammar.text(either((*fixed, *free)))
        reasoning = spaced = self._reasoning()
        if self._writing.reasoning is None:
            blank = self._grammar.rule("blank", r"/\n{1,2}/")
            spaced = f"{reasoning} {blank}?"
        if self._rules.reasoning is Reasoning.POSSIBLE:
            reasoning, spaced = f"({reasoning})?", f"({spaced})?"
        starts = [f"{spaced} {each}" for each in fixed] + [f"{reasoning} {each}" for each in free]
        return self._grammar.text(either(starts))

    def _reasoning(self) -> str:
        assert self._form.reasoning is not None
        opens, closes = self._form.reasoning
        inside = self._grammar.upto(closes, self._thought(), max_tokens=self._rules.max_reasoning_tokens)
        if self._rules.reasoning is Reasoning.BEGUN:
            return self._grammar.rule("reasoning", inside)
        begun = self._grammar.opening(opens, before=r"\n{0,2}")
        return self._grammar.rule("reasoning", f"{begun} {inside}")

    def _thought(self) -> str:
        """Text in which no call begins."""
        interrupting = [region for region in self._form.regions if region.interrupts] if self._tools else []
        names = "|".join(re.escape(tool.name) for tool in self._tools)
        openings = [(marker, region.header) for region in interrupting for marker in region.opens]
        named = [(marker, re.sub(r"\(\?P<name>[^)]*\)", lambda _: f"({names})", header)) for marker, header in openings]
        begun = [f"{_ANY}{re.escape(marker)}{header}{_ANY}" for marker, header in named]
        return self._grammar.except_for("|".join(begun), "THOUGHT") if begun else TEXT

    def _free(self) -> list[str]:
        """Answers that begin with any text."""
        if self._content is not None or self._writing.content:
            return []
        if not self._tools:
            return [self._text()]
        if self._rules.choice.mode is ToolMode.REQUIRED:
            return []
        text = self._free_text()
        if not self._writing.markers:
            return [text]
        begun = [self._after(marker, text) for marker in self._writing.markers]
        if self._may_have_several and self._writing.goes_on:
            return [f"{either(begun)}* {text}"]
        return [text, *begun]

    def _text(self) -> str:
        """Free text without calls, in which reasoning may be opened again, if it has no budget."""
        return TEXT if self._rules.max_reasoning_tokens is None else self._free_text()

    def _free_text(self) -> str:
        """Reasoning in the middle of it would hide from the reader which calls are none, and have no budget."""
        avoids = [self._writing.avoids] if self._tools and self._writing.avoids else []
        opens = self._form.reasoning[0] if self._form.reasoning is not None else ""
        if opens and not self._grammar.begins_special(opens):
            avoids.append(rf"(.|\n)*{re.escape(opens)}(.|\n)*")
        return self._grammar.except_for("|".join(avoids), "FREE") if avoids else TEXT

    def _fixed(self) -> list[str]:
        """Answers that begin with a call, with content of a certain kind, or with a marker of content."""
        writing, grammar = self._writing, self._grammar
        auto = self._rules.choice.mode is ToolMode.AUTO
        found: list[str] = []
        if self._tools and (not auto or self._content is not None or writing.content or not writing.markers):
            remark = grammar.terms(writing.remark[0]) + " " + grammar.upto(writing.remark[1]) if writing.remark else ""
            found.append(f"({remark})? {self._calls()}" if remark and auto else self._calls())
        if self._content is not None and (auto or not self._tools):
            found.append(self._opened_content(f"({terms_of(self._content)})"))
        elif writing.content and (auto or not self._tools):
            found.append(self._opened_content(self._text()))
        return found

    def _opened_content(self, inside: str) -> str:
        """With the marker that opens content, if there is one, and the one that may close it."""
        ends = self._grammar.terms(self._writing.content_ends)
        return f"{self._grammar.terms(self._writing.content)} {inside} {f'({ends})?' if ends else ''}"

    def _calls(self) -> str:
        """The section of calls, from its first character on."""
        writing, (head, tail) = self._writing, self._parts()
        if self._rules.choice.mode is not ToolMode.AUTO or self._objects:
            first = f"{self._grammar.terms(writing.opens + head)} {self._call(tail)}"
        elif writing.begins or head or not writing.opens:
            begins = writing.begins or (writing.opens + head)
            rest = (writing.opens + head)[len(begins) :]
            first = f"{self._grammar.opening(begins)} {self._grammar.terms(rest)} {self._call(tail)}"
        else:
            openings = {tool: f"{writing.opens}{tool.name}{tail}" for tool in self._tools}
            lazy = (self._grammar.opening(text) + " " + self._arguments(tool) for tool, text in openings.items())
            first = f"{either(lazy)} {self._grammar.terms(writing.ends)}"
        return f"{first} {self._more(head, tail)} {self._grammar.terms(writing.closes)}"

    def _after(self, marker: str, text: str) -> str:
        """Text up to a marker, and the calls that it opens."""
        head, tail = self._parts()
        opening = self._writing.opens + head
        at = opening.index(marker)
        rest = self._grammar.terms(opening[at + len(marker) :])
        found = f"{self._grammar.upto(marker, text)} {rest} {self._call(tail)}"
        if self._may_have_several and self._writing.goes_on:
            return found  # text comes in between
        closes = self._grammar.terms(self._writing.closes)
        if closes and at >= len(self._writing.opens):
            closes = f"({closes})?"
        return f"{found} {self._more(head, tail)} {closes}"

    def _parts(self) -> tuple[str, str]:
        """A call's opening, before its name and behind it."""
        head, _, tail = self._writing.call.partition(NAME_HERE)
        return head, tail

    def _more(self, head: str, tail: str) -> str:
        if not self._may_have_several or self._writing.between is None:
            return ""
        return f"({self._grammar.terms(self._writing.between + head)} {self._call(tail)})*"

    def _call(self, tail: str) -> str:
        """From its name on."""
        if "call" not in self._grammar:
            before, _, behind = tail.partition(INDEX_HERE)
            names: list[str] = []
            for tool in self._tools:
                name = "" if self._objects else self._grammar.terms(tool.name + before)
                number = f"/[0-9]{{1,4}}/ {self._grammar.terms(behind)}" if INDEX_HERE in tail else ""
                names.append(f"{name} {number} {self._arguments(tool)}")
            self._grammar.rule("call", f"{either(names)} {self._grammar.terms(self._writing.ends)}")
        return "call"

    def _arguments(self, tool: Tool) -> str:
        name = f"arguments_{self._numbers[tool.name]}"
        if name not in self._grammar:
            schema = schema_of(tool)
            if self._objects:
                self._grammar.rule(name, json_terms(_as_object(self._form, tool, schema)))
            else:
                self._grammar.rule(name, _writer(self._grammar, self._form).arguments(schema, f"{name}_inside"))
        return name


class _JsonWriter:
    def arguments(self, schema: Mapping[str, Any], name: str) -> str:
        return json_terms(schema)


def _writer(grammar: GrammarText, form: Form) -> _JsonWriter | TaggedWriter | KeywordWriter | GemmaWriter:
    inside = form.arguments
    if isinstance(inside, TaggedArguments) and form.writing is not None:
        return TaggedWriter(grammar, inside, form.writing)
    if isinstance(inside, PythonCalls):
        return KeywordWriter(grammar)
    if isinstance(inside, Arguments) and inside.dialect is GEMMA:
        return GemmaWriter(grammar)
    return _JsonWriter()


def _as_object(form: Form, tool: Tool, schema: dict[str, Any]) -> dict[str, Any]:
    """The whole call as JSON. What the schema refers to is found at the same place."""
    assert form.writing is not None
    key = "parameters" if '"parameters"' in form.writing.call else "arguments"
    definitions: dict[str, Any] = {name: schema.pop(name) for name in ("$defs", "definitions") if name in schema}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: schema},
        "required": ["name", key],
        "additionalProperties": False,
        **definitions,
    }
