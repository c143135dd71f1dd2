"""A server that keeps the contract, small enough to read, and a place for each thing that a test makes it do wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import toy_faces
from toy_answers import Asked, embedding, render
from toy_model import decode, encode
from toy_rules import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    DETOKENIZE,
    EMBEDDINGS,
    RERANK,
    SCORE,
    TOKENIZE,
    Refused,
    check,
    check_together,
    documents,
    prompts,
)
from toy_tools import check_format, check_results, check_tools

KEY = "toy-key"
SLOW_TOKENS = 500
"""Answers that may be longer than this are given slowly, so that there is something to leave."""

STEP_S = 0.004
KEEPS_S = 1.5
HEADERS_BYTES = 2**16
BODY_BYTES = 2**25
INFO = {"eos_token": "</s>", "bos_token": None, "pad_token": None, "chat_template": "{{ messages }}"}
CARD = {"id": "toy", "object": "model", "created": 1_700_000_000, "owned_by": "toy", "max_model_len": CONTEXT}


@dataclass
class Reply:
    status: int
    document: Any = None
    events: list[Any] | None = None
    step_s: float = 0.0
    deadline_s: float | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Faults:
    """What is wrong. `request` changes a body before it is read, `reply` what is answered, `wire` its last bytes."""

    request: Callable[[str, Any], Any] = lambda path, body: body
    reply: Callable[[str, Any, Reply], Reply] = lambda path, body, reply: reply
    wire: Callable[[bytes], bytes] = lambda data: data
    open_paths: Callable[[str, str], bool] = lambda method, path: path == "/health"
    keeps_running: bool = False
    one_slot: bool = False
    fetches: bool = False
    waits_for_all: bool = False
    reads_header: bool = True
    request_id: Callable[[str], str] | None = None


class Toy:
    def __init__(self, faults: Faults | None = None, key: str = KEY) -> None:
        self.faults = faults or Faults()
        self.key = key
        self.running = 0
        self.port = 0
        self._numbers = itertools.count(1)
        self._slot = asyncio.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    # HTTP

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, path, headers = await self._head(reader)
            reply, body = await self._reply(method, path, headers, reader)
            reply.headers["x-request-id"] = self._request_id(headers)
            if self.faults.fetches and isinstance(body, dict):
                await _fetch(body)
            reply = self.faults.reply(path, body, reply)
            async with self._place(reply, body):
                await self._send(method, reply, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # a client that leaves is part of the tests
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            with contextlib.suppress(TimeoutError):  # what is not read resets the connection, and the answer is lost
                while await asyncio.wait_for(reader.read(2**16), 0.1):
                    pass
            return "GET", "/too-large", {}
        first, *lines = raw.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        return (
            method,
            unquote(path.partition("?")[0]),
            {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines if x)},
        )

    async def _reply(
        self, method: str, path: str, headers: dict[str, str], reader: asyncio.StreamReader
    ) -> tuple[Reply, Any]:
        size, body = int(headers.get("content-length", 0)), None
        try:
            if path == "/too-large":
                raise Refused("the headers are too large", status=431)
            if (
                self.key
                and not self.faults.open_paths(method, path)
                and headers.get("authorization") != f"Bearer {self.key}"
            ):
                raise Refused("a key is needed", status=401, code="invalid_api_key")
            if size > BODY_BYTES and not self.faults.waits_for_all:
                raise Refused("the body is too large", status=413)
            data = await reader.readexactly(size)
            body = self.faults.request(path, _parsed(data)) if method == "POST" else None
            if self.faults.reads_header and isinstance(body, dict) and headers.get("x-drivetrain-receipt") == "1":
                body["receipt"] = True
            return self._route(method, path.rstrip("/"), body), body
        except Refused as exc:
            return Reply(exc.status, {"error": exc.error}), body

    def _request_id(self, headers: dict[str, str]) -> str:
        given = headers.get("x-request-id", "")
        if self.faults.request_id is not None:
            return self.faults.request_id(given)
        return given or f"req-{next(self._numbers)}"

    async def _send(
        self, method: str, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        kind = "application/json" if reply.events is None else "text/event-stream"
        head = {"content-type": kind, "connection": "close", **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Toy", *(f"{k}: {v}" for k, v in head.items() if v)]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if reply.events is None:
            if reply.step_s:
                await self._run(reply.step_s * 1000, reader)
            writer.write(self.faults.wire(json.dumps(reply.document).encode()))
            await writer.drain()
            return
        left = reply.deadline_s
        for event in reply.events:
            if left is not None and (left := left - reply.step_s) < 0:
                event = {"error": Refused("the time is over", code="deadline_exceeded").error}
            await self._run(reply.step_s, reader)
            text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            writer.write(self.faults.wire(f"data: {text}\n\n".encode(errors="backslashreplace")))
            await writer.drain()
            if isinstance(event, dict) and "error" in event:
                writer.write(self.faults.wire(b"data: [DONE]\n\n"))
                return

    def _place(self, reply: Reply, body: Any) -> contextlib.AbstractAsyncContextManager[None]:
        return self._slot if self.faults.one_slot and reply.status == 200 and body else contextlib.nullcontext()

    async def _run(self, seconds: float, reader: asyncio.StreamReader) -> None:
        """Work, while the gauge says so, until the client leaves."""
        if not seconds:
            return
        self.running += 1
        gone = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait({gone}, timeout=seconds)
            if gone.done():
                if self.faults.keeps_running:
                    await asyncio.sleep(KEEPS_S)
                raise ConnectionError
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            self.running -= 1

    # Routes

    def _route(self, method: str, path: str, body: Any) -> Reply:
        routes: dict[str, tuple[str, Callable[[Any], Reply]]] = {
            "/v1/models": ("GET", lambda _: Reply(200, {"object": "list", "data": [CARD]})),
            "/v1/models/toy": ("GET", lambda _: Reply(200, CARD)),
            "/health": ("GET", lambda _: Reply(200, {"status": "ok"})),
            "/status": ("GET", lambda _: Reply(200, {"running": self.running, "version": "toy-1"})),
            "/v1/chat/completions": ("POST", lambda b: _text(b, chat=True)),
            "/v1/completions": ("POST", lambda b: _text(b, chat=False)),
            "/v1/responses": ("POST", lambda b: _faced(toy_faces.response, b)),
            "/v1/messages": ("POST", lambda b: _anthropic(toy_faces.message, b)),
            "/v1/messages/count_tokens": ("POST", lambda b: _anthropic(toy_faces.counted, b)),
            "/v1/embeddings": ("POST", _embeddings),
            "/v1/rerank": ("POST", _rerank),
            "/v1/score": ("POST", _score),
            "/tokenize": ("POST", _tokenize),
            "/detokenize": ("POST", _detokenize),
            "/tokenizer_info": ("GET", lambda _: Reply(200, INFO)),
        }
        if path not in routes:
            raise Refused("there is nothing here", status=404, code="not_found")
        allowed, handle = routes[path]
        if method == "OPTIONS":
            return Reply(200, None)
        if method != allowed:
            raise Refused("this path does not take this method", status=405, code="method_not_allowed")
        return handle(body)


def _parsed(data: bytes) -> Any:
    if b"}" * 100 in data:  # some versions of Python read any depth
        raise Refused("the body is nested too deeply")
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused("the body is not JSON") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _text(body: Any, *, chat: bool) -> Reply:
    checked = check(body, CHAT if chat else COMPLETIONS, "model", *(["messages"] if chat else []))
    check_together(checked)
    check_tools(checked)
    check_results(checked.get("messages", []))
    check_format(checked.get("response_format", {}))
    asked = Asked(checked, chat)
    slow = asked.limit > SLOW_TOKENS
    if slow:  # the text does not matter, only that it lasts
        asked.limit = 4
    choices = asked.choices()
    step_s = STEP_S if slow else 0.0
    if not checked.get("stream"):
        return Reply(200, asked.whole(choices), step_s=step_s)
    events = asked.events(choices)
    if slow:
        events = [events[0], *[events[1]] * checked.get("max_tokens", 0), *events[1:]]
    deadline_s = checked.get("timeout_s")
    if deadline_s is not None and deadline_s < 0.02:
        raise Refused("the time is over", "timeout_s", 504, "deadline_exceeded")
    return Reply(200, events=[*events, "[DONE]"], step_s=step_s, deadline_s=deadline_s)


def _faced(make: Callable[[Any], tuple[Any, list[Any] | None]], body: Any) -> Reply:
    document, events = make(body)
    return Reply(200, document, events=events)


def _anthropic(make: Callable[[Any], tuple[Any, list[Any] | None]], body: Any) -> Reply:
    try:
        return _faced(make, body)
    except Refused as exc:
        return Reply(exc.status, {"type": "error", "error": exc.error})


def _embeddings(body: Any) -> Reply:
    checked = check(body, EMBEDDINGS, "model", "input")
    lists = [p if isinstance(p, list) else encode(p) for p in prompts(checked["input"])]
    if any(len(ids) > CONTEXT for ids in lists):
        raise Refused(f"input is too long: the limit is {CONTEXT}", "input", code="context_length_exceeded")
    vectors = [embedding(ids, checked.get("dimensions", 16)) for ids in lists]
    if checked.get("encoding_format") == "base64":
        made: list[Any] = [base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() for v in vectors]
    else:
        made = list(vectors)
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(made)]
    count = sum(map(len, lists))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return Reply(200, {"object": "list", "data": data, "model": "toy", "usage": usage})


def _fit(query: str, text: str) -> float:
    wanted, found = set(query.lower().split()), set(text.lower().strip(".").split())
    return (len(wanted & found) + len(text) / 1000) / (len(wanted) + 1)


def _rerank(body: Any) -> Reply:
    checked = check(body, RERANK, "model", "query", "documents")
    texts = documents(checked["documents"])
    scores = [_fit(checked["query"], text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[: checked.get("top_n")]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if checked.get("return_documents"):
        results = [{**result, "document": {"text": texts[result["index"]]}} for result in results]
    return Reply(200, {"id": "rerank-1", "model": "toy", "results": results})


def _score(body: Any) -> Reply:
    checked = check(body, SCORE, "model", "text_1", "text_2")
    scores = [_fit(checked["text_1"], text) for text in documents(checked["text_2"])]
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
    return Reply(200, {"object": "list", "data": data, "model": "toy"})


def _tokenize(body: Any) -> Reply:
    checked = check(body, TOKENIZE)
    if ("prompt" in checked) == ("messages" in checked):
        raise Refused("give prompt or messages", "prompt")
    ids = encode(checked["prompt"] if "prompt" in checked else render(checked["messages"]))
    return Reply(200, {"tokens": ids, "count": len(ids)})


def _detokenize(body: Any) -> Reply:
    return Reply(200, {"prompt": decode(check(body, DETOKENIZE, "tokens")["tokens"])})


async def _fetch(body: dict[str, Any]) -> None:
    """What no server should do: go where the request says."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", json.dumps(body))
    if found:
        _, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
        writer.close()


@contextlib.asynccontextmanager
async def serving(faults: Faults | None = None, key: str = KEY) -> AsyncIterator[Toy]:
    toy = Toy(faults, key)
    running: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await toy.serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            running.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=HEADERS_BYTES)
    toy.port = server.sockets[0].getsockname()[1]
    try:
        yield toy
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
