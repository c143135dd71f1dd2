"""A setting, declared once by whoever honours it: what it takes, its default and its meaning.

A class whose fields are settings is both the declaration and what the honouring code reads. `declarations` gives what
such a class declares to those who only show or check it: the flags, the environment, files and the guide.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class LlamaCppSettings(EngineSettings):
        slots: int = setting(Setting(Integer(1, 256), "requests in one batch", default=4))
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from drivetrain.core.errors import InvalidRequest, InvalidSetting
from drivetrain.core.kinds import Kind, Number


@dataclass(frozen=True, slots=True)
class Setting:
    """With `default` None the value is decided later; `otherwise` says in words how."""

    kind: Kind
    meaning: str
    default: Any = None
    otherwise: str = ""

    @property
    def default_text(self) -> str:
        match self.default:
            case None | ():
                return self.otherwise
            case bool():
                return str(self.default).lower()
            case float():
                return f"{self.default:g}"
            case _:
                return str(self.default)

    def judge(self, name: str, value: Any, where: str | None = None) -> Any:
        """The value in the shape of its kind. Raises `InvalidSetting` for `name`, which says `where` it was stated."""
        try:
            judged = self.kind.judge(where or name, value)
        except InvalidRequest as exc:
            raise InvalidSetting(exc.message, param=name) from None
        return float(judged) if isinstance(self.kind, Number) else judged


def setting(one: Setting) -> Any:
    """The field of a class of settings."""
    return field(default=one.default, metadata={"setting": one})


def declarations(settings: type) -> dict[str, Setting]:
    """By name, in their order."""
    return {f.name: f.metadata["setting"] for f in fields(settings) if "setting" in f.metadata}
