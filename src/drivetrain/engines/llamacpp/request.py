"""One request: its choices side by side, and their prompt, made ready once."""

from __future__ import annotations

import asyncio

from drivetrain.core.engine import EngineRequest, PromptStep, Step
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.engines.llamacpp.generation import ChoiceRun, Emit, Served
from drivetrain.engines.llamacpp.images.prompt import ImagePrompt


class Generation:
    """`run` ends when every choice has ended and every slot is idle; cancelling it does the same, sooner."""

    def __init__(self, request: EngineRequest, served: Served, emit: Emit) -> None:
        self._request = request
        self._served = served
        self._emit = emit
        self._prompt_told = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finished: set[int] = set()
        banned = request.sampling.suppress_tokens
        self._all_banned = len(set(banned)) >= served.vocabulary.size

    async def run(self) -> None:
        if self._all_banned:
            raise InvalidRequest("the bans of this request leave no token to sample", param="suppress_tokens")
        images = await self._images()
        task = asyncio.current_task()
        assert task is not None
        wanted = [index for index in range(len(self._request.seeds)) if index not in self._finished]
        choices = [ChoiceRun(index, self._request, self._served, self.emit, images) for index in wanted]
        if len(choices) == 1:
            self._tasks[choices[0].index] = task
            await choices[0].run()
            return
        try:
            async with asyncio.TaskGroup() as group:
                for choice in choices:
                    self._tasks[choice.index] = group.create_task(choice.run())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _images(self) -> ImagePrompt | None:
        media, prompts = self._request.media, self._served.image_prompts
        if media is None:
            return None
        if prompts is None:
            raise Unsupported("this model has no vision part", param="images")
        return await asyncio.to_thread(prompts.make, media)

    def finish(self, index: int) -> None:
        self._finished.add(index)
        if index in self._tasks:
            self._tasks[index].cancel()

    def emit(self, step: Step) -> None:
        """The first choice that hears of the prompt tells of it."""
        if isinstance(step, PromptStep):
            if self._prompt_told:
                return
            self._prompt_told = True
        elif step.index in self._finished:
            return
        self._emit(step)
