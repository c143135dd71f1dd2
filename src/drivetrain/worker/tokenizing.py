"""Tokenizing and detokenizing as requests of their own: they take no slot, and no answer waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EngineInfo
from drivetrain.core.errors import DeadlineExceeded, InvalidRequest, Unsupported
from drivetrain.core.kinds import String
from drivetrain.core.parameters import not_supported
from drivetrain.core.prompt import Prompt
from drivetrain.core.request import GenerateRequest
from drivetrain.text.infill import Infill
from drivetrain.worker.chats import Chats
from drivetrain.worker.text_threads import TextThreads

T = TypeVar("T")

IDS_A_LOOK = 10_000
"""Ids that are checked before other threads get their turn."""


class Tokenizing:
    """`timeout_s` bounds each call."""

    def __init__(
        self,
        *,
        info: EngineInfo,
        capabilities: Capabilities,
        chats: Chats,
        infill: Infill | None,
        threads: TextThreads,
        timeout_s: float,
    ) -> None:
        self._info = info
        self._limits = capabilities.limits
        self._chats = chats
        self._infill = infill
        self._threads = threads
        self._timeout_s = timeout_s

    async def tokenize(
        self, text: str | None, asked: GenerateRequest | None, *, add_special_tokens: bool | None = None
    ) -> list[int]:
        """Of a text, perhaps with a suffix, or of a chat and its tools. `add_special_tokens` None: as for an answer."""
        if text is not None:
            String().judge("text", text)
        self._refuse_ids("text")
        chars = len(text or "") + (_chars(asked) if asked is not None else 0)
        self._at_most(chars, "characters", "text")

        def work() -> list[int]:
            prompt = self._rendered(text or "", asked)
            add_bos = prompt.add_bos if add_special_tokens is None else add_special_tokens
            return self._info.tokenizer.encode(replace(prompt, add_bos=add_bos))

        return await self._on_lane(chars, work)

    def _rendered(self, text: str, asked: GenerateRequest | None) -> Prompt:
        if asked is None:
            return Prompt.raw(text)
        if not asked.suffix:
            return self._chats.render(asked)
        if self._infill is None:
            raise not_supported("suffix")
        return self._infill.form.prompt(text, asked.suffix)

    async def detokenize(self, ids: Sequence[int]) -> str:
        self._refuse_ids("tokens")
        if not isinstance(ids, (list, tuple)):
            raise self._invalid_ids()
        self._at_most(len(ids), "ids", "tokens")
        return await self._on_lane(len(ids), lambda: self._decode(ids))

    async def _on_lane(self, size: int, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                (result,) = await self._threads.lane(size).run([work])
        except TimeoutError:
            raise DeadlineExceeded(f"the text was not finished within {self._timeout_s:g} seconds") from None
        return result

    def _decode(self, ids: Sequence[int]) -> str:
        vocab_size = self._info.vocab_size
        for start in range(0, len(ids), IDS_A_LOOK):
            piece = ids[start : start + IDS_A_LOOK]
            if set(map(type, piece)) != {int} or min(piece) < 0 or max(piece) >= vocab_size:
                raise self._invalid_ids()
        return self._info.tokenizer.decode(ids, skip_special=False)

    def _invalid_ids(self) -> InvalidRequest:
        return InvalidRequest(f"ids must be a list of integers from 0 to {self._info.vocab_size - 1}", param="tokens")

    def _refuse_ids(self, param: str) -> None:
        if not self._info.capabilities.tokens:
            raise Unsupported("this model's engine works on text only, not token ids", param=param)

    def _at_most(self, number: int, unit: str, param: str) -> None:
        limit = self._limits.max_prompt_chars
        if number > limit:
            what = "the text has" if param == "text" else "tokens has"
            raise InvalidRequest(f"{what} {number} {unit}; the limit is {limit}", param=param)


def _chars(asked: GenerateRequest) -> int:
    said = len(asked.suffix or "") + sum(message.num_chars for message in asked.messages or ())
    return said + sum(len(tool.parameters) + len(tool.description) for tool in asked.tools or ())
