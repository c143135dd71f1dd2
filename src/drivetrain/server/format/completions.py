"""`/v1/completions`: what an answer looks like, whole and in chunks. Choices are in prompt-major order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.results import Choice, Result, Usage
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.format.openai import (
    ChunkFormatter,
    Heads,
    compact,
    completion_logprobs,
    matched_stop_json,
    quote,
    receipt_json,
    usage_json,
)
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_request
from drivetrain.server.parse.schema import COMPLETION
from drivetrain.server.parse.translate import ParsedRequest, completion_request


async def completions(exchange: Exchange, context: Context) -> None:
    make = partial(completion_request, headers=exchange.headers, max_prompts=context.settings.max_prompts)
    values, parsed = await read_request(exchange, context, COMPLETION, make)
    await answer(
        exchange,
        context,
        values["model"],
        parsed,
        partial(CompletionFormatter, values["model"], created=int(time.time())),
    )


class CompletionFormatter(ChunkFormatter):
    def __init__(self, model: str, parsed: ParsedRequest, *, created: int) -> None:
        super().__init__(model, parsed, created=created, kind="text_completion")
        self._tail = f',"logprobs":null,"finish_reason":null}}]{self._usage.spelled}}}\n\n'
        head = self._head  # capturing self would make a reference cycle
        self._texts = Heads(lambda index: f'{head}"choices":[{{"index":{index},"text":')

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        choices = [self._choice(i, result, choice) for i, result in enumerate(results) for choice in result.choices]
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage_json(usage),
            **receipt_json(results),
        }

    def _choice(self, prompt: int, result: Result, choice: Choice) -> dict[str, Any]:
        ids: dict[str, Any] = {}
        if self._request.token_ids:
            ids = {"token_ids": choice.token_ids, "prompt_token_ids": result.prompt_token_ids}
        return {
            "index": prompt * self._request.n + choice.index,
            "text": choice.text,
            "logprobs": completion_logprobs(choice.logprobs or (), ids=self._request.token_ids)
            if self._request.logprobs
            else None,
            "finish_reason": choice.finish_reason,
            **matched_stop_json(choice),
            **ids,
        }

    # In chunks

    def _event(self, prompt: int, event: Event) -> bytes:
        if self._usage.continuous:
            self._usage.note(prompt, event)
        if type(event) is Delta:
            if self._plain:
                index = prompt * self._request.n + event.index
                return (self._texts[index] + quote(event.text) + self._tail).encode() if event.text else b""
            return self._detailed(prompt, event)
        if type(event) is ChoiceFinished:
            stop: dict[str, Any] = {} if event.matched_stop is None else {"matched_stop": event.matched_stop}
            return self._chunk(prompt, event.index, finish_reason=event.reason, **stop)
        if type(event) is Started and self._request.token_ids:
            return self._chunk(prompt, 0, prompt_token_ids=event.prompt_token_ids)
        return self._receipt(event) if type(event) is Finished else b""

    def _detailed(self, prompt: int, event: Delta) -> bytes:
        ids = self._request.token_ids
        logprobs = completion_logprobs(event.logprobs, ids=ids) if self._request.logprobs and event.logprobs else None
        if ids:
            return self._chunk(prompt, event.index, event.text, logprobs, token_ids=event.token_ids)
        return self._chunk(prompt, event.index, event.text, logprobs) if event.text or logprobs else b""

    def _chunk(
        self, prompt: int, index: int, text: str = "", logprobs: Any = None, finish_reason: Any = None, **extra: Any
    ) -> bytes:
        choice = {
            "index": prompt * self._request.n + index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            **extra,
        }
        return f'{self._head}"choices":[{compact(choice)}]{self._usage.spelled}}}\n\n'.encode()
