"""What is known of an engine before any of its code is imported. Each engine states its own in its `kind.py`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import MissingExtra
from drivetrain.core.extras import install_command
from drivetrain.core.settings import Setting

if TYPE_CHECKING:
    from drivetrain.core.engine import Description, Engine, ModelSpec, Progress

StatedCapabilities = Callable[[Mapping[str, Any], int, Mapping[str, Any]], Capabilities]
"""From the JSON of a folder's configuration, the context length and the engine's options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoints:
    """The ways into an engine's code."""

    make: Callable[[], Engine]
    describe: Callable[[ModelSpec, Progress], Description] | None = None
    """What there is to know without loading weights. None: the engine loads none, so loading it tells all."""
    stated_capabilities: StatedCapabilities | None = None
    """For where the modules of the extra are missing. None: `describe` needs none of them."""
    prepare: Callable[[ModelSpec, Progress], object] | None = None
    """Makes what a load would make of the weights, once, for a pull. None: there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine that there is. `settings` are those it honours, `needs` the modules of its extra."""

    name: str
    settings: Mapping[str, Setting]
    needs: tuple[str, ...] = ()
    enter: Callable[[], EntryPoints]
    """Imports the engine's code, though not yet what it `needs`."""

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in self.needs)

    @property
    def install(self) -> str:
        return install_command(self.name)

    def make(self) -> Engine:
        return self.enter().make()

    def refuse_if_missing(self) -> None:
        if not self.installed:
            raise MissingExtra(f"the engine {self.name}", extra=self.name)

    def lacks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The engine settings that were given and that it does not have."""
        return tuple(name for name in options if name not in self.settings)
