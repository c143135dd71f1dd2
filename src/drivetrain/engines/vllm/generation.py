"""One request: each choice is a request of vLLM's, with a seed of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from drivetrain.core.engine import EngineRequest, Step, TokenStep
from drivetrain.core.results import FinishReason
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.base.choices import Choices
from drivetrain.engines.vllm.core import Running, Widened
from drivetrain.engines.vllm.images import widened
from drivetrain.engines.vllm.outputs import prompt_step, token_step
from drivetrain.engines.vllm.sampling import parameters_of, refuse_if_nothing_is_left, room


class Generation(Choices):
    """`run` ends when every choice has. `ids` are vLLM's names of those that were not heard to their end.

    The first choice tells of the prompt; what the others say before it waits.
    """

    def __init__(
        self,
        request: EngineRequest,
        core: Running,
        *,
        tokenizer: Tokenizer,
        vocab_size: int,
        name: str,
        emit: Callable[[Step], None],
    ) -> None:
        super().__init__(request)
        self._prompt: tuple[int, ...] | Widened = request.prompt_ids
        self._core = core
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._names = [f"{name}-{index}" for index in range(len(request.seeds))]
        self._open = set(range(len(request.seeds)))
        self._emit = emit
        self._waiting: list[Step] | None = []

    @property
    def ids(self) -> list[str]:
        return [self._names[index] for index in sorted(self._open & self._tasks.keys())]

    async def run(self) -> None:
        refuse_if_nothing_is_left(self._request, self._vocab_size)
        if self._request.media is not None:
            self._request, self._prompt = await widened(self._request, self._request.media, self._tokenizer, self._core)
        await super().run()

    def finish(self, index: int) -> None:
        """Not before it runs: the first choice has to tell of the prompt."""
        if index in self._tasks:
            super().finish(index)

    async def run_choice(self, index: int) -> None:
        request = self._request
        wanted = room(request)
        if wanted <= 0 and index > 0:
            self._close(TokenStep(index, (), None, FinishReason.LENGTH))
            return
        outputs = self._core.outputs(
            self._prompt, request.cache_salt, parameters_of(request, index), self._names[index]
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                self._hear(index, output, wanted)

    def _hear(self, index: int, output: Any, wanted: int) -> None:
        if index == 0 and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            with_images = isinstance(self._prompt, Widened)
            for step in (prompt_step(output, self._request.prompt_logprobs, widened=with_images), *waiting):
                self._emit(step)
        if wanted <= 0:
            self._close(TokenStep(index, (), None, FinishReason.LENGTH))
            return
        step = token_step(index, output.outputs[0], self._request.logprobs)
        if step.reason is not None:
            self._close(step)
        else:
            self._give(step)

    def _close(self, step: TokenStep) -> None:
        self._open.discard(step.index)
        self._give(step)

    def _give(self, step: TokenStep) -> None:
        if self._waiting is not None:
            self._waiting.append(step)
        else:
            self._emit(step)
