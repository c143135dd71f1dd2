"""Run a chat template that came with somebody's weights: no access, bounded work, bounded output.

jinja2's immutable sandbox keeps a template from reaching Python's internals and from changing what it is given. This
module adds the bounds. Filters and methods are those on a list; whatever can make text or lists grow is judged before it
runs and charged afterwards; whatever walks into nested values (printing, comparing, hashing) weighs them first, since
ten lines can build a list that would print as 10^20 characters. Where jinja2 has no hook, the syntax tree gets one.

What is left: one operation on long text (splitting megabytes) is not interrupted, so a rendering can pass its time by as
much as that takes, well under a second.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from types import GeneratorType
from typing import Any

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

ITEM_CHARS = 16
"""What an item of a list counts for, in characters: about what it takes in memory."""

MAX_STEP = 10_000
"""The largest width, count or precision that a filter takes."""

_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_NESTS = (list, tuple, dict, *_VIEWS)

_FILTERS = frozenset(
    "abs batch capitalize count d default dictsort e escape first float forceescape groupby int items last length list"
    " lower map max min reject rejectattr reverse round safe select selectattr slice sort string title trim truncate"
    " unique upper urlencode wordcount".split()
)
_STEPPED = frozenset({"batch", "round", "slice", "truncate"})

_WIDTHS = frozenset({"ljust", "rjust", "center", "zfill"})
_METHODS: dict[type, frozenset[str]] = {
    str: _WIDTHS
    | frozenset(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace"
        " istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit"
        " rstrip split splitlines startswith strip swapcase title upper".split()
    ),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index", "grouper", "list"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    int: frozenset(),
    float: frozenset({"is_integer"}),
}

_COMPARED = {nodes.Compare: "expr", nodes.Operand: "expr", nodes.Test: "node", nodes.Pair: "key", nodes.Getitem: "arg"}
"""Nodes that compare or hash what they find in a field."""


class TemplateRefused(Exception):
    """The template said no to these messages (`raise_exception`)."""


class LimitPassed(Exception):
    """The template ran past a bound."""


class Budget:
    """What one rendering may still use up. Time is the thread's own, so that a busy machine fails nobody."""

    def __init__(self, max_chars: int, max_seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._max_chars = max_chars
        self._left = 8 * max_chars
        self._clock = clock
        self._deadline = clock() + max_seconds
        self._charges = 0
        self._weights: dict[int, tuple[object, int]] = {}

    def charge(self, chars: int = 0) -> None:
        """One step of work, which made `chars` characters."""
        self._left -= chars + 1
        if self._left < 0:
            raise LimitPassed("size")
        self._charges += 1
        if self._charges % 32 == 0 and self._clock() > self._deadline:
            raise LimitPassed("time")

    def size(self, chars: int) -> None:
        """Judge one value by the characters that it has, or would have."""
        if chars > self._max_chars:
            raise LimitPassed("size")

    def weigh(self, value: object) -> int:
        """About how many characters a value prints as. What holds others cannot change, so is walked only once."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _NESTS):
            return 1
        known = self._weights.get(id(value))
        if known is None:
            self.charge(len(value))
            inner: Iterable[object] = itertools.chain(*value.items()) if isinstance(value, dict) else value
            total = 2 + sum(self.weigh(item) + 2 for item in inner)
            self.size(total)
            known = self._weights[id(value)] = (value, total)
        return known[1]


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """`budget` is that of the rendering in progress, so there is one rendering at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlocks, loopcontrols],
            finalize=self._shown,
            optimized=False,  # or constants would be worked out while compiling, outside any bound
        )
        self.budget = Budget(0, 0)
        own = {
            "indent": _indent,
            "join": self._join,
            "replace": self._replace,
            "sum": self._sum,
            "tojson": self._to_json,
        }
        allowed = {name: self.filters[name] for name in _FILTERS} | own
        self.filters = {name: self._guarded(name, filter_) for name, filter_ in allowed.items()}
        self.filters |= {"charged ": self._charged, "weighed ": self._weighed, "joined ": self._join}
        self.globals.pop("lipsum")
        self.globals |= {"namespace": _Namespace, "raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compiled(self, source: str) -> Any:
        """Raises jinja2's `TemplateSyntaxError`."""
        return self.from_string(_hooked(self.parse(source)))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and not isinstance(left, (int, float)):
            raise SecurityError("a chat template may not format with %")
        if operator == "**" and not (abs(left) <= 1000 and abs(right) <= 100):
            raise LimitPassed("size")
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > 4096:
                raise LimitPassed("size")
        elif operator == "*":
            self.budget.size(_bulk(left) * _count(right) + _bulk(right) * _count(left))
        elif operator == "+":
            self.budget.size(_bulk(left) + _bulk(right))
        return self._charged(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base has it
        for value in (*args, *kwargs.values()):
            __self.budget.weigh(value)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._check_text_method(__obj.__name__, owner, args)
        return __self._charged(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """The base class lends out `str.format`, whose widths know no bound; here it is a method not on the list."""

    def _check_text_method(self, name: str, text: str, args: tuple[Any, ...]) -> None:
        if name in _WIDTHS:
            self.budget.size(max(map(_count, args), default=0))
        elif name == "replace" and len(args) >= 2:
            self.budget.size(len(text) + text.count(str(args[0])) * len(str(args[1])))
        elif name == "join" and args:
            self.budget.size(self.budget.weigh(args[0]) + len(text) * len(args[0]))
        elif name in {"split", "rsplit"} and args and isinstance(args[0], str):
            self.budget.size(text.count(args[0]) * ITEM_CHARS)

    def _guarded(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)  # its attributes tell jinja2 what to pass first
        def guarded(*args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values())
            for value in values:
                self.budget.weigh(value)
            if name in _STEPPED and any(isinstance(v, int) and abs(v) > MAX_STEP for v in values[1:]):
                raise LimitPassed("size")
            if name == "list" and isinstance(args[0], str):
                self.budget.size(len(args[0]) * ITEM_CHARS)
            return self._charged(plain(*args, **kwargs))

        return guarded

    def _charged(self, value: Any) -> Any:
        """Count a value just made. What a lazy filter would give bit by bit is drawn at once, and so counted."""
        if isinstance(value, GeneratorType):
            drawn = _Drawn()
            for item in value:
                self.budget.charge(ITEM_CHARS)
                self.budget.size(len(drawn) * ITEM_CHARS)
                drawn.append(item)
            return drawn
        bulk = _bulk(value)
        self.budget.size(bulk)
        self.budget.charge(bulk)
        return value

    def _weighed(self, value: Any) -> Any:
        self.budget.weigh(value)
        return value

    @pass_context
    def _shown(self, context: Any, value: Any) -> str:
        """Everything that the template writes passes here, captured blocks too."""
        self.budget.weigh(value)
        return str(self._charged(str(value)))

    def _join(self, values: Any, d: Any = "", attribute: str | int | None = None) -> str:
        read = make_attrgetter(self, attribute) if attribute is not None else _same
        texts, length, glue = [], 0, str(d)
        for value in values:
            item = read(value)
            self.budget.weigh(item)
            texts.append(str(item))
            length += len(texts[-1]) + len(glue)
            self.budget.size(length)
            self.budget.charge()
        return str(self._charged(glue.join(texts)))

    def _replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, before, after = str(s), str(old), str(new)
        self._check_text_method("replace", text, (before, after))
        return text.replace(before, after, -1 if count is None else count)

    def _sum(self, values: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
        read = make_attrgetter(self, attribute) if attribute is not None else _same
        return functools.reduce(lambda a, b: self.call_binop(None, "+", a, b), map(read, values), start)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers has it: no escaping of HTML, nor of other scripts unless asked for."""
        if (isinstance(indent, int) and abs(indent) > 64) or self.budget.weigh((indent, separators)) > 128:
            raise LimitPassed("size")
        encoder = json.JSONEncoder(
            ensure_ascii=bool(ensure_ascii), indent=indent, separators=separators, sort_keys=bool(sort_keys)
        )
        return self._join(encoder.iterencode(value))


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Drawn(list[Any]):
    """True even when empty, as the generator that jinja2 would have given."""

    def __bool__(self) -> bool:
        return True


class _Namespace(Namespace):
    def __repr__(self) -> str:
        return "<namespace>"


def _hooked(node: Any) -> Any:
    """Where jinja2 asks nobody: literal text, loops, slices, `~`, comparisons, tests, keys."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_hooked(item) if isinstance(item, nodes.Node) else item for item in value]
        elif isinstance(value, nodes.Node):
            setattr(node, field, _hooked(value))
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        raise TemplateSyntaxError("a chat template may not load another", node.lineno)
    if isinstance(node, nodes.TemplateData):
        return _placed(nodes.Const(node.data), node)
    if isinstance(node, nodes.Concat):
        return _through("joined ", _placed(nodes.List(node.nodes), node))
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _through("charged ", node)
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
        tick = _through("charged ", _placed(nodes.List([]), node))
        node.body.insert(0, _placed(nodes.ExprStmt(tick), node))
    if isinstance(node, nodes.For) and node.test is not None:
        node.test = _through("charged ", node.test)
    for kind, field in _COMPARED.items():
        if isinstance(node, kind):
            setattr(node, field, _through("weighed ", getattr(node, field)))
    if isinstance(node, nodes.Test):
        node.args = [_through("weighed ", arg) for arg in node.args or ()]
    return node


def _through(name: str, node: Any) -> Any:
    """The name ends in a space, so that no template can spell it or put something else in its place."""
    return node if isinstance(node, nodes.Const) else _placed(nodes.Filter(node, name, [], [], None, None), node)


def _placed(new: nodes.Node, old: nodes.Node) -> Any:
    """Give a node of ours the place of the one that it stands beside or replaces."""
    assert old.environment is not None
    return new.set_lineno(old.lineno).set_environment(old.environment)


def _bulk(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(value) * ITEM_CHARS if isinstance(value, (list, tuple, dict)) else 0


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _same(value: Any) -> Any:
    return value


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * min(int(width), 65)
    if len(pad) > 64:
        raise LimitPassed("size")
    lines = (str(s) + "\n").splitlines()
    return "\n".join(pad + line if (line or blank) and (i or first) else line for i, line in enumerate(lines))


def _raise_exception(message: Any) -> None:
    raise TemplateRefused(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > 200:
        raise LimitPassed("size")
    return datetime.now().strftime(form)


__all__ = ["BoundedEnvironment", "Budget", "Environment", "LimitPassed", "TemplateError", "TemplateRefused"]
