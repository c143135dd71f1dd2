"""Run a chat template that came with somebody's weights: no access, bounded work, bounded output.

jinja2's immutable sandbox keeps a template from Python's internals and from changing what it is given; this adds the
bounds. Filters and methods are those on a list. What can make text or lists grow is judged before it runs and charged
after; what walks into nested values (printing, comparing, hashing) weighs them first, since ten lines can build a list
that prints as 10^20 characters. Only a single operation on long text is not interrupted; that takes under a second.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable
from types import CodeType, GeneratorType
from typing import Any

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from drivetrain.core.tokenizer import check_wanted
from drivetrain.text.provenance import Traced, Written, concat, traced
from drivetrain.text.template_names import names_read

ITEM_CHARS = 16  # what an item of a list counts for: about what it takes in memory
MAX_STEP = 64  # the greatest indent or precision that a filter takes, the most characters that one strips
COMPILED_KEPT = 16  # templates: the same model opened again need not wait for its own
MAX_BITS = 4096  # of a whole number: dividing greater ones, or writing them, takes time by the square

_NESTS: Any = (list, tuple, dict, type({}.keys()), type({}.values()), type({}.items()))
_LAZY: Any = (GeneratorType, type(reversed([])))
_WIDTHS = frozenset({"ljust", "rjust", "center", "zfill"})
_STRIPS = frozenset({"strip", "lstrip", "rstrip"})
_NUMERIC = frozenset({"odd", "even", "divisibleby"})  # tests that use %, which formats where a text is on its left

_FILTERS = """abs capitalize count d default dictsort e escape first float indent int items last length list lower map
max min reject rejectattr reverse round safe select selectattr sort string title trim unique upper"""
_PICKING = frozenset({"d", "default", "first", "last", "max", "min"})
_STR_METHODS = """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower
isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition
rsplit rstrip split splitlines startswith strip swapcase title upper"""
_METHODS: dict[type, frozenset[str]] = {
    str: _WIDTHS.union(_STR_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    **dict.fromkeys((list, tuple), frozenset({"count", "index"})),
    **dict.fromkeys((int, float), frozenset()),
}

_JUDGED = {"Compare.expr", "Operand.expr", "Pair.key", "Getitem.arg", "For.test"}
"""Fields of jinja2's nodes whose values are compared or hashed, or that run where no loop body does."""


class LimitPassed(Exception):
    """The template ran past a bound, named by the message."""


