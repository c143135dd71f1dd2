"""One request: its choices side by side, and their prompt, made ready once."""

from __future__ import annotations

import asyncio

from drivetrain.core.engine import EngineRequest, PromptStep, Step
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.engines.base.choices import Choices
from drivetrain.engines.llamacpp.generation import ChoiceRun, Emit, Served
from drivetrain.engines.llamacpp.images.prompt import ImagePrompt


class Generation(Choices):
    """When it has ended, every slot is idle."""

    def __init__(self, request: EngineRequest, served: Served, emit: Emit) -> None:
        super().__init__(request)
        self._served = served
        self._emit = emit
        self._image_prompt: ImagePrompt | None = None
        self._prompt_told = False

    async def run(self) -> None:
        if len(set(self._request.sampling.suppress_tokens)) >= self._served.vocabulary.size:
            raise InvalidRequest("the bans of this request leave no token to sample", param="suppress_tokens")
        self._image_prompt = await self._images()
        await super().run()

    async def run_choice(self, index: int) -> None:
        await ChoiceRun(index, self._request, self._served, self.emit, self._image_prompt).run()

    async def _images(self) -> ImagePrompt | None:
        media, prompts = self._request.media, self._served.image_prompts
        if media is None:
            return None
        if prompts is None:
            raise Unsupported("this model has no vision part", param="images")
        return await asyncio.to_thread(prompts.make, media)

    def emit(self, step: Step) -> None:
        """The first choice that hears of the prompt tells of it."""
        if isinstance(step, PromptStep):
            if self._prompt_told:
                return
            self._prompt_told = True
        elif step.index in self._finished:
            return
        self._emit(step)
