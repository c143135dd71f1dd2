"""`/v1/chat/completions`: what an answer looks like, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from drivetrain.core.answer import AnswerEvent, ContentPiece, ReasoningPiece
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.results import Choice, Result, Usage
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.format.message import delta_json, message_json
from drivetrain.server.format.openai import (
    ChunkFormatter,
    Heads,
    chat_logprobs,
    compact,
    matched_stop_json,
    quote,
    receipt_json,
    usage_json,
)
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_request
from drivetrain.server.parse.schema import CHAT
from drivetrain.server.parse.translate import ParsedRequest, chat_request
from drivetrain.text.answers.told import AnswerTeller, ToldPiece


async def chat(exchange: Exchange, context: Context) -> None:
    values, parsed = await read_request(exchange, context, CHAT, partial(chat_request, headers=exchange.headers))
    await answer(
        exchange, context, values["model"], parsed, partial(ChatFormatter, values["model"], created=int(time.time()))
    )


class ChatFormatter(ChunkFormatter):
    def __init__(self, model: str, parsed: ParsedRequest, *, created: int) -> None:
        super().__init__(model, parsed, created=created, kind="chat.completion.chunk")
        self._tail = f'}},"logprobs":null,"finish_reason":null}}]{self._usage.spelled}}}\n\n'
        head = self._head  # capturing self would make a reference cycle
        self._texts = Heads(lambda index: f'{head}"choices":[{{"index":{index},"delta":{{"content":')
        self._reasoning = Heads(lambda index: f'{head}"choices":[{{"index":{index},"delta":{{"reasoning_content":')
        self._tellers: dict[int, AnswerTeller] = {}

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
            **receipt_json(results),
            **extra,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": message_json(choice),
            "logprobs": chat_logprobs(choice.logprobs or (), ids=self._request.token_ids)
            if self._request.logprobs
            else None,
            "finish_reason": choice.finish_reason,
            **matched_stop_json(choice),
            **({"token_ids": choice.token_ids} if self._request.token_ids else {}),
        }

    # In chunks

    def _event(self, prompt: int, event: Event) -> bytes:
        if self._usage.continuous:
            self._usage.note(prompt, event)
        if type(event) is Delta:
            if event.parts is not None:
                return self._parts(event, event.parts)
            if self._plain:
                return (self._texts[event.index] + quote(event.text) + self._tail).encode() if event.text else b""
            return self._detailed(event, [{"content": event.text}] if event.text else [])
        if type(event) is ChoiceFinished:
            return self._finish(event)
        if type(event) is Started:
            return self._roles(event)
        return self._receipt(event) if type(event) is Finished else b""

    def _parts(self, event: Delta, parts: Sequence[AnswerEvent]) -> bytes:
        """A chunk for each kind of part: many clients look at one field of a chunk only."""
        index = event.index
        teller = self._tellers.get(index)
        if teller is None:
            teller = self._tellers[index] = AnswerTeller()
        pieces = teller.take(parts)
        if not self._plain:
            return self._detailed(event, [delta_json(piece) for piece in pieces])
        return b"".join([self._piece(index, piece) for piece in pieces])

    def _piece(self, index: int, piece: ToldPiece) -> bytes:
        if isinstance(piece, ContentPiece):
            return (self._texts[index] + quote(piece.text) + self._tail).encode()
        if isinstance(piece, ReasoningPiece):
            return (self._reasoning[index] + quote(piece.text) + self._tail).encode()
        return self._chunk(_choice_chunk(index, delta_json(piece)))

    def _detailed(self, event: Delta, deltas: Sequence[dict[str, Any]]) -> bytes:
        """Ids and logprobs go with the first chunk. They may come without text: for a special token, or for text that a
        stop cut off."""
        ids = self._request.token_ids
        logprobs = chat_logprobs(event.logprobs, ids=ids) if self._request.logprobs and event.logprobs else None
        if not deltas and not event.logprobs and not self._request.token_ids:
            return b""
        chunks = []
        for place, delta in enumerate(deltas or [{"content": ""}]):
            added = {"token_ids": () if place else event.token_ids} if ids else {}
            choice = _choice_chunk(event.index, delta) | {"logprobs": None if place else logprobs} | added
            chunks.append(self._chunk(choice))
        return b"".join(chunks)

    def _finish(self, event: ChoiceFinished) -> bytes:
        teller = self._tellers.pop(event.index, None)
        rest = teller.end() if teller is not None else ""
        stop = {} if event.matched_stop is None else {"matched_stop": event.matched_stop}
        last = _choice_chunk(event.index, {}) | {"finish_reason": event.reason} | stop
        content = self._chunk(_choice_chunk(event.index, {"content": rest})) if rest else b""
        return content + self._chunk(last)

    def _roles(self, event: Started) -> bytes:
        chunks = []
        for index in range(self._request.n):
            delta = {"role": "assistant", "content": "", "refusal": None}
            choice = _choice_chunk(index, delta)
            ids = {"prompt_token_ids": event.prompt_token_ids} if self._request.token_ids and index == 0 else {}
            chunks.append(self._chunk(choice, ids))
        return b"".join(chunks)

    def _chunk(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        more = f",{compact(extra)[1:-1]}" if extra else ""
        return f'{self._head}"choices":[{compact(choice)}]{more}{self._usage.spelled}}}\n\n'.encode()


def _choice_chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
