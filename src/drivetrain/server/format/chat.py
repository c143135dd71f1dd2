"""`/v1/chat/completions`: what an answer looks like, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from drivetrain.core.answer import AnswerEvent, ContentPiece, ReasoningPiece
from drivetrain.core.events import ChoiceFinished, Delta, Event, Started
from drivetrain.core.results import Choice, Result, Usage
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.format.openai import (
    ChunkFormatter,
    Heads,
    chat_logprobs,
    compact,
    matched_stop_json,
    quote,
    usage_json,
)
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.parse.schema import CHAT
from drivetrain.server.parse.translate import ParsedRequest, chat_request


async def chat(exchange: Exchange, context: Context) -> None:
    values = await read_body(exchange, context, CHAT)
    parsed = chat_request(values, exchange.headers)
    await answer(
        exchange, context, values["model"], parsed, partial(ChatFormatter, values["model"], created=int(time.time()))
    )


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.message is not None:
        message["content"] = choice.message.content or ""
        if choice.message.reasoning:
            message["reasoning_content"] = choice.message.reasoning
    return message


def _said(parts: Sequence[AnswerEvent]) -> dict[str, str]:
    """What the parts of a delta say, as a chunk's own delta."""
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPiece))
    content = "".join(part.text for part in parts if isinstance(part, ContentPiece))
    return {name: text for name, text in (("reasoning_content", reasoning), ("content", content)) if text}


class ChatFormatter(ChunkFormatter):
    def __init__(self, model: str, parsed: ParsedRequest, *, created: int) -> None:
        super().__init__(model, parsed, created=created, kind="chat.completion.chunk")
        self._tail = f'}},"logprobs":null,"finish_reason":null}}]{self._usage.spelled}}}\n\n'
        head = self._head  # capturing self would make a reference cycle
        self._texts = Heads(lambda index: f'{head}"choices":[{{"index":{index},"delta":{{"content":')

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        (result,) = results
        extra = {"prompt_token_ids": result.prompt_token_ids} if self._request.token_ids else {}
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(choice) for choice in result.choices],
            "usage": usage_json(usage),
            **extra,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": _message(choice),
            "logprobs": chat_logprobs(choice.logprobs or ()) if self._request.logprobs else None,
            "finish_reason": choice.finish_reason,
            **matched_stop_json(choice),
            **({"token_ids": choice.token_ids} if self._request.token_ids else {}),
        }

    # In chunks

    def _event(self, prompt: int, event: Event) -> bytes:
        if self._usage.continuous:
            self._usage.note(prompt, event)
        if type(event) is Delta:
            if self._plain and event.parts is None:
                return (self._texts[event.index] + quote(event.text) + self._tail).encode() if event.text else b""
            return self._detailed(event)
        if type(event) is ChoiceFinished:
            stop = {} if event.matched_stop is None else {"matched_stop": event.matched_stop}
            return self._chunk(
                {"index": event.index, "delta": {}, "logprobs": None, "finish_reason": event.reason} | stop
            )
        if type(event) is Started:
            return self._roles(event)
        return b""

    def _detailed(self, event: Delta) -> bytes:
        """Ids and logprobs may come without text: for a special token, or for text that a stop cut off."""
        delta = {"content": event.text} if event.parts is None else _said(event.parts)
        choice: dict[str, Any] = {
            "index": event.index,
            "delta": delta,
            "logprobs": chat_logprobs(event.logprobs) if self._request.logprobs and event.logprobs else None,
            "finish_reason": None,
        }
        if self._request.token_ids:
            choice["token_ids"] = event.token_ids
        elif not any(delta.values()) and choice["logprobs"] is None:
            return b""
        return self._chunk(choice)

    def _roles(self, event: Started) -> bytes:
        chunks = []
        for index in range(self._request.n):
            delta = {"role": "assistant", "content": "", "refusal": None}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            ids = {"prompt_token_ids": event.prompt_token_ids} if self._request.token_ids and index == 0 else {}
            chunks.append(self._chunk(choice, ids))
        return b"".join(chunks)

    def _chunk(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        more = f",{compact(extra)[1:-1]}" if extra else ""
        return f'{self._head}"choices":[{compact(choice)}]{more}{self._usage.spelled}}}\n\n'.encode()
