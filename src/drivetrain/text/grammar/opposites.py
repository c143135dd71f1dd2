"""The opposite of a schema: what all values satisfy that do not satisfy it.

It is written without `not`, as a list of schemas of which at least one holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from drivetrain.text.grammar.documents import CannotRewrite, Document, Node
from drivetrain.text.grammar.patterns import matches, never_both, pattern_of_others
from drivetrain.text.grammar.possible import (
    Conjunction,
    Kinds,
    is_impossible,
    kind_of,
    kinds_of_type,
    type_of_kinds,
    values_of,
)

MAX_OPTIONAL = 4
"""Keys of which each set is told apart, to say that an object has one more."""

MAX_ITEMS = 16

_OF_KINDS: dict[str, Kinds] = {
    "multipleOf": frozenset(("whole", "broken")),
    "pattern": frozenset(("string",)),
    "format": frozenset(("string",)),
}
"""Those without an opposite, and what they are about."""

_FLIPPED = {
    "minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum", "exclusiveMaximum": "minimum",
}  # fmt: skip


class Opposites:
    """Raises `CannotRewrite` for what has no exact opposite in the keywords that the library knows."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[int] = []

    def of(self, schema: Any, context: Sequence[Any]) -> list[Any]:
        """`context` are schemas that hold beside it: what they exclude need not be told."""
        self._document.spend()
        if schema is True or schema is False:
            return [] if schema else [True]
        if id(schema) in self._open:
            raise CannotRewrite("it has a reference that leads to itself, whose opposite cannot be written")
        self._open.append(id(schema))
        try:
            found = list(self._parts(self._document.view(schema), context))
        finally:
            self._open.pop()
        return [option for option in found if not is_impossible(self._document, [*context, option])]

    def _parts(self, node: Node, context: Sequence[Any]) -> Iterator[Any]:
        around = Conjunction(self._document, context)
        kinds = around.kinds
        declared = kinds_of_type(node.get("type"))
        if others := kinds - declared:
            yield Node(type=type_of_kinds(others))
        alive = kinds & declared
        if (values := values_of(node)) is not None:
            yield from self._other_values(values, alive, around)
        for keyword, value in node.items():
            yield from self._opposite(keyword, value, node, alive, context)

    def _opposite(self, keyword: str, value: Any, node: Node, alive: Kinds, context: Sequence[Any]) -> Iterator[Any]:
        if keyword in ("type", "enum", "const", "then", "else", "nullable", "minContains", "maxContains"):
            return  # told with others
        if keyword in _FLIPPED:
            if alive & {"whole", "broken"}:
                yield Node({"type": type_of_kinds(alive & {"whole", "broken"}), _FLIPPED[keyword]: value})
        elif keyword in ("minLength", "minItems", "minProperties"):
            kind = {"minLength": "string", "minItems": "array"}.get(keyword, "object")
            if kind in alive and value > 0:
                yield Node({"type": kind, keyword.replace("min", "max"): value - 1})
        elif keyword in ("maxLength", "maxItems", "maxProperties"):
            kind = {"maxLength": "string", "maxItems": "array"}.get(keyword, "object")
            if kind in alive:
                yield Node({"type": kind, keyword.replace("max", "min"): value + 1})
        elif keyword == "allOf":
            for part in value:
                yield from self.of(part, context)
        elif keyword == "anyOf":
            yield Node(allOf=[self._one(part, context) for part in value])
        elif keyword == "oneOf":
            yield Node(allOf=[self._one(part, context) for part in value])
            yield from (Node(allOf=list(pair)) for pair in combinations(value, 2))
        elif keyword == "not":
            yield value
        elif keyword == "if":
            yield from self._conditional(node, context)
        elif keyword == "$ref":
            yield from self.of(self._document.target(value), context)
        elif keyword in _OF_OBJECTS:
            if "object" in alive:
                yield from self._object(keyword, value, node, context)
        elif keyword in ("items", "prefixItems", "contains", "uniqueItems"):
            if "array" in alive:
                yield from self._array(keyword, value, node, context)
        elif keyword not in _OF_KINDS or alive & _OF_KINDS[keyword]:
            raise CannotRewrite(f"{keyword} in it has no opposite that can be written")

    def _one(self, schema: Any, context: Sequence[Any]) -> Any:
        return any_of(self.of(schema, context))

    def _conditional(self, node: Node, context: Sequence[Any]) -> Iterator[Any]:
        if "then" in node:
            yield from (Node(allOf=[node["if"], part]) for part in self.of(node["then"], [*context, node["if"]]))
        if "else" in node:
            otherwise = self.of(node["else"], context)
            yield from (Node(allOf=[no, part]) for no in self.of(node["if"], context) for part in otherwise)

    def _object(self, keyword: str, value: Any, node: Node, context: Sequence[Any]) -> Iterator[Any]:
        around = Conjunction(self._document, context)
        if keyword == "required":
            yield from (without(key) for key in value)
        elif keyword == "properties":
            for key, schema in value.items():
                yield from self._with_property(key, schema, around)
        elif keyword == "patternProperties":
            yield from self._patterned(value, around)
        elif keyword == "additionalProperties":
            yield from self._additional(value, node, around)
        elif keyword == "propertyNames":
            if value is not True and (value is False or self._document.view(value)):
                raise CannotRewrite("propertyNames in it has no opposite that can be written")
        elif keyword == "dependentRequired":
            for key, needed in value.items():
                yield from (having(key, allOf=[without(other)]) for other in needed)
        elif keyword == "dependentSchemas":
            for key, schema in value.items():
                yield from (having(key, allOf=[part]) for part in self.of(schema, context))

    def _with_property(self, key: str, schema: Any, around: Conjunction) -> Iterator[Any]:
        if _are_apart(self._document, around, [key], []) or is_impossible(self._document, [*around.nodes, having(key)]):
            return
        for part in self.of(schema, around.property(key)):
            yield having(key, properties={key: part})

    def _patterned(self, patterns: dict[str, Any], around: Conjunction) -> Iterator[Any]:
        """A key that a pattern takes, with a value that does not satisfy its schema."""
        for pattern, schema in patterns.items():
            if (
                schema is True
                or (schema is not False and not self._document.view(schema))
                or _are_apart(self._document, around, [], [pattern])
            ):
                continue
            if (keys := around.keys) is None or None in (taken := [matches(pattern, key) for key in keys]):
                raise CannotRewrite("patternProperties in it has no opposite that can be written")
            for key, is_taken in zip(keys, taken, strict=True):
                if is_taken:
                    yield from self._with_property(key, schema, around)

    def _additional(self, schema: Any, node: Node, around: Conjunction) -> Iterator[Any]:
        """A key that `properties` does not name, with a value that does not satisfy the schema."""
        own = list(node.get("properties", {}))
        if schema is True or (schema is not False and not self._document.view(schema)):
            return
        patterns = list(node.get("patternProperties", ()))
        if schema is False and _are_apart(self._document, around, own, patterns):
            yield Node(type="object", minProperties=1)
            return
        if patterns:
            raise CannotRewrite("patternProperties in it has no opposite that can be written")
        if (keys := around.keys) is not None:
            for key in keys:
                if key not in own:
                    yield from self._with_property(key, schema, around)
            return
        optional = [key for key in own if key not in around.required]
        if schema is not False or len(optional) > MAX_OPTIONAL:
            raise CannotRewrite("additionalProperties in it has no opposite that can be written")
        fixed = [key for key in own if key in around.required]
        for number in range(len(optional) + 1):
            for there in combinations(optional, number):
                absent = {key: False for key in optional if key not in there}
                having_all = [*fixed, *there]
                more = Node(type="object", required=having_all, properties=absent, minProperties=len(having_all) + 1)
                yield more

    def _array(self, keyword: str, value: Any, node: Node, context: Sequence[Any]) -> Iterator[Any]:
        around = Conjunction(self._document, context)
        if keyword == "contains":
            if {"minContains", "maxContains"} & set(node):
                raise CannotRewrite("minContains and maxContains in it have no opposite that can be written")
            yield Node(type="array", items=self._one(value, around.item(MAX_ITEMS)))
        elif keyword == "prefixItems":
            for index, schema in enumerate(value):
                self._document.spend(index)
                yield from (with_item(index, part) for part in self.of(schema, around.item(index)))
        elif keyword == "uniqueItems":
            if value:
                raise CannotRewrite("uniqueItems in it has no opposite that can be written")
        else:
            yield from self._items(value, len(node.get("prefixItems", ())), around)

    def _items(self, schema: Any, first: int, around: Conjunction) -> Iterator[Any]:
        """An item behind the first ones that does not satisfy the schema."""
        if schema is False:
            yield Node(type="array", minItems=first + 1)
            return
        parts = self.of(schema, [])
        most = min((node["maxItems"] for node in around.nodes if "maxItems" in node), default=None)
        if parts and (most is None or most > MAX_ITEMS):
            raise CannotRewrite(f"items in it has no opposite that can be written, but for maxItems up to {MAX_ITEMS}")
        for index in range(first, int(most or 0)):
            yield from (with_item(index, part) for part in parts)

    def _other_values(self, values: list[Any], alive: Kinds, around: Conjunction) -> Iterator[Any]:
        """All values of these kinds but the given ones."""
        by_kind: dict[str, list[Any]] = {kind: [] for kind in alive}
        for value in values:
            self._document.spend()
            if (kind := kind_of(value)) in by_kind:
                by_kind[kind].append(value)
        numbers = [*by_kind.pop("whole", []), *by_kind.pop("broken", [])]
        if alive & {"whole", "broken"}:
            yield from _other_numbers(numbers, type_of_kinds(alive & {"whole", "broken"}))
        free = [kind for kind, given in by_kind.items() if not given]
        if free:
            yield Node(type=type_of_kinds(frozenset(free)))
        if given := by_kind.get("boolean"):
            yield from (Node(const=value) for value in (True, False) if value not in given)
        if given := by_kind.get("string"):
            yield Node(type="string", pattern=pattern_of_others(given))
        for kind in ("array", "object"):
            if given := by_kind.get(kind):
                yield Node(
                    type=kind, allOf=[self._one(_of_value(value), [*around.nodes, Node(type=kind)]) for value in given]
                )


