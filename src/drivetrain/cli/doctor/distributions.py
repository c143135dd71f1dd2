"""The packages that Drivetrain uses, as their metadata describes them: nothing is imported."""

from __future__ import annotations

import importlib.metadata as metadata
import re
from dataclasses import dataclass

from drivetrain.cli.terminal.origin import installed_version

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(?P<needs>[^;]*)(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")
_CLAUSE = re.compile(r"(>=|<|>|<=|==|!=)\s*([\d.]+)$")


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that Drivetrain can use. `version` is None if it is not installed."""

    name: str
    needs: str
    version: str | None
    fits: bool


def base_packages() -> list[Package]:
    return _packages(None)


def extra_packages(extra: str) -> list[Package]:
    return _packages(extra)


def fits(version: str, needs: str) -> bool:
    """Whether a version is within a range, compared by its numbers. Clauses that are not simple are ignored."""
    have = _numbers(version)
    for clause in filter(None, (part.strip() for part in needs.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            continue
        sign, want = match[1], _numbers(match[2])
        width = max(len(have), len(want))
        order = (_padded(have, width) > _padded(want, width)) - (_padded(have, width) < _padded(want, width))
        if not {">=": order >= 0, "<": order < 0, ">": order > 0, "<=": order <= 0, "==": order == 0, "!=": order != 0}[
            sign
        ]:
            return False
    return True


def _packages(extra: str | None) -> list[Package]:
    try:
        requirements = metadata.requires("drivetrain") or []
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return []
    found = []
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is None or _extra_of(match["marker"]) != extra:
            continue
        name, needs = match["name"], match["needs"].strip()
        version = installed_version(name)
        found.append(Package(name, needs, version, version is not None and fits(version, needs)))
    return found


def _extra_of(marker: str | None) -> str | None:
    match = _EXTRA.search(marker or "")
    return match["extra"] if match else None


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` is (2, 13, 0): the local part and pre-release letters are ignored."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
