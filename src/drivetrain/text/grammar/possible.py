"""Whether any value can satisfy several schemas at once, as far as that can be seen from their keywords."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from drivetrain.text.grammar.documents import CannotRewrite, Document, Node
from drivetrain.text.grammar.patterns import matches

MAX_DEPTH = 8
MAX_REFERENCES = 20

Kinds = frozenset[str]
KINDS: Kinds = frozenset(("null", "boolean", "whole", "broken", "string", "array", "object"))
"""Types that share no value: whole numbers and others."""

_OF_TYPE: dict[str, Kinds] = {
    "integer": frozenset(("whole",)),
    "number": frozenset(("whole", "broken")),
    **{kind: frozenset((kind,)) for kind in KINDS - {"whole", "broken"}},
}
_LEAST_MOST = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


def kinds_of_type(declared: Any) -> Kinds:
    names = [declared] if isinstance(declared, str) else declared
    if declared is None:
        return KINDS
    if not isinstance(names, list) or not all(name in _OF_TYPE for name in names):
        raise CannotRewrite(f"there is no type {str(declared)[:40]!r}", "type")
    return frozenset[str]().union(*(_OF_TYPE[name] for name in names))


def type_of_kinds(kinds: Kinds) -> list[str]:
    if "broken" in kinds and "whole" not in kinds:
        raise CannotRewrite("numbers that are not whole cannot be told from others")
    numbers = ["number"] if "broken" in kinds else ["integer"] if "whole" in kinds else []
    return [*numbers, *sorted(kinds - {"whole", "broken"})]


def kind_of(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "whole" if float(value).is_integer() else "broken"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def key_of(value: Any) -> Any:
    """The same for values that JSON Schema takes for the same."""
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, key_of(each)) for key, each in value.items()))
    return (kind_of(value), value)


def values_of(node: Node) -> list[Any] | None:
    if "enum" in node and "const" in node:
        return [value for value in node["enum"] if key_of(value) == key_of(node["const"])]
    return list(node["enum"]) if "enum" in node else [node["const"]] if "const" in node else None


class Conjunction:
    """Schemas that hold at once, without the references and `allOf` between them."""

    def __init__(self, document: Document, schemas: Iterable[Any]) -> None:
        self._document = document
        self.nodes: list[Node] = []
        self.is_false = False
        self.choices: list[list[Any]] = []
        """Lists of which one must hold."""
        for schema in schemas:
            self._add(schema, MAX_REFERENCES)

    def _add(self, schema: Any, references: int) -> None:
        if schema is True or schema is False:
            self.is_false |= not schema
            return
        node = self._document.view(schema)
        self.nodes.append(node)
        if "$ref" in node and references:
            self._add(self._document.target(node["$ref"]), references - 1)
        for part in node.get("allOf", ()):
            self._add(part, references - 1 if references else 0)
        self.choices += [node[key] for key in ("anyOf", "oneOf") if key in node]

    @property
    def kinds(self) -> Kinds:
        kinds = KINDS
        for node in self.nodes:
            kinds &= kinds_of_type(node.get("type"))
            if (values := values_of(node)) is not None:
                self._document.spend(len(values) // 10)
                kinds &= frozenset(map(kind_of, values))
        for choice in self.choices:
            kinds &= frozenset[str]().union(*(_kinds(self._document, option) for option in choice))
        return kinds

    @property
    def values(self) -> list[Any] | None:
        """The values that it leaves at most; None if there may be any number."""
        lists = [values for node in self.nodes if (values := values_of(node)) is not None]
        if not lists:
            return None
        self._document.spend(sum(map(len, lists)) // 5)
        kinds = self.kinds
        common = frozenset(map(key_of, lists[0])).intersection(*(map(key_of, values) for values in lists[1:]))
        return [value for value in lists[0] if key_of(value) in common and kind_of(value) in kinds]

    @property
    def keys(self) -> list[str] | None:
        """All that an object may have; None if there may be others."""
        closed = [node for node in self.nodes if node.get("additionalProperties") is False]
        closed = [node for node in closed if not node.get("patternProperties")]
        self._document.spend(sum(len(node.get("properties", ())) for node in closed) // 10)
        if not closed:
            return None
        return [key for key in closed[0].get("properties", {}) if all(key in n.get("properties", {}) for n in closed)]

    @property
    def required(self) -> list[str]:
        return list(dict.fromkeys(key for node in self.nodes for key in node.get("required", ())))

    @property
    def named(self) -> list[str]:
        """Each key that a schema names, in a choice too."""
        inner = (Conjunction(self._document, [option]).named for choice in self.choices for option in choice)
        own = (key for node in self.nodes for key in (*node.get("properties", ()), *node.get("required", ())))
        return list(dict.fromkeys((*own, *(key for keys in inner for key in keys))))

    def property(self, key: str) -> list[Any]:
        """What the value of this key must satisfy, and more perhaps: not told of a node that has patterns of keys."""
        return [schema for node in self.nodes for schema in _property(node, key)]

    def item(self, index: int) -> list[Any]:
        return [schema for node in self.nodes for schema in _item(node, index)]


def _kinds(document: Document, schema: Any) -> Kinds:
    found = Conjunction(document, [schema])
    return frozenset() if found.is_false else found.kinds


def _property(node: Node, key: str) -> Iterator[Any]:
    if key in node.get("properties", {}):
        yield node["properties"][key]
    elif "additionalProperties" in node and not node.get("patternProperties"):
        yield node["additionalProperties"]


def _item(node: Node, index: int) -> Iterator[Any]:
    first = node.get("prefixItems", ())
    if index < len(first):
        yield first[index]
    elif "items" in node:
        yield node["items"]


def is_impossible(document: Document, schemas: Sequence[Any], depth: int = MAX_DEPTH) -> bool:
    """True only where no value satisfies all of them."""
    document.spend()
    found = Conjunction(document, schemas)
    if found.is_false or not (kinds := found.kinds) or found.values == []:
        return True
    if depth == 0:
        return False
    if all(_is_dead(document, found, kind, depth) for kind in kinds):
        return True
    plain = [Node({k: v for k, v in n.items() if k not in ("anyOf", "oneOf", "allOf", "$ref")}) for n in found.nodes]
    for choice in found.choices:
        if all(is_impossible(document, [*plain, option], depth - 4 if depth > 4 else 0) for option in choice):
            return True
    return False


def _is_dead(document: Document, found: Conjunction, kind: str, depth: int) -> bool:
    if kind in ("whole", "broken"):
        return _is_empty_range(found.nodes)
    if kind not in _LEAST_MOST:
        return False
    if kind == "string" and _no_text_fits(document, found):
        return True
    least_key, most_key = _LEAST_MOST[kind]
    least = max((node.get(least_key, 0) for node in found.nodes), default=0)
    if any(least > node[most_key] for node in found.nodes if most_key in node):
        return True
    if kind == "array":
        first = min(int(least), 20)
        return any(is_impossible(document, found.item(i), depth - 1) for i in range(first) if found.item(i))
    if kind == "object":
        required = found.required
        document.spend(len(required) * len(found.nodes) // 10)
        if any(len(required) > node["maxProperties"] for node in found.nodes if "maxProperties" in node):
            return True
        return any(is_impossible(document, values, depth - 1) for key in required if (values := found.property(key)))
    return False


def _no_text_fits(document: Document, found: Conjunction) -> bool:
    """Of texts that are counted, each has a pattern that it does not match."""
    texts = [""] if any(node.get("maxLength") == 0 for node in found.nodes) else found.values
    patterns = [node["pattern"] for node in found.nodes if "pattern" in node]
    document.spend(len(texts or ()) * len(patterns))
    return texts is not None and all(
        any(matches(pattern, text) is False for pattern in patterns) for text in texts if isinstance(text, str)
    )


def _is_empty_range(nodes: Iterable[Node]) -> bool:
    low, high = (float("-inf"), False), (float("inf"), False)
    for node in nodes:
        values = [value for value in values_of(node) or () if kind_of(value) in ("whole", "broken")]
        at_least = [node[key] for key in ("minimum",) if key in node] + ([min(values)] if values else [])
        at_most = [node[key] for key in ("maximum",) if key in node] + ([max(values)] if values else [])
        above = [node[key] for key in ("exclusiveMinimum",) if key in node]
        below = [node[key] for key in ("exclusiveMaximum",) if key in node]
        low = max([low, *((value, False) for value in at_least), *((value, True) for value in above)])
        high = min([high, *((value, False) for value in at_most), *((value, True) for value in below)], key=_from_top)
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))


def _from_top(bound: tuple[float, bool]) -> tuple[float, bool]:
    return bound[0], not bound[1]
