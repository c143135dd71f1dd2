"""`/v1/responses`: what an answer looks like, whole and as events, by the Open Responses document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.results import FinishReason, Result, TokenLogprob, Usage
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.errors import fields_of
from drivetrain.server.format.blocks import Block, BlockEvent, BlockKind, Blocks, Grown, Opened, blocks_of
from drivetrain.server.format.openai import DONE, chat_logprob, compact, receipt_field, receipt_json
from drivetrain.server.format.text_argument import TextArgument, is_whole, text_argument
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_request
from drivetrain.server.parse.custom_tools import ARGUMENT
from drivetrain.server.parse.responses import RESPONSE, SAMPLED, ResponseFrame, response_request
from drivetrain.server.parse.responses_input import encrypted
from drivetrain.server.parse.translate import ParsedRequest, new_hex

Defaults = Callable[[], Mapping[str, tuple[str, Any]]]
"""The model's own sampling values, each with its source, once it is loaded."""


async def responses(exchange: Exchange, context: Context) -> None:
    make = partial(response_request, headers=exchange.headers)
    values, (parsed, frame) = await read_request(exchange, context, RESPONSE, make)
    model = values["model"]

    def defaults() -> Mapping[str, tuple[str, Any]]:
        return context.models.find(model).metadata.sampling

    await answer(exchange, context, model, parsed, partial(ResponseFormatter, frame, defaults))


