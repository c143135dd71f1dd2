"""Run a chat template that came with somebody's weights: no access, bounded work, bounded output.

jinja2's immutable sandbox keeps a template from reaching Python's internals and from changing what it is given. This
module adds the bounds. The template is compiled from its syntax tree, in which every loop and macro body begins
with a tick that looks at the clock; operators and methods that can blow text up are checked before they run.

What is left: a single cheap operation on long text (a filter over a message of megabytes) is not interrupted, so the
time bound can be passed by as much as one such operation takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RANGE = 100_000


class TemplateRefused(Exception):
    """The template said no to these messages (`raise_exception`)."""


class LimitPassed(Exception):
    """The template ran past a bound."""


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Budget:
    """What one rendering may still use up."""

    def __init__(self, max_chars: int, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_chars = max_chars
        self._clock = clock
        self._deadline = clock() + max_seconds

    def tick(self) -> str:
        if self._clock() > self._deadline:
            raise LimitPassed("time")
        return ""

    def size(self, chars: int) -> None:
        if chars > self.max_chars:
            raise LimitPassed("size")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One rendering at a time on one thread uses `budget`; make one environment for each thread or guard it."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols])
        self.budget = Budget(0, 0)
        self.filters["tojson"] = _to_json
        for name in ("center", "format", "wordwrap", "pprint", "random", "urlize", "xmlattr"):
            self.filters.pop(name, None)
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)
        self.filters["indent"] = _indent
        self.filters["replace"] = self._replace
        self.filters["join"] = self._join
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.globals["_tick"] = lambda: self.budget.tick()
        self.globals["_joined"] = self._joined

    def compiled(self, source: str) -> Any:
        """Raises jinja2's `TemplateSyntaxError`."""
        tree = self.parse(source)
        _add_ticks(tree)
        return self.from_string(tree)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 1000 and abs(right) <= 100):
            raise LimitPassed("size")
        if operator == "*":
            self.budget.size(_length(left) * _count(right) + _length(right) * _count(left))
        elif operator == "+":
            self.budget.size(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not allowed in a chat template")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base has it
        __self.budget.tick()
        name = getattr(__obj, "__name__", "")
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._check_text_method(name, owner, args)
        return super().call(__context, __obj, *args, **kwargs)

    def _check_text_method(self, name: str, text: str, args: tuple[Any, ...]) -> None:
        if name in {"ljust", "rjust", "center", "zfill", "expandtabs"}:
            self.budget.size(len(text) + max((_count(a) for a in args), default=8) * (1 + text.count("\t")))
        elif name == "replace" and len(args) >= 2:
            self.budget.size(len(text) + (text.count(str(args[0])) + 1) * len(str(args[1])))
        elif name == "join" and args and isinstance(args[0], (list, tuple)):
            self.budget.size(sum(_length(a) for a in args[0]) + len(text) * len(args[0]))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in {"format", "format_map", "translate"}:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, str) and attribute in {"format", "format_map"}:  # the base class would wrap them
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def _replace(self, text: Any, old: Any, new: Any, count: int = -1) -> str:
        whole, before, after = str(text), str(old), str(new)
        self.budget.size(len(whole) + (whole.count(before) + 1) * len(after))
        return whole.replace(before, after, count)

    def _join(self, values: Any, separator: str = "", attribute: str | int | None = None) -> str:
        texts = []
        for value in values:
            self.budget.tick()
            texts.append(str(self.getitem(value, attribute) if attribute is not None else value))
            self.budget.size(sum(map(len, texts[-1:])) + len(texts) * len(separator))
        self.budget.size(sum(map(len, texts)) + len(texts) * len(separator))
        return str(separator).join(texts)

    def _joined(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        self.budget.size(sum(map(len, texts)))
        return "".join(texts)


def _add_ticks(tree: nodes.Template) -> None:
    """A tick at the head of every loop and macro body; `~` becomes a call that looks at the size."""
    kinds: Any = (nodes.For, nodes.Macro, nodes.CallBlock)
    for node in list(tree.find_all(kinds)):
        tick = nodes.Call(nodes.Name("_tick", "load"), [], [], None, None)
        node.body.insert(0, _placed(nodes.ExprStmt(tick), node))
    _replace_concat(tree)


def _placed(new: nodes.Node, old: nodes.Node) -> Any:
    """Give a node of ours the place of the one that it stands beside or replaces."""
    new.set_lineno(old.lineno)
    assert old.environment is not None
    return new.set_environment(old.environment)


def _replace_concat(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_without_concat(item) for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _without_concat(value))


def _without_concat(value: Any) -> Any:
    if not isinstance(value, nodes.Node):
        return value
    _replace_concat(value)
    if isinstance(value, nodes.Concat):
        return _placed(nodes.Call(nodes.Name("_joined", "load"), value.nodes, [], None, None), value)
    return value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers has it: no escaping of HTML or of other scripts."""
    if indent is not None and not 0 <= indent <= 16:
        raise LimitPassed("size")
    allowed: dict[str, Any] = {"ensure_ascii": False, "indent": indent}
    allowed |= {key: options[key] for key in ("ensure_ascii", "separators", "sort_keys") if key in options}
    return json.dumps(value, **allowed)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * min(int(width), 64)
    if len(pad) > 64:
        raise LimitPassed("size")
    lines = str(text).split("\n")
    padded = [pad + line if (line or blank) and (i or first) else line for i, line in enumerate(lines)]
    return "\n".join(padded)


def _raise_exception(message: Any) -> None:
    raise TemplateRefused(str(message)[:500])


__all__ = ["BoundedEnvironment", "Budget", "Environment", "LimitPassed", "TemplateError", "TemplateRefused"]