_OF_OBJECTS = frozenset(("required", "properties", "patternProperties", "additionalProperties", "propertyNames")) | {
    "dependentRequired",
    "dependentSchemas",
}


def any_of(options: Sequence[Any]) -> Any:
    """One schema for them."""
    if not options:
        return False
    return options[0] if len(options) == 1 else Node(anyOf=list(options))


def without(key: str) -> Node:
    return Node(type="object", properties={key: False})


def having(key: str, **more: Any) -> Node:
    return Node({"type": "object", "required": [key], **more})


def with_item(index: int, schema: Any) -> Node:
    return Node(type="array", minItems=index + 1, prefixItems=[*[True] * index, schema])


def _of_value(value: Any) -> Any:
    """A constant in other keywords."""
    if isinstance(value, list):
        items = [Node(const=item) for item in value]
        return Node(
            {"type": "array", "items": False, "minItems": len(value), **({"prefixItems": items} if items else {})}
        )
    properties = {key: Node(const=each) for key, each in value.items()}
    return Node(type="object", properties=properties, required=list(value), additionalProperties=False)


def _other_numbers(numbers: Iterable[Any], types: list[str]) -> Iterator[Node]:
    ordered = sorted(numbers)
    if not ordered:
        yield Node(type=types)
        return
    yield Node(type=types, exclusiveMaximum=ordered[0])
    for low, high in pairwise(ordered):
        if low < high:
            yield Node(type=types, exclusiveMinimum=low, exclusiveMaximum=high)
    yield Node(type=types, exclusiveMinimum=ordered[-1])


def _are_apart(document: Document, around: Conjunction, keys: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether an object is closed to all these keys, and to all that these patterns take."""
    for node in around.nodes:
        if node.get("additionalProperties") is not False:
            continue
        own, own_patterns = node.get("properties", {}), node.get("patternProperties", {})
        document.spend((len(keys) + len(patterns)) * (len(own) + len(own_patterns)))
        if (
            not any(key in own for key in keys)
            and all(matches(pattern, key) is False for pattern in patterns for key in own)
            and all(matches(pattern, key) is False for pattern in own_patterns for key in keys)
            and all(never_both(one, other) for one in own_patterns for other in patterns)
        ):
            return True
    return False
