"""One request: its choices side by side, and their prompt, made ready once."""

from __future__ import annotations

import asyncio

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.engines.base.generation import Emit, Generation
from drivetrain.engines.llamacpp.generation import ChoiceRun, RunningServer
from drivetrain.engines.llamacpp.images.prompt import ImagePrompt


class LlamaCppGeneration(Generation):
    """When it has ended, every slot is idle."""

    def __init__(self, request: EngineRequest, served: RunningServer, emit: Emit) -> None:
        super().__init__(request, emit)
        self._served = served
        self._image_prompt: ImagePrompt | None = None

    async def run(self) -> None:
        if len(set(self._request.sampling.suppress_tokens)) >= self._served.vocabulary.size:
            raise InvalidRequest("the bans of this request leave no token to sample", param="suppress_tokens")
        self._refuse_second_legs()
        self._image_prompt = await self._images()
        await super().run()

    async def run_choice(self, index: int) -> None:
        await ChoiceRun(index, self._request, self._served, self.emit, self._image_prompt).run()

    def _refuse_second_legs(self) -> None:
        """In which llama.cpp would begin the grammar anew."""
        request = self._request
        asked = {"min_tokens": request.min_tokens, "begin_suppress_tokens": request.sampling.begin_suppress_tokens}
        for name, value in asked.items():
            if request.grammar is not None and value:
                raise Unsupported(
                    f"the llamacpp engine cannot combine {name} with a constraint; leave one of them out", param=name
                )

    async def _images(self) -> ImagePrompt | None:
        media, prompts = self._request.media, self._served.image_prompts
        if media is None:
            return None
        if prompts is None:
            raise Unsupported("this model has no vision part", param="images")
        return await asyncio.to_thread(prompts.make, media)
