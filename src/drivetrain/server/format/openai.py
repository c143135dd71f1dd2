"""What chat and completions have in common: JSON text, usage, logprobs, and the frame of a stream's chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import Any

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.core.results import Choice, Result, TokenLogprob, Usage
from drivetrain.core.sealing import document
from drivetrain.server.encoding import ENCODER, Each
from drivetrain.server.errors import body_of
from drivetrain.server.parse.translate import ParsedRequest

quote = encode_basestring
"""A string as JSON, without escaping non-ASCII characters."""

LOWEST = -9999.0
"""The logprob of a probability of zero: JSON has no infinity."""


def compact(value: Any) -> str:
    return ENCODER.encode(value)


class Heads(dict[int, str]):
    """The constant text before each choice's own, made when first used: `n` from the client is not trusted."""

    def __init__(self, make: Callable[[int], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, index: int) -> str:
        return self.setdefault(index, self._make(index))


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class UsageSoFar:
    """What each chunk of a stream says about the usage: nothing, null until the last chunk, or the usage so far."""

    def __init__(self, *, wanted: bool, continuous: bool) -> None:
        self.continuous = continuous
        self.spelled = ',"usage":null' if wanted else ""
        self._prompts: dict[int, int] = {}
        self._completion_tokens = 0

    def note(self, prompt: int, event: Event) -> None:
        """Count an event, so that its own chunk already includes it."""
        if isinstance(event, Started):
            self._prompts[prompt] = event.prompt_tokens
        elif isinstance(event, Delta):
            self._completion_tokens += len(event.token_ids)
        usage = Usage(sum(self._prompts.values()), self._completion_tokens)
        self.spelled = f',"usage":{compact(usage_json(usage))}'


def matched_stop_json(choice: Choice) -> dict[str, Any]:
    """Which stop it was, for callers that sent several."""
    return {} if choice.matched_stop is None else {"matched_stop": choice.matched_stop}


def receipt_json(results: Sequence[Result]) -> dict[str, Any]:
    """The receipt of an answer that has one; of several prompts, a list of all."""
    documents = [document(result.receipt) for result in results if result.receipt is not None]
    if not documents:
        return {}
    return {"receipt": documents[0]} if len(results) == 1 else {"receipts": documents}


def receipt_field(event: Finished) -> dict[str, Any]:
    """The same at the end of a stream, for one prompt."""
    return {} if event.receipt is None else {"receipt": document(event.receipt)}


def chat_logprobs(entries: Sequence[TokenLogprob], *, ids: bool = False) -> dict[str, Any]:
    """`ids` adds the ids of the tokens and of their alternatives."""
    return {"content": Each(entries, _chat_logprob_with_id if ids else chat_logprob), "refusal": None}


def _chat_logprob_with_id(entry: TokenLogprob) -> dict[str, Any]:
    made = chat_logprob(entry)
    tops = [{"id": top.token_id, **shown} for top, shown in zip(entry.top, made["top_logprobs"], strict=True)]
    return {"id": entry.token_id, **made, "top_logprobs": tops}


def chat_logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": finite(entry.logprob),
        "bytes": list(entry.bytes),
        "top_logprobs": [
            {"token": top.token, "logprob": finite(top.logprob), "bytes": list(top.bytes)} for top in entry.top
        ],
    }


def completion_logprobs(entries: Sequence[TokenLogprob], *, ids: bool = False) -> dict[str, Any]:
    """Parallel arrays. A token's alternatives always include itself. `ids` adds the exact entries, with token ids."""
    return {
        **({"entries": Each(entries, _with_ids)} if ids else {}),
        "tokens": Each(entries, lambda entry: _name(entry.token, entry.bytes)),
        "token_logprobs": Each(entries, lambda entry: None if entry.logprob is None else finite(entry.logprob)),
        "top_logprobs": Each(entries, _alternatives),
        "text_offset": Each(entries, lambda entry: entry.text_offset),
    }


def _with_ids(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "id": entry.token_id,
        "bytes": list(entry.bytes),
        "logprob": None if entry.logprob is None else finite(entry.logprob),
        "top": [{"id": t.token_id, "bytes": list(t.bytes), "logprob": finite(t.logprob)} for t in entry.top],
    }


def _alternatives(entry: TokenLogprob) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    logprobs: dict[str, float] = {}
    for top in entry.top:
        logprobs.setdefault(_name(top.token, top.bytes), finite(top.logprob))
    logprobs.setdefault(_name(entry.token, entry.bytes), finite(entry.logprob))
    return logprobs


def _name(token: str, data: bytes) -> str:
    """A token that is not whole characters is named by its bytes, as in the OpenAI API."""
    return "bytes:" + "".join(f"\\x{b:02x}" for b in data) if "\ufffd" in token and data else token


def finite(logprob: float | None) -> float:
    if logprob is None or math.isnan(logprob):
        return LOWEST
    return max(LOWEST, min(0.0, logprob))


DONE = b"data: [DONE]\n\n"


class ChunkFormatter:
    """What the streams of the OpenAI API have in common: chunks of one answer, and their end.

    All chunks of an answer have the same id, time and model. `kind` is the `object` of a chunk."""

    content_type = "text/event-stream; charset=utf-8"
    head_first = False

    def __init__(self, model: str, parsed: ParsedRequest, *, created: int, kind: str) -> None:
        self._request = parsed
        self._id = parsed.id
        self._created = created
        self._model = model
        head = {"id": self._id, "object": kind, "created": self._created, "model": model}
        self._head = f"data: {compact(head)[:-1]},"
        self._usage = UsageSoFar(wanted=parsed.include_usage, continuous=parsed.continuous_usage)
        self._plain = not parsed.logprobs and not parsed.token_ids and not parsed.continuous_usage

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        if len(events) == 1:
            return self._event(prompt, events[0])
        return b"".join([self._event(prompt, event) for event in events])

    def end(self, usage: Usage) -> bytes:
        if not self._request.include_usage:
            return DONE
        return f'{self._head}"choices":[],"usage":{compact(usage_json(usage))}}}\n\n'.encode() + DONE

    def _receipt(self, event: Finished) -> bytes:
        """Without a receipt there is nothing to say: the usage comes with the end."""
        if not (field := receipt_field(event)):
            return b""
        return f'{self._head}"choices":[],{compact(field)[1:-1]}{self._usage.spelled}}}\n\n'.encode()

    def failure(self, error: DrivetrainError) -> bytes:
        return b"data: " + body_of(error) + b"\n\n" + DONE

    def _event(self, prompt: int, event: Event) -> bytes:
        raise NotImplementedError
