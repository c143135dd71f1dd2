"""Where each sampling value of a request comes from: the request, settings, the weights, the family, neutral."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from drivetrain.core.request import GenerateRequest
from drivetrain.core.sampling import Sampling

NEUTRAL = Sampling()
_NAMES = tuple(field.name for field in fields(Sampling))
_asked = attrgetter(*_NAMES)

Layer = tuple[str, Mapping[str, Any]]
"""The name of a source and what it says."""


class Defaults:
    """The layers under a request, first one first. Values that the engine cannot honour are left out."""

    def __init__(self, layers: list[Layer], honoured: frozenset[str]) -> None:
        self._layers = layers
        self._origin: dict[str, tuple[str, Any]] = {}
        for name in _NAMES:
            if name in honoured:
                self._origin[name] = self._find(name)
        self._resolved = Sampling(**{name: value for name, (_, value) in self._origin.items()})

    @property
    def origins(self) -> Mapping[str, tuple[str, Any]]:
        """For each honoured sampling field: who decides it when the request does not, and the value."""
        return self._origin

    def resolve(self, request: GenerateRequest) -> Sampling:
        """A request that asks for a temperature above 0 lifts a default `top_k` of 1, which would undo it."""
        asked = {name: value for name, value in zip(_NAMES, _asked(request), strict=True) if value is not None}
        if not asked:
            return self._resolved
        if asked.get("temperature", 0) > 0 and self._resolved.top_k == 1:
            asked.setdefault("top_k", NEUTRAL.top_k)
        return replace(self._resolved, **asked)

    def max_tokens(self) -> int | None:
        return next((layer["max_tokens"] for _, layer in self._layers if "max_tokens" in layer), None)

    def _find(self, name: str) -> tuple[str, Any]:
        for source, layer in self._layers:
            if name in layer:
                return source, layer[name]
        return "neutral", getattr(NEUTRAL, name)
