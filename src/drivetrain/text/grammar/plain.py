"""A schema in the keywords that the grammar's library knows, with exactly the same values.

Schemas of which exactly one may hold, opposites, conditions and the like become `anyOf` and `allOf`. What has no exact
form there is refused, by its keyword and place. Bounded: a schema that would grow too large is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any

from drivetrain.text.grammar.documents import CannotRewrite, Document, Node
from drivetrain.text.grammar.formats import format_fault
from drivetrain.text.grammar.opposites import Opposites, any_of, having, with_item
from drivetrain.text.grammar.patterns import excludes_escaped, looks_around, without_looks
from drivetrain.text.grammar.possible import MAX_REFERENCES, Conjunction, is_impossible, key_of, values_of
from drivetrain.text.grammar.schemas import each_schema

MAX_NODES = 60_000
"""Of the schema that is written."""

MAX_COMBINED = 120
"""Ways to choose from several lists of which one must hold each."""

MAX_SETS = 64
"""Sets of keys that an object may have, where they are counted."""

MAX_VALUES = 4
"""Values of a list without repetitions."""

MAX_PLACES = 16
"""Of the item that a list must contain."""

_KINDS = ("null", "boolean", "number", "string", "array", "object")
_CONDITIONAL = ("if", "then", "else")
_REWRITTEN = frozenset(
    ("oneOf", "not", "dependencies", "dependentRequired", "dependentSchemas", "uniqueItems", "contains", *_CONDITIONAL)
) | {"propertyNames", "minProperties", "maxProperties", "minContains", "maxContains"}
_COUNTS = frozenset(("minProperties", "maxProperties"))
_REFUSED = frozenset(("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"))


def plain_schema(schema: Any) -> Any:
    """The schema itself if there is nothing to write anew. Raises `CannotRewrite`, with a keyword and its place."""
    if not isinstance(schema, Mapping):
        return schema
    document = Document(schema)
    schemas = list(each_schema(schema))
    is_plain = not any(_needs_rewriting(document, each) for each in schemas)
    if is_plain and not any(_fault(each)[1] for each in schemas):
        return schema
    written = _Writer(document).document()
    if is_plain:  # and what is wrong is nowhere that counts
        return schema
    if _size(written) > MAX_NODES:
        raise CannotRewrite("parts that are too large when written out; make them smaller")
    return written


def _needs_rewriting(document: Document, schema: Mapping[str, Any]) -> bool:
    keys = set(schema)
    looks = isinstance(pattern := schema.get("pattern"), str) and looks_around(pattern)
    return looks or bool(keys & (_REWRITTEN | _REFUSED)) or document.ignores(schema)


def _fault(schema: Mapping[str, Any]) -> tuple[str, str]:
    """The keyword of a schema that no rewriting helps, and what is wrong with it."""
    if refused := next((keyword for keyword in schema if keyword in _REFUSED), None):
        return refused, "it is not supported"
    if isinstance(pattern := schema.get("pattern"), str) and looks_around(pattern) and without_looks(pattern) is None:
        return "pattern", "look-around, including look-ahead and look-behind, is not supported"
    if isinstance(pattern, str) and excludes_escaped(pattern):
        return (
            "pattern",
            "a class that leaves out a quote or a backslash is not kept; name the characters that may come",
        )
    fault = format_fault(schema.get("format"))
    return ("format", fault) if fault else ("", "")


def _size(schema: Any) -> int:
    """As text, where parts that are there once in memory stand several times."""
    sizes: dict[int, int] = {}

    def size(item: Any) -> int:
        if not isinstance(item, (dict, list)):
            return 1
        if id(item) not in sizes:
            sizes[id(item)] = 1 + sum(map(size, item.values() if isinstance(item, dict) else item))
        return sizes[id(item)]

    return size(schema)


class _Counted(Node):
    """A schema whose counts of properties the library knows: it leaves no properties that may be there or not."""


class _Writer:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._opposites = Opposites(document)
        self._names: dict[int, str] = {}
        self._chain: list[int] = []
        """What is being written for one and the same value."""
        self._recursive: dict[int, bool] = {}
        self._waiting: list[tuple[str, Any, str]] = []

    def document(self) -> dict[str, Any]:
        root = self._document.root
        written = self._schema(root, "#")
        definitions: dict[str, Any] = {}
        while self._waiting:
            name, target, place = self._waiting.pop()
            definitions[name] = self._schema(target, place)
        if written is False:
            raise CannotRewrite("no value that satisfies it")
        kept = {"x-guidance": root["x-guidance"]} if "x-guidance" in root else {}
        return {**({} if written is True else written), **({"$defs": definitions} if definitions else {}), **kept}

    def _schema(self, schema: Any, place: str, around: Sequence[Any] = ()) -> Any:
        """`around` are schemas that hold for the same value."""
        schema = self._inlined(schema) if around else schema
        if isinstance(schema, bool):
            return schema
        if around and id(schema) in self._chain:
            raise CannotRewrite(
                "it leads to itself before anything is said", "$ref", self._document.place(schema) or place
            )
        outer, self._chain = self._chain, [*self._chain, id(schema)] if around else [id(schema)]
        written = self._written(schema, place, around)
        self._chain = outer
        return written

    def _written(self, schema: Any, place: str, around: Sequence[Any]) -> Any:
        place = self._document.place(schema) or place
        try:
            node = self._document.view(schema)
        except CannotRewrite as exc:
            raise exc.at("", place) from None
        self._check(node, place)
        options, rest, choices = self._choices(node, place, around)
        if not all(choices) or options == []:
            return False
        beside = [*around, rest] if around or len(rest) + len(choices) + (options is not None) > 1 else []
        written: dict[str, Any] = {}
        for keyword in node:
            if keyword == "oneOf" and options is not None:
                written["anyOf"] = [self._schema(each, place, beside) for each in options]
            elif keyword in rest:
                written[keyword] = self._keyword(keyword, rest[keyword], place, beside)
        more = [self._schema(any_of(each), place, beside) for each in choices]
        if more:
            written["allOf"] = [*written.get("allOf", []), *more]
        return written

    def _keyword(self, keyword: str, value: Any, place: str, beside: Sequence[Any]) -> Any:
        if keyword in ("properties", "patternProperties"):
            return {key: self._schema(each, place) for key, each in value.items()}
        if keyword in ("items", "additionalProperties"):
            return self._schema(value, place)
        if keyword == "prefixItems":
            return [self._schema(each, place) for each in value]
        if keyword in ("allOf", "anyOf"):
            several = beside or ([Node(allOf=value)] if keyword == "allOf" and len(value) > 1 else [])
            return [self._schema(each, place, several) for each in value]
        return self._reference(value, place) if keyword == "$ref" else value

    def _inlined(self, schema: Any) -> Any:
        """What a reference leads to, if that has references to itself: beside other schemas the library knows none."""
        for _ in range(MAX_REFERENCES):
            if isinstance(schema, bool):
                return schema
            node = self._document.view(schema)
            if set(node) != {"$ref"} or not self._is_recursive(target := self._document.target(node["$ref"])):
                return schema
            schema = target
        raise CannotRewrite("it leads only to itself", "$ref")

    def _is_recursive(self, target: Any) -> bool:
        if id(target) not in self._recursive:
            seen: set[int] = set()
            left = [target]
            self._recursive[id(target)] = False
            while left and not self._recursive[id(target)]:
                item = left.pop()
                self._document.spend()
                if isinstance(item, list):
                    left += item
                elif isinstance(item, Mapping) and id(item) not in seen:
                    seen.add(id(item))
                    left += item.values()
                    if isinstance(item.get("$ref"), str):
                        found = self._document.target(item["$ref"])
                        self._recursive[id(target)] |= found is target
                        left.append(found)
        return self._recursive[id(target)]

    def _reference(self, reference: Any, place: str) -> str:
        try:
            target = self._document.target(reference)
        except CannotRewrite as exc:
            raise exc.at("$ref", place) from None
        # A boolean is no object of its own.
        key = hash(reference) if isinstance(target, bool) else id(target)
        if key not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_.-]", "_", str(reference).rpartition("/")[2])[:40] or "root"
            taken = set(self._names.values())
            name = next(n for i in range(len(taken) + 1) if (n := f"{stem}{f'_{i}' if i else ''}") not in taken)
            self._names[key] = name
            self._waiting.append((name, target, str(reference)))
        return f"#/$defs/{self._names[key]}"

    def _check(self, node: Node, place: str) -> None:
        keyword, fault = _fault(node)
        if fault:
            raise CannotRewrite(fault, keyword, place)

    def _choices(self, node: Node, place: str, around: Sequence[Any]) -> tuple[list[Any] | None, Node, list[list[Any]]]:
        """The options that stand for `oneOf` alone, the keywords that stay, and lists of schemas of which one must hold
        each."""
        rewritten = _REWRITTEN - _COUNTS if isinstance(node, _Counted) else _REWRITTEN
        if "pattern" in node and looks_around(node["pattern"]):
            rewritten |= {"pattern"}
        rest = Node({key: value for key, value in node.items() if key not in rewritten})
        bare = [part for part in node.get("allOf", ()) if self._is_bare(part)]
        if len(bare) > 1:
            rest["allOf"] = [part for part in node["allOf"] if not self._is_bare(part)]
        sources = [node, *(map(self._document.view, bare) if len(bare) > 1 else ())]
        sources, choices = self._switches(sources, [*around, rest])
        for source in sources:
            choices += self._rewritten(source, rewritten, [*around, rest], place)
        if not all(choices):
            return None, rest, [[]]
        if len(choices) == 1 and set(node) & rewritten == {"oneOf"} and "anyOf" not in node:
            return choices[0], rest, []
        return None, rest, self._combined(choices, [*around, rest])

    def _switches(self, nodes: list[Node], around: list[Any]) -> tuple[list[Node], list[list[Any]]]:
        """Conditions about the values of one property, as one list: without it, by value, and all other values. And the
        nodes that are none."""
        others: list[Node] = []
        cases: dict[str, list[tuple[list[Any], Any]]] = {}
        for node in nodes:
            if set(node) <= {"if", "then"} and (case := self._case(node)) is not None:
                cases.setdefault(case[0], []).append((case[1], node.get("then", True)))
            else:
                others.append(node)
        return others, [self._switch(key, of_key, around) for key, of_key in cases.items()]

    def _case(self, node: Node) -> tuple[str, list[Any]] | None:
        """The property that a condition is about, and the values for which it holds."""
        if "if" not in node or isinstance(node["if"], bool):
            return None
        condition = self._document.view(node["if"])
        if set(condition) != {"properties"} or len(condition["properties"]) != 1:
            return None
        ((key, schema),) = condition["properties"].items()
        if isinstance(schema, bool) or not set(view := self._document.view(schema)) <= {"const", "enum"}:
            return None
        return key, values_of(view) or []

    def _switch(self, key: str, cases: list[tuple[list[Any], Any]], around: list[Any]) -> list[Any]:
        by_value: dict[Any, tuple[Any, list[Any]]] = {}
        for values, then in cases:
            for value in values:
                by_value.setdefault(key_of(value), (value, []))[1].append(then)
        found = [Node(properties={key: False}, allOf=[then for _, then in cases])]
        found += (having(key, properties={key: Node(const=value)}, allOf=then) for value, then in by_value.values())
        facts = Conjunction(self._document, around)
        rest = self._opposites.of(Node(enum=[value for value, _ in by_value.values()]), facts.property(key))
        found += (having(key, properties={key: option}) for option in rest)
        return [option for option in found if not is_impossible(self._document, [*around, option])]

    def _is_bare(self, schema: Any) -> bool:
        """Whether it has only keywords that are written anew."""
        return not isinstance(schema, bool) and bool(view := self._document.view(schema)) and set(view) <= _REWRITTEN

    def _rewritten(self, node: Node, keywords: frozenset[str], around: list[Any], place: str) -> list[list[Any]]:
        found: list[list[Any]] = []
        writers = {
            "oneOf": self._exactly_one, "not": self._opposite, "if": self._conditional,
            "dependentRequired": self._dependent, "dependentSchemas": self._dependent,
            "propertyNames": self._names_of, "pattern": self._looking,
            "contains": self._containing, "uniqueItems": self._unique,
            "minProperties": self._counted, "maxProperties": self._counted,
        }  # fmt: skip
        for keyword in node:
            if (
                keyword not in writers
                or keyword not in keywords
                or (keyword == "maxProperties" and "minProperties" in node)
            ):
                continue
            try:
                found += writers[keyword](node, keyword, around)
            except CannotRewrite as exc:
                raise exc.at(keyword, place) from None
        return found

    def _combined(self, choices: list[list[Any]], around: list[Any]) -> list[list[Any]]:
        """Several lists as one, without combinations of which nothing can come: the library would try them all."""
        several = [options for options in choices if len(options) > 1]
        single = [options for options in choices if len(options) == 1]
        ways = 1
        for options in several:
            ways *= len(options)
        if len(several) < 2 or ways <= 8:
            return choices
        base = [*around, *(options[0] for options in single)]
        combined: list[list[Any]] = [[]]
        for options in several:
            pairs = product(combined, options)
            combined = [[*way, one] for way, one in pairs if not is_impossible(self._document, [*base, *way, one])]
            if len(combined) > MAX_COMBINED:
                return choices
        return [*single, [Node(allOf=way) for way in combined]]

    def _exactly_one(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        options = node["oneOf"]
        possible = [at for at, each in enumerate(options) if not is_impossible(self._document, [*around, each])]
        written = []
        for at in possible:
            beside = [*around, options[at]]
            for other in possible:
                if other == at or is_impossible(self._document, [*beside, options[other]]):
                    continue
                try:
                    no = any_of(self._opposites.of(options[other], beside))
                except CannotRewrite as exc:
                    what = f"schemas {min(at, other)} and {max(at, other)} may hold at once, and {exc.why}; use anyOf"
                    raise CannotRewrite(what) from None
                if no not in beside:
                    beside.append(no)
            if False not in beside:
                written.append(self._with(options[at], beside[len(around) + 1 :]))
        return [written]

    def _with(self, schema: Any, more: list[Any]) -> Any:
        """What else must hold beside it. Its own keywords stay in sight."""
        if not more:
            return schema
        if schema is True:
            return Node(allOf=more)
        node = self._document.view(schema)
        return Node({**node, "allOf": [*node.get("allOf", ()), *more]})

    def _opposite(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        return [self._opposites.of(node["not"], around)]

    def _conditional(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        condition, then, otherwise = node["if"], node.get("then", True), node.get("else", True)
        if then is True and otherwise is True:
            return []
        held = [Node(allOf=[way, then]) for way in self._ways(condition)]
        failed = [Node(allOf=[way, otherwise]) for way in self._opposites.of(condition, around)]
        return [[way for way in (*held, *failed) if not is_impossible(self._document, [*around, way])]]

    def _ways(self, condition: Any) -> list[Any]:
        """The condition itself, or, if it is about one property, with and without that: the more can be told apart."""
        if isinstance(condition, bool):
            return [condition] if condition else []
        node = self._document.view(condition)
        if set(node) == {"properties"} and len(node["properties"]) == 1:
            (key,) = node["properties"]
            return [Node(properties={key: False}), having(key, properties=node["properties"])]
        return [condition]

    def _dependent(self, node: Node, keyword: str, around: list[Any]) -> list[list[Any]]:
        found = []
        for key, needed in node[keyword].items():
            there = (
                having(key, allOf=[needed])
                if keyword == "dependentSchemas"
                else Node(type="object", required=list(dict.fromkeys([key, *needed])))
            )
            found.append([Node(properties={key: False}), there])
        return found

    def _names_of(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        names = node["propertyNames"]
        if names is True or (names is not False and not self._document.view(names)):
            return []
        found = Conjunction(self._document, [names])
        if found.is_false or "string" not in found.kinds:
            return [[Node(additionalProperties=False)]]
        if (values := found.values) is not None:
            return [
                [
                    Node(
                        properties=dict.fromkeys((v for v in values if isinstance(v, str)), True),
                        additionalProperties=False,
                    )
                ]
            ]
        (one, *others) = found.nodes
        if others or found.choices or not set(one) <= {"type", "pattern", "minLength", "maxLength"}:
            raise CannotRewrite("only a pattern, a length or an enum of the names is supported")
        patterns = [one["pattern"]] if "pattern" in one else []
        if "minLength" in one or "maxLength" in one:
            patterns.append(f"^(?s:.){{{int(one.get('minLength', 0))},{one.get('maxLength', '')}}}$")
        return [[Node(patternProperties={pattern: True}, additionalProperties=False)] for pattern in patterns]

    def _containing(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        item, least = node["contains"], node.get("minContains", 1)
        if "maxContains" in node or least not in (0, 1):
            raise CannotRewrite("minContains above 1 and maxContains are not supported")
        if least == 0:
            return []
        facts = Conjunction(self._document, around)
        free = self._of_other_kinds("array", around)
        if "array" not in facts.kinds:
            return []
        if item is True or (item is not False and not self._document.view(item)):
            return [[*free, Node(type="array", minItems=1)]]
        most = _most_items(facts)
        if most is None or most > MAX_PLACES:
            raise CannotRewrite(f"it is supported only beside a maxItems of up to {MAX_PLACES}")
        return [[*free, *(with_item(index, item) for index in range(int(most)))]]

    def _looking(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        return [[Node(pattern=pattern)] for pattern in without_looks(node["pattern"]) or ()]

    def _unique(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        facts = Conjunction(self._document, around)
        most = _most_items(facts)
        if not node["uniqueItems"] or "array" not in facts.kinds or (most is not None and most <= 1):
            return []
        values = None if any("prefixItems" in each for each in facts.nodes) else _finite(self._document, facts.item(0))
        if values is None or len(values) > MAX_VALUES:
            raise CannotRewrite(
                f"it is supported only for a maxItems of 1, or items with an enum of up to {MAX_VALUES}"
            )
        free = self._of_other_kinds("array", around)
        lists = (each for number in range(1, len(values) + 1) for each in permutations(values, number))
        listed = [
            Node(
                type="array", prefixItems=[Node(const=value) for value in each], minItems=len(each), maxItems=len(each)
            )
            for each in lists
        ]
        return [[*free, Node(type="array", maxItems=0), *listed]]

    def _of_other_kinds(self, kind: str, around: list[Any]) -> list[Any]:
        """A keyword about values of one kind lets all others be."""
        others = [Node(type=each) for each in _KINDS if each != kind]
        return [each for each in others if not is_impossible(self._document, [*around, each])]

    def _counted(self, node: Node, _: str, around: list[Any]) -> list[list[Any]]:
        """Objects by their number of keys: told by which of the optional ones are there."""
        least, most = node.get("minProperties", 0), node.get("maxProperties")
        facts = Conjunction(self._document, around)
        if "object" not in facts.kinds:
            return []
        required, keys = facts.required, facts.keys
        counts = {} if most is None else {"maxProperties": most}
        if least > len(required):
            counts["minProperties"] = least
        if not counts:
            return []
        optional = [key for key in facts.named if key not in required and not _is_never(facts.property(key))]
        if keys is None and least - len(required) > 1:
            # A key may be written twice, and counts once.
            raise CannotRewrite(
                "it is supported only up to one above the required properties, where others may be added"
            )
        if not optional:
            return [[_Counted(counts)]]
        free = self._of_other_kinds("object", around)
        if most is None and least == len(required) + 1:
            return [[*free, *self._one_more(optional, required, least)]]
        return [[*free, *self._sets(optional, required, counts, keys is not None)]]

    def _one_more(self, optional: list[str], required: list[str], least: int) -> list[Any]:
        """The first of the optional ones that is there; or none, and another one."""
        found = [having(key, properties=dict.fromkeys(optional[:at], False)) for at, key in enumerate(optional)]
        return [*found, _Counted(type="object", properties=dict.fromkeys(optional, False), minProperties=least)]

    def _sets(self, optional: list[str], required: list[str], counts: Mapping[str, Any], closed: bool) -> list[Any]:
        least, most = counts.get("minProperties", 0), counts.get("maxProperties", len(optional) + len(required))
        found: list[Any] = []
        for number in range(min(len(optional), int(most) - len(required)) + 1):
            if closed and number + len(required) < least:
                continue
            for there in combinations(optional, number):
                self._document.spend(len(optional))
                absent = {key: False for key in optional if key not in there}
                found.append(_Counted({"type": "object", "required": list(there), "properties": absent, **counts}))
                if len(found) > MAX_SETS:
                    raise CannotRewrite("too many sets of optional properties would fit: make some of them required")
        return found


def _most_items(facts: Conjunction) -> Any:
    return min((each["maxItems"] for each in facts.nodes if "maxItems" in each), default=None)


def _finite(document: Document, items: Sequence[Any]) -> list[Any] | None:
    return Conjunction(document, items).values if items else None


def _is_never(schemas: Iterable[Any]) -> bool:
    return any(schema is False for schema in schemas)
