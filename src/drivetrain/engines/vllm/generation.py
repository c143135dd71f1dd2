"""One request: each choice is a request of vLLM's, with a seed of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from drivetrain.core.engine import EngineRequest, Step, TokenStep
from drivetrain.core.results import FinishReason
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.base.generation import Emit, Generation
from drivetrain.engines.base.room import room
from drivetrain.engines.base.tasks import uninterrupted
from drivetrain.engines.vllm.core import Running, Widened
from drivetrain.engines.vllm.images import widened
from drivetrain.engines.vllm.outputs import prompt_step, token_step
from drivetrain.engines.vllm.sampling import parameters_of, refuse_if_nothing_is_left


class VllmGeneration(Generation):
    """When it has ended, vLLM has let go of every choice that was not heard to its end.

    The first choice tells of the prompt. `failed` hears of an error before vLLM is asked to let go: it may be one after
    which nothing answers.
    """

    def __init__(
        self,
        request: EngineRequest,
        core: Running,
        *,
        tokenizer: Tokenizer,
        vocab_size: int,
        name: str,
        emit: Emit,
        failed: Callable[[Exception], None],
        let_go: Callable[[list[str]], Awaitable[None]],
    ) -> None:
        super().__init__(request, emit)
        self._prompt: tuple[int, ...] | Widened = request.prompt_ids
        self._core = core
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._names = [f"{name}-{index}" for index in range(len(request.seeds))]
        self._open = set(range(len(request.seeds)))
        self._failed = failed
        self._let_go = let_go
        self._waiting: list[TokenStep] = []

    async def run(self) -> None:
        try:
            refuse_if_nothing_is_left(self._request, self._vocab_size)
            if (media := self._request.media) is not None:
                self._request, self._prompt = await widened(self._request, media, self._tokenizer, self._core)
            await super().run()
        except Exception as exc:
            self._failed(exc)
            raise
        finally:
            if left := sorted(self._open & self._tasks.keys()):
                await uninterrupted(self._let_go([self._names[index] for index in left]))

    def finish(self, index: int) -> None:
        """Not before it runs: the first choice has to tell of the prompt."""
        if index in self._tasks:
            super().finish(index)

    async def run_choice(self, index: int) -> None:
        request = self._request
        wanted = room(request)
        if wanted <= 0 and index > 0:
            self._end(TokenStep(index, (), None, FinishReason.LENGTH))
            return
        outputs = self._core.outputs(
            self._prompt, request.cache_salt, parameters_of(request, index), self._names[index]
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                self._hear(index, output, wanted)

    def emit(self, step: Step) -> None:
        """What the other choices say before the first has told of the prompt waits."""
        if isinstance(step, TokenStep) and not self._prompt_told:
            self._waiting.append(step)
            return
        super().emit(step)
        while self._waiting:
            super().emit(self._waiting.pop(0))

    def _hear(self, index: int, output: Any, wanted: int) -> None:
        if index == 0 and not self._prompt_told:
            with_images = isinstance(self._prompt, Widened)
            self.emit(prompt_step(output, self._request.prompt_logprobs, widened=with_images))
        if wanted <= 0:
            self._end(TokenStep(index, (), None, FinishReason.LENGTH))
            return
        step = token_step(index, output.outputs[0], self._request.logprobs)
        if step.reason is not None:
            self._end(step)
        else:
            self.emit(step)

    def _end(self, step: TokenStep) -> None:
        self._open.discard(step.index)
        self.emit(step)
