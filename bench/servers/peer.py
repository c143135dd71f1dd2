"""How to run and ask one server that can be measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servers.environment import Environment, Say
from servers.request import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """`arguments` are those of the interpreter, for a port. `prepare` makes what the server needs on disk, once.

    Without an environment, it runs in the one that runs this.
    """

    name: str
    title: str
    form: Form
    arguments: Callable[[int], Sequence[str]]
    environment: Environment | None = None
    packages: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    ready_s: float = 60.0
    prepare: Callable[[], Path] | None = None

    @property
    def python(self) -> str:
        return str(self.environment.python) if self.environment else sys.executable

    @property
    def versions(self) -> dict[str, str]:
        return {p: self.environment.version(p) for p in self.packages} if self.environment else {}

    def setup(self, say: Say) -> None:
        if self.environment is not None:
            self.environment.setup(say)
        if self.prepare is not None:
            say(f"{self.name}: weights in {self.prepare()}")
