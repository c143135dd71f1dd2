"""Whether llama.cpp keeps to a grammar: one that the llguidance in it does not take is dropped without a word."""

from __future__ import annotations

from drivetrain.core.engine import EngineRequest, TokenStep
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.results import FinishReason


class Followed:
    """The steps of one choice, held to the grammar of its request, if it has one."""

    def __init__(self, request: EngineRequest) -> None:
        self._matcher = request.grammar.matcher() if request.grammar is not None else None

    def check(self, step: TokenStep) -> None:
        """Raises `InvalidRequest`, which names the field. What comes after a text that cannot go on is not judged: the
        choice is being ended. Nor is a stop id: the pipeline does that."""
        if self._matcher is None:
            return
        ids: list[tuple[int, ...]] = [(i,) for i in step.token_ids]
        if step.pieces is not None:
            ids = [tuple(piece) for piece in step.pieces]
        for taken in ids[:-1] if step.reason is FinishReason.STOP else ids:
            if self._matcher.must_end:
                return
            if not self._matcher.take(taken):
                raise InvalidRequest(
                    "llama.cpp does not keep to the constraint of this request, perhaps because the llguidance in it "
                    "is too old; simplify the constraint, or use another engine",
                    param="constraint",
                )
