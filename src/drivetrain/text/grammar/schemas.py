"""The schemas within a schema, and the numbers in them that the grammar's library cannot keep."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

MAX_MULTIPLE = 10_000
"""Of `multipleOf`: the states needed grow with it."""

MAX_WHOLE = 2**53 - 1
"""The library keeps numbers as doubles: from here on, neighbours become one."""

MAX_DIGITS = 15
"""Of a fraction: more are rounded."""

MAX_SHOWN = 40

_VALUES = frozenset(("const", "default", "enum", "examples"))
_NAMED = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_RANGES = ("minimum", "maximum")
_BOUNDS = (*_RANGES, "exclusiveMinimum", "exclusiveMaximum")


def each_schema(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema itself and all that are in it. Names of properties and values are not taken for keywords, unless a
    `$ref` leads to them."""
    left: list[Any] = [schema]
    seen: set[int] = set()
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item
        elif isinstance(item, dict) and id(item) not in seen:
            seen.add(id(item))
            left += (value for key, value in item.items() if key not in _VALUES | _NAMED)
            for named in (item.get(key) for key in _NAMED):
                left += named.values() if isinstance(named, Mapping) else ()
            if isinstance(target := referred(schema, item.get("$ref")), dict):
                left.append(target)
            yield item


def referred(root: Any, reference: Any) -> Any:
    """What a reference within the document leads to; None if to nothing, or elsewhere."""
    if not isinstance(reference, str):
        return None
    found = root
    for part in unquote(reference.partition("#")[2]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def number_fault(schema: Any) -> str:
    """What is wrong with a number in it; empty if nothing is."""
    for one in each_schema(schema):
        multiple = one.get("multipleOf")
        if isinstance(multiple, (int, float)) and not 1 / MAX_MULTIPLE <= abs(multiple) <= MAX_MULTIPLE:
            return f"a multipleOf of {brief_number(multiple)}; it must be from {1 / MAX_MULTIPLE:g} to {MAX_MULTIPLE:,}"
        for keyword in _BOUNDS:
            if fault := _bound_fault(keyword, one.get(keyword), one):
                return f"{keyword}: {brief_number(one[keyword])}; {fault}"
        for keyword in ("const", "enum"):
            if keyword in one and (value := _lost(one[keyword])) is not None:
                return f"the number {brief_number(value)} in {keyword}; {_WHOLE}"
    return ""


_WHOLE = f"whole numbers are exact up to {MAX_WHOLE} (2**53 - 1): choose a smaller one, or leave it out"
_FRACTION = f"fractions are exact up to {MAX_DIGITS} digits and decimals: round it"


def brief_number(value: float) -> str:
    """As the caller wrote it, if that is not too long."""
    shown = f"{value:g}" if f"{value:g}" == str(value) else str(value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 3]}..."


def _bound_fault(keyword: str, value: Any, schema: Mapping[str, Any]) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""  # which the compiler refuses
    if isinstance(value, float) and not value.is_integer():
        return "" if _is_short(value) else _FRACTION
    whole = int(value)
    if abs(whole) <= MAX_WHOLE or (keyword in _RANGES and _is_exact(whole)):
        return ""
    if keyword == "maximum" and whole == 2**63 - 1 and schema.get("type") == "integer":
        return ""  # the greatest that the library knows
    return _WHOLE


def _is_exact(whole: int) -> bool:
    """Whether it is kept as it is, though it has neighbours that are not."""
    return abs(whole) < 2**63 and int(float(whole)) == whole


def _is_short(value: float) -> bool:
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    return len(digits) <= MAX_DIGITS and math.isfinite(value) and -int(exponent) <= MAX_DIGITS


def _lost(value: Any) -> int | None:
    """A whole number in a value that would become another one."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > MAX_WHOLE:
            return item
        if isinstance(item, (list, dict)):
            left += item.values() if isinstance(item, dict) else item
    return None