class ResponseFormatter:
    content_type = "text/event-stream; charset=utf-8"
    head_first = False

    def __init__(self, frame: ResponseFrame, defaults: Defaults, parsed: ParsedRequest) -> None:
        self._frame = frame.without(parsed.ignored)
        self._defaults = defaults
        self._logprobs = parsed.logprobs
        self._blocks = Blocks()
        self._items = _Items(frame)
        self._sequence = 0
        self._reason: FinishReason | None = None
        self._sampled: dict[str, Any] | None = None
        self._receipt: dict[str, Any] = {}

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        (result,) = results
        (choice,) = result.choices
        blocks = blocks_of(choice)
        output = [self._items.whole(block, self._status(choice.finish_reason, block, blocks)) for block in blocks]
        return {**self._response(choice.finish_reason, output, usage), **receipt_json(results)}

    # As events

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        return b"".join([self._of(event) for event in events])

    def end(self, usage: Usage) -> bytes:
        blocks = self._blocks.closed
        output = [self._items.whole(block, self._status(self._reason, block, blocks)) for block in blocks]
        response = {**self._response(self._reason, output, usage), **self._receipt}
        return self._event(f"response.{response['status']}", response=response) + DONE

    def failure(self, error: DrivetrainError) -> bytes:
        fields = fields_of(error)
        output = [self._items.whole(block, "completed") for block in self._blocks.closed]
        response = self._response(None, output, None) | {
            "status": "failed",
            "error": {"code": fields["code"], "message": fields["message"]},
        }
        return self._event("error", error=fields) + self._event("response.failed", response=response) + DONE

    def _of(self, event: Event) -> bytes:
        if type(event) is Delta:
            return self._told(self._blocks.take(event), event.logprobs or ())
        if type(event) is ChoiceFinished:
            self._reason = event.reason
            return self._told(self._blocks.end(), ())
        if type(event) is Finished:
            self._receipt = receipt_field(event)
        if type(event) is Started:
            response = self._response(None, [], None)
            return self._event("response.created", response=response) + self._event(
                "response.in_progress", response=response
            )
        return b""

    def _told(self, events: Iterable[BlockEvent], logprobs: Sequence[TokenLogprob]) -> bytes:
        told: list[bytes] = []
        for event in events:
            block = event.block
            if isinstance(event, Opened):
                told += [self._event(name, **fields) for name, fields in self._items.opened(block)]
            elif isinstance(event, Grown):
                kept = list(logprobs) if self._logprobs and block.kind is BlockKind.TEXT else []
                logprobs = () if kept else logprobs
                block.logprobs += kept
                told += [self._event(name, **fields) for name, fields in self._items.grown(block, event.text, kept)]
            else:
                status = self._status(self._reason, block, [block])
                told += [self._event(name, **fields) for name, fields in self._items.closed(block, status)]
        return b"".join(told)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {name}\ndata: {compact(data)}\n\n".encode()

    def _status(self, reason: FinishReason | None, block: Block, blocks: Sequence[Block]) -> str:
        """Only the last item can be cut off."""
        cut = reason is FinishReason.LENGTH and block is blocks[-1]
        return "incomplete" if cut else "completed"

    def _response(
        self, reason: FinishReason | None, output: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        """Without a reason, one that is in progress."""
        cut = reason is FinishReason.LENGTH
        status = "in_progress" if reason is None else "incomplete" if cut else "completed"
        return {
            **self._frame.fields,
            **self._sampling(),
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": None if usage is None else _usage_json(usage),
        }

    def _sampling(self) -> dict[str, Any]:
        """Looked up once, while the model is certainly loaded."""
        if self._sampled is None:
            own = self._defaults()
            default = {name: own[name][1] if name in own else neutral for name, neutral in SAMPLED.items()}
            self._sampled = {**default, **self._frame.sampling}
        return self._sampled


_Told = tuple[str, dict[str, Any]]
"""An event's name, and its fields."""


class _Items:
    """Blocks as items of the output, each with an id that stays the same."""

    def __init__(self, frame: ResponseFrame) -> None:
        self._encrypts = frame.encrypts_reasoning
        self._spaced = frame.spaced
        self._custom = frame.custom
        self._ids: dict[int, str] = {}
        self._input = TextArgument(ARGUMENT)
        """Of the call that is open in a stream."""

    def whole(self, block: Block, status: str) -> dict[str, Any]:
        kind, item_id = block.kind, self._id(block)
        if self._is_custom(block):
            if status == "completed" and not is_whole(block.text):
                status = "incomplete"
            call = {"call_id": block.call_id, "name": block.name, "input": text_argument(ARGUMENT, block.text)}
            return {"id": item_id, "type": "custom_tool_call", "status": status, **call}
        if kind is BlockKind.CALL:
            space, name = self._spaced.get(block.name, ("", block.name))
            of_space = {"namespace": space} if space else {}
            call = {"call_id": block.call_id, "name": name, **of_space, "arguments": block.text}
            return {"id": item_id, "type": "function_call", "status": status, **call}
        if kind is BlockKind.TEXT:
            content = [_text_part(block.text, block.logprobs)]
            return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}
        sealed = {"encrypted_content": encrypted(block.text)} if self._encrypts else {}
        content = [_reasoning_part(block.text)]
        return {"id": item_id, "type": "reasoning", "summary": [], "content": content, **sealed}

    def opened(self, block: Block) -> list[_Told]:
        self._input = TextArgument(ARGUMENT)
        item = self.whole(block, "in_progress")
        if block.kind is BlockKind.CALL:
            return [("response.output_item.added", {"output_index": block.index, "item": item})]
        (part,) = item["content"]
        item["content"] = []
        return [
            ("response.output_item.added", {"output_index": block.index, "item": item}),
            ("response.content_part.added", {**self._part_place(block), "part": part}),
        ]

    def _is_custom(self, block: Block) -> bool:
        return block.kind is BlockKind.CALL and block.name in self._custom

    def grown(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> list[_Told]:
        if self._is_custom(block):
            return self._more_input(block, self._input.feed(text))
        if block.kind is BlockKind.CALL:
            return [("response.function_call_arguments.delta", {**self._place(block), "delta": text})]
        fields = {**self._part_place(block), "delta": text}
        if block.kind is BlockKind.REASONING:
            return [("response.reasoning.delta", fields)]
        return [("response.output_text.delta", {**fields, "logprobs": _logprobs(logprobs)})]

    def _more_input(self, block: Block, text: str) -> list[_Told]:
        return [("response.custom_tool_call_input.delta", {**self._place(block), "delta": text})] if text else []

    def closed(self, block: Block, status: str) -> list[_Told]:
        item = self.whole(block, status)
        done = ("response.output_item.done", {"output_index": block.index, "item": item})
        if self._is_custom(block):
            whole = ("response.custom_tool_call_input.done", {**self._place(block), "input": item["input"]})
            return [*self._more_input(block, self._input.rest()), whole, done]
        if block.kind is BlockKind.CALL:
            told = {**self._place(block), "arguments": block.text}
            return [("response.function_call_arguments.done", told), done]
        place = self._part_place(block)
        if block.kind is BlockKind.REASONING:
            text: _Told = ("response.reasoning.done", {**place, "text": block.text})
        else:
            logprobs = _logprobs(block.logprobs)
            text = ("response.output_text.done", {**place, "text": block.text, "logprobs": logprobs})
        return [text, ("response.content_part.done", {**place, "part": item["content"][0]}), done]

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._id(block), "output_index": block.index}

    def _part_place(self, block: Block) -> dict[str, Any]:
        return {**self._place(block), "content_index": 0}

    def _id(self, block: Block) -> str:
        if block.index not in self._ids:
            prefix = "ctc" if self._is_custom(block) else _PREFIXES[block.kind]
            self._ids[block.index] = f"{prefix}_{new_hex()}"
        return self._ids[block.index]


_PREFIXES = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}


def _text_part(text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": _logprobs(logprobs)}


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _logprobs(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [chat_logprob(entry) for entry in entries]


def _usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
