"""The requests, in the form that each server takes, and the times of the answers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

_TEXT = (
    "river stone lamp cloud horse copper garden window letter winter bridge island candle mirror forest harbor "
    "engine market silver thunder basket pepper violin desert castle orange planet pencil rocket saddle ticket valley"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Its own system message replaces the template's, which all prompts would share as a prefix to cache."""

    system: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def text(self) -> str:
        """As the chat template of SmolLM2 renders it, for servers that take text."""
        turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in self.messages)
        return turns + "<|im_start|>assistant\n"


def make_prompts(num: int, rng: random.Random) -> list[Prompt]:
    """About 35 tokens each, different from the first words on. The answers are longer than 64 tokens."""
    made = []
    for _ in range(num):
        words = rng.sample(WORDS, 8)
        system = f"{words[0].title()} {words[1]} {words[2]} tell stories."
        made.append(Prompt(system, f"Write a very long story about a {', a '.join(words[3:6])} and the {words[6]}."))
    return made


@dataclass(slots=True)
class Answer:
    """Seconds from sending the request to each event with text, and what the server counted."""

    events: list[float] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0


class Form(Protocol):
    """How one kind of server is asked. `read` is called for each frame of the stream as it comes."""

    @property
    def path(self) -> str: ...

    @property
    def delimiter(self) -> bytes:
        """Ends a frame."""
        ...

    def body(self, prompt: Prompt, tokens: int) -> dict[str, Any]: ...

    def read(self, frame: bytes, answer: Answer, at: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Chat:
    """OpenAI chat. `extra` has fields that this server takes and not all others do.

    Without a model's name the field is left out, for a server that has one model.
    """

    model: str | None
    extra: dict[str, Any] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    delimiter: bytes = b"\n"

    def body(self, prompt: Prompt, tokens: int) -> dict[str, Any]:
        body = {"messages": prompt.messages, "max_tokens": tokens, "temperature": 0, "stream": True}
        named = {"model": self.model} if self.model else {}
        return {**named, **body, "stream_options": {"include_usage": True}, **self.extra}

    def read(self, frame: bytes, answer: Answer, at: float) -> None:
        if not frame.startswith(b"data: {"):
            return
        event = json.loads(frame[6:])
        if "error" in event:
            raise RuntimeError(f"in the stream: {event['error']}")
        if any(choice["delta"].get("content") for choice in event["choices"]):
            answer.events.append(at)
        if usage := event.get("usage"):
            answer.tokens, answer.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]


@dataclass(frozen=True, slots=True)
class FastChatWorker:
    """FastChat's own protocol: each frame repeats the whole text."""

    path: str = "/worker_generate_stream"
    delimiter: bytes = b"\0"

    def body(self, prompt: Prompt, tokens: int) -> dict[str, Any]:
        return {"prompt": prompt.text, "temperature": 0, "max_new_tokens": tokens, "echo": False}

    def read(self, frame: bytes, answer: Answer, at: float) -> None:
        event = json.loads(frame)
        if event["error_code"]:
            raise RuntimeError(f"in the stream: {event['text']}")
        usage = event["usage"]
        if event["finish_reason"] is None:
            answer.events.append(at)
        answer.prompt_tokens = usage["prompt_tokens"]
        # It does not count the last token, which belongs to the text unless it ended the text.
        answer.tokens = usage["completion_tokens"] + (event["finish_reason"] == "length")


async def ask(port: int, form: Form, prompt: Prompt, tokens: int) -> Answer:
    """One request on a connection of its own."""
    data = json.dumps(form.body(prompt, tokens)).encode()
    head = (
        f"POST {form.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    answer = Answer()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    try:
        writer.write(head.encode() + data)
        rest = b""
        async for chunk in _chunks(reader):
            at = time.perf_counter() - began
            *frames, rest = (rest + chunk).split(form.delimiter)
            for frame in frames:
                form.read(frame, answer, at)
    finally:
        writer.close()
    return answer


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of a chunked answer."""
    status = (await reader.readuntil(b"\r\n\r\n")).decode()
    if " 200 " not in status.splitlines()[0] or "chunked" not in status.lower():
        raise RuntimeError((status + (await reader.read(500)).decode(errors="replace")).strip())
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
