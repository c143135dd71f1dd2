"""A schema as a document: its version of JSON Schema, and what its references lead to.

Each schema in it is seen as the newest version would write it, without what its own version ignores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drivetrain.text.grammar.formats import is_asserted
from drivetrain.text.grammar.schemas import each_schema, referred

MAX_STEPS = 100_000
"""Of looking at a schema and writing it anew: some hundred milliseconds."""


class CannotRewrite(ValueError):
    """Says what in a schema has no exact form that the grammar's library knows."""

    def __init__(self, why: str, keyword: str = "", place: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.keyword = keyword
        self.place = place

    def at(self, keyword: str, place: str) -> CannotRewrite:
        """With this keyword and place, as far as it has none."""
        return CannotRewrite(self.why, self.keyword or keyword, self.place or place)

    def __str__(self) -> str:
        return f"{self.keyword} at {self.place}: {self.why}" if self.keyword else self.why


class Node(dict[str, Any]):
    """A schema as the newest version writes it, with only what counts. The schemas in it may be of the document."""


_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 8),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$recursiveRef"), 8),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 9),
}
_ALWAYS = (
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "dependencies", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "not", "nullable", "oneOf", "pattern", "patternProperties", "properties",
    "required", "type", "uniqueItems",
)  # fmt: skip
_KNOWN = {**dict.fromkeys(_ALWAYS, 4), **_SINCE}
_DRAFTS = {"draft-03": 4, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 8, "2020-12": 9}


class Document:
    def __init__(self, root: Any) -> None:
        self.root = root
        self._steps = 0
        self._places: dict[int, str] = {}
        self._views: dict[int, Node] = {}
        named = root.get("$schema") if isinstance(root, Mapping) else None
        found = re.search("draft-0[3467]|2019-09|2020-12", named) if isinstance(named, str) else None
        self.draft = _DRAFTS[found[0]] if found else 9

    def spend(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise CannotRewrite("parts that are too large when written out; make them smaller")

    def place(self, schema: Any) -> str | None:
        """The way to it from the root; None if it is not of the document."""
        if not self._places:
            left: list[tuple[Any, str]] = [(self.root, "#")]
            while left:
                item, place = left.pop()
                self._places.setdefault(id(item), place)
                inner = item.items() if isinstance(item, Mapping) else enumerate(item)
                left += ((each, f"{place}/{key}") for key, each in inner if isinstance(each, (Mapping, list)))
        return self._places.get(id(schema))

    def view(self, schema: Any) -> Node:
        self.spend()
        if isinstance(schema, Node):
            return schema
        if not isinstance(schema, Mapping):
            raise CannotRewrite("it is no valid JSON schema")
        if id(schema) not in self._views:
            self._views[id(schema)] = self._modern(schema)
        return self._views[id(schema)]

    def ignores(self, schema: Mapping[str, Any]) -> bool:
        """Whether something in it does not count in this version, and does in others."""
        beside = self.draft < 8 and "$ref" in schema and any(key in _KNOWN for key in schema if key != "$ref")
        return beside or any(_KNOWN.get(key, 0) > self.draft for key in schema)

    def target(self, reference: Any) -> Any:
        """Raises `CannotRewrite` if it leads to no schema in the document."""
        own = self._own_name()
        local = reference.removeprefix(own) if isinstance(reference, str) and own else reference
        if not isinstance(local, str) or not (local.startswith("#") or local == ""):
            raise CannotRewrite(f"{str(reference)[:80]!r} leads out of the schema")
        found = referred(self.root, local) if local in ("", "#") or local.startswith("#/") else self._anchor(local[1:])
        if not isinstance(found, (Mapping, bool)):
            raise CannotRewrite(f"{str(reference)[:80]!r} leads to nothing")
        return found

    def _own_name(self) -> str:
        named = self.root.get("id" if self.draft == 4 else "$id")
        return named.partition("#")[0] if isinstance(named, str) else ""

    def _anchor(self, name: str) -> Any:
        for schema in each_schema(self.root):
            if schema.get("$anchor") == name or schema.get("id" if self.draft == 4 else "$id") == f"#{name}":
                return schema
        return None

    def _modern(self, schema: Mapping[str, Any]) -> Node:
        if self.draft < 8 and "$ref" in schema:
            return Node({"$ref": schema["$ref"]})
        if schema is not self.root and isinstance(schema.get("id" if self.draft == 4 else "$id"), str):
            named = schema["id" if self.draft == 4 else "$id"]
            if not named.startswith(("#", "/")) and "$ref" in str(self.root):
                raise CannotRewrite("references beside a schema with a name of its own cannot be followed", "$id", "")
        node = Node((key, value) for key, value in schema.items() if self.draft >= _KNOWN.get(key, 99))
        for bound in ("Minimum", "Maximum"):
            _number_bound(node, f"exclusive{bound}", bound.lower())
        extra = node.pop("additionalItems", None)
        if isinstance(node.get("items"), list):
            node["prefixItems"] = node.pop("items")
            node |= {} if extra is None else {"items": extra}
        if "format" in node and not is_asserted(node["format"]):
            del node["format"]
        for key, needed in node.pop("dependencies", {}).items():
            kind = "dependentSchemas" if isinstance(needed, (Mapping, bool)) else "dependentRequired"
            node[kind] = {**node.get(kind, {}), key: [needed] if isinstance(needed, str) else needed}
        return node


def _number_bound(node: Node, exclusive: str, bound: str) -> None:
    """Before draft 6 an exclusive bound is a mark on the other one."""
    mark = node.get(exclusive)
    if isinstance(mark, bool):
        del node[exclusive]
        if mark and bound in node:
            node[exclusive] = node.pop(bound)
