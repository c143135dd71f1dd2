"""What the answer to a chat must be, part by part: reasoning, then calls or content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from drivetrain.core.constraint import OF_REASONING, OF_TOOLS, Constraint
from drivetrain.core.tools import Tool, ToolChoice, ToolMode


class Reasoning(Enum):
    """Whether an answer reasons before it says anything else."""

    NONE = "none"
    POSSIBLE = "possible"
    BEGUN = "begun"
    """The prompt ends inside it."""


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """`form` is a row of the table of forms. `tools` are those that may be called: of `strict` ones, and of all that
    have a schema which can be honoured, the arguments fit it. `content` is what content must be, if there is any.
    """

    form: str
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()  # noqa: RUF009 - it is frozen
    parallel: bool = True
    """Whether there may be several calls."""
    reasoning: Reasoning = Reasoning.NONE
    max_reasoning_tokens: int | None = None
    content: Constraint | None = None

    @property
    def is_free(self) -> bool:
        """Whether the model may call tools in its own way: nothing was asked of its calls."""
        is_strict = any(tool.strict for tool in self.tools)
        return self.choice.mode is ToolMode.AUTO and not is_strict and self.content is None

    @property
    def kind(self) -> str:
        """One of `GRAMMAR_KINDS`."""
        if self.tools:
            return OF_TOOLS
        return OF_REASONING if self.content is None else self.content.kind