class Budget:
    """What one rendering may still use up. Time is the thread's own, so that a busy machine fails nobody."""

    def __init__(self, max_chars: int, max_seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._max_chars = max_chars
        self._left = 8 * max_chars
        self._clock = clock
        self._deadline = clock() + max_seconds
        self._steps_to_look = 32
        self._weights: dict[int, tuple[Any, int]] = {}

    def charge(self, chars: int = 0) -> None:
        """One step of work, which made `chars` characters."""
        self._left -= chars + 1
        if self._left < 0:
            raise LimitPassed("size")
        self._work(chars)

    def _work(self, chars: int) -> None:
        self._steps_to_look -= 1 + chars // 1024
        if self._steps_to_look < 0:
            self._steps_to_look = 32
            check_wanted()
            if self._clock() > self._deadline:
                raise LimitPassed("time")

    def size(self, chars: int) -> None:
        """Judge one value by the characters that it has, or would have."""
        if chars > self._max_chars:
            raise LimitPassed("size")

    def weigh(self, value: Any) -> int:
        """About how many characters a value prints as. What holds others cannot change, so is walked only once."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _NESTS):
            return 1
        known = self._weights.get(id(value))
        if known is None:
            self.charge(len(value))
            inner: Iterable[Any] = itertools.chain(*value.items()) if isinstance(value, dict) else value
            total = 2 + sum(self.weigh(item) + 2 for item in inner)
            self.size(total)
            known = self._weights[id(value)] = (value, total)
        self._work(known[1])
        return known[1]


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """`budget` is that of the rendering in progress, so there is one rendering at a time."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})
    concat = staticmethod(concat)  # of captured blocks and macros

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlocks, loopcontrols],
            finalize=self._shown,
            optimized=False,  # or constants would be worked out while compiling, outside any bound
        )
        self.code_generator_class = _TracedCode
        self.written = Written()
        self.budget = Budget(0, 0)
        own = {"join": self._join, "replace": self._replace, "tojson": self._to_json}
        allowed = {name: self.filters[name] for name in _FILTERS.split()} | own
        refused = {name: _refusing(name) for name in self.filters.keys() - allowed.keys()}
        self.filters = refused | {name: self._guarded(name, plain) for name, plain in allowed.items()}
        self.filters |= {"charged ": self._charged, "weighed ": self._weighed, "joined ": self._join}
        self.filters["searched "] = self._searched
        tests: Any = self.tests
        self.tests = {name: self._tested(name, plain) for name, plain in tests.items()}
        self.globals.pop("lipsum")
        self.globals["namespace"] = _Namespace

    def compiled(self, source: str) -> tuple[Any, frozenset[str]]:
        """The template, and the names of the variables that it takes from whoever renders it.

        Raises jinja2's `TemplateSyntaxError`.
        """
        code, names = _compiled(source)
        return self.template_class.from_code(self, code, self.make_globals(None)), names

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and not isinstance(left, (int, float)):
            raise SecurityError("a chat template may not format with %")
        if operator == "**" and not (abs(left) <= 1000 and abs(right) <= 100):
            raise LimitPassed("size")
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_BITS:
                raise LimitPassed("size")
        elif operator == "*":
            self.budget.size(_bulk(left) * _steps(right) + _bulk(right) * _steps(left))
        elif operator == "+":
            self.budget.size(_bulk(left) + _bulk(right))
        return self._charged(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base has it
        list(map(__self.budget.weigh, (*args, *kwargs.values())))
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._check_text_method(__obj.__name__, owner, args)
        elif isinstance(owner, (list, tuple)):
            __self.budget.weigh(owner)  # its methods compare each item
        return __self._charged(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Filters that take an attribute walk its dotted path by this, however long it is."""
        self.budget.charge()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """The base class lends out `str.format`, whose widths know no bound; here it is a method not on the list."""

    def _check_text_method(self, name: str, text: str, args: tuple[Any, ...]) -> None:
        if name in _WIDTHS:
            self.budget.size(max(map(_steps, args), default=0))
        elif name in _STRIPS and any(_steps(arg) > MAX_STEP for arg in args):
            raise LimitPassed("size")
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
            list(map(self.budget.weigh, values))
            if any(isinstance(value, LoopContext) for value in values):
                raise SecurityError("a chat template may not filter its loop")
            if name in {"round", "indent", "trim"} and any(_steps(value) > MAX_STEP for value in values[1:]):
                raise LimitPassed("size")
            if name == "round" and not isinstance(args[0], (int, float)):
                raise TypeError("only a number can be rounded")
            if name in {"indent", "title"}:
                self.budget.size(len(str(args[0]).splitlines() if name == "indent" else str(args[0])) * ITEM_CHARS)
            elif name == "list" and isinstance(args[-1], str):  # jinja2's own context stands before it
                self.budget.size(len(args[-1]) * ITEM_CHARS)
            result = plain(*args, **kwargs)
            return result if name in _PICKING else self._charged(result)

        return guarded

    def _tested(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Each test is a step, since `select` and its like may run one on every item before they give any."""

        @functools.wraps(plain)
        def tested(*args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values())
            list(map(self._searched if name == "in" else self._weighed, values))
            if name in _NUMERIC:
                if not all(isinstance(value, (int, float)) for value in values):
                    raise TypeError("only numbers can be divided")
                if sum(value.bit_length() for value in values if isinstance(value, int)) > MAX_BITS:
                    raise LimitPassed("size")
            return plain(*args, **kwargs)

        return tested

    def _charged(self, value: Any) -> Any:
        """Count a value just made. What a lazy filter would give bit by bit is drawn at once, and so counted."""
        if isinstance(value, _LAZY):
            drawn = _Drawn()
            for item in value:
                drawn.append(item)
                self.budget.charge(ITEM_CHARS)
                self.budget.size(_bulk(drawn))
            return drawn
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise LimitPassed("size")
        bulk = _bulk(value)
        self.budget.size(bulk)
        self.budget.charge(bulk)
        return value

    def _weighed(self, value: Any) -> Any:
        self.budget.charge()
        self.budget.weigh(value)
        return value

    def _searched(self, value: Any) -> Any:
        """What `in` looks at. A loop gives all that it runs over, and nobody has weighed that."""
        if isinstance(value, LoopContext):
            raise SecurityError("a chat template may not search its loop")
        return self._weighed(value)

    @pass_context
    def _shown(self, context: Any, value: Any) -> Traced:
        """Everything that the template writes passes here, captured blocks too."""
        self.budget.weigh(value)
        return traced(self._charged(str(value)))

    def _join(self, values: Any, d: Any = "", attribute: str | int | None = None) -> str:
        read = make_attrgetter(self, attribute)
        texts, length, glue = [], 0, traced(str(d))
        for value in values:
            item = read(value)
            self.budget.weigh(item)
            texts.append(str(item))
            length += len(texts[-1]) + len(glue)
            self.budget.size(length)
            self.budget.charge()
        return str(self._charged(glue.join(texts)))

    def _replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, before, after = traced(str(s)), str(old), str(new)
        self._check_text_method("replace", text, (before, after))
        return text.replace(before, after, -1 if count is None else count)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers has it: no escaping of HTML, nor of other scripts unless asked for."""
        if max(_steps(indent), self.budget.weigh(separators)) > MAX_STEP:
            raise LimitPassed("size")
        form = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self._join(form.iterencode(value))


@functools.lru_cache(maxsize=COMPILED_KEPT)
def _compiled(source: str) -> tuple[CodeType, frozenset[str]]:
    """A template's code, which is the same in every environment, and the names that it reads."""
    environment = BoundedEnvironment()
    template = environment.parse(source)
    names = names_read(template)  # before the hooks, which are not the template's own
    return environment.compile(_hooked(template)), names - environment.globals.keys()


class _TracedCode(CodeGenerator):
    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 - as the base class has it
        if isinstance(node.value, str):
            self.write(f"environment.written[{node.value!r}]")
        else:
            super().visit_Const(node, frame)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Drawn(list[Any]):
    """True even when empty, as the generator that jinja2 would have given."""

    def __bool__(self) -> bool:
        return True


class _Namespace(Namespace):
    __repr__ = object.__repr__  # which looks at nothing inside


def _hooked(node: Any) -> Any:
    """Where jinja2 asks nobody: literal text, loops, slices, `~`, comparisons, keys."""
    for field, value in node.iter_fields():
        hook = "weighed " if f"{type(node).__name__}.{field}" in _JUDGED else ""
        if isinstance(node, nodes.Operand) and node.op in {"in", "notin"}:
            hook = "searched "
        if isinstance(value, list):
            value[:] = [_through(hook, _hooked(item)) if isinstance(item, nodes.Node) else item for item in value]
        elif isinstance(value, nodes.Node):
            setattr(node, field, _through(hook, _hooked(value)))
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        raise TemplateSyntaxError("a chat template may not load another", node.lineno)
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
        tick = _through("charged ", _placed(nodes.List([]), node))
        node.body.insert(0, _placed(nodes.ExprStmt(tick), node))
    if isinstance(node, nodes.TemplateData):
        return _placed(nodes.Const(node.data), node)
    if isinstance(node, nodes.Concat):
        return _through("joined ", _placed(nodes.List(node.nodes), node))
    is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    return _through("charged ", node) if is_slice else node


def _through(name: str, node: Any) -> Any:
    """The name ends in a space, so that no template can spell it or put something else in its place."""
    if not name or isinstance(node, (nodes.Const, nodes.Slice)):
        return node
    return _placed(nodes.Filter(node, name, [], [], None, None), node)


def _placed(new: Any, old: Any) -> Any:
    """Give a node of ours the place of the one that it stands beside or replaces."""
    return new.set_lineno(old.lineno).set_environment(old.environment)


def _bulk(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(value) * ITEM_CHARS if isinstance(value, (list, tuple, dict)) else 0


def _steps(value: Any) -> int:
    return len(value) if isinstance(value, str) else abs(value) if isinstance(value, int) else 0


def _refusing(name: str) -> Callable[..., Any]:
    """A filter that jinja2 has and we do not trust: only a template that calls it fails, not one that mentions it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise SecurityError(f"the filter {name} is not allowed in a chat template")

    return refuse
