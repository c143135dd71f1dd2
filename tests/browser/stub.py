"""A small server that speaks enough of the API for the page: slow on purpose, and it remembers what it was asked."""

from __future__ import annotations

import json
import math
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import drivetrain

PAGE = Path(drivetrain.__file__).parent / "server" / "page"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PARAMETERS = [
    *("messages", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "max_tokens", "stop", "min_tokens", "logprobs", "top_logprobs"),
    "response_format",
]
REPLY = """A bicycle drivetrain moves **your legs' work** to the rear wheel, in four steps:

1. The *pedals* turn the cranks and the chainring.
2. The chainring pulls the **chain**.
3. The chain turns a cog at the rear hub.
4. The hub turns the wheel.

The ratio of teeth decides how hard it feels:

```python
def ratio(chainring: int, cog: int) -> float:
    return chainring / cog  # 50 / 25 = 2.0
```

| Gear | Teeth | Feels |
|---|---:|---|
| Low | 34 / 32 | easy, slow |
| High | 50 / 11 | hard, fast |

> A bigger `cog` makes it easier to climb.
"""


@dataclass
class Stub:
    """What it says and how fast. `disconnects` counts answers whose reader went away."""

    token_delay_s: float = 0.005
    parameters: list[str] = field(default_factory=lambda: list(PARAMETERS))
    vision: bool = True
    key: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Their pieces, one in each chunk."""
    content_may_come: threading.Event = field(default_factory=threading.Event)
    """Waited for behind the reasoning, if there is any."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0
    """How many of the next requests are refused."""
    finish: str = "stop"
    vocabulary: list[str] = field(default_factory=lambda: ["<end>"])
    """Its tokens by their ids: each word, as it comes up. The first one ends an answer."""
    continuation: str = "and so on."
    disconnects: int = 0
    running: int = 0
    status_calls: int = 0
    state: str = "ready"
    completion_tokens: int | None = None
    """The count of its status, if it has one."""
    url: str = ""

    def ids(self, text: str) -> list[int]:
        tokens = _tokens(text)
        self.vocabulary += [token for token in dict.fromkeys(tokens) if token not in self.vocabulary]
        return [self.vocabulary.index(token) for token in tokens]

    def text(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[token] for token in ids)

    def reply(self, body: dict[str, Any]) -> str:
        if "prompt_token_ids" in body:
            return self.continuation
        content = body["messages"][-1]["content"]
        text = content if isinstance(content, str) else next((p["text"] for p in content if p["type"] == "text"), "")
        if text.startswith("say: "):
            return str(text[5:])
        return "word " * 20_000 if text == "go on for ever" else REPLY


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": stub}))
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    stub: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Silent."""

    def do_GET(self) -> None:
        if self.path == "/status":
            self.stub.status_calls += 1
            self._json(200, self._status())
        elif self.path == "/ready":
            states = {"status": "not ready", "models": {"stub-1b": self.stub.state}}
            self._json(*((200, {"status": "ready"}) if self.stub.state == "ready" else (503, states)))
        elif not self.path.startswith("/v1/"):
            self._file(self.path.lstrip("/") or "index.html")
        elif self._refused():
            return
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "stub-1b", "object": "model"}]})
        else:
            self._json(200, {"id": "stub-1b", "object": "model", "capabilities": self._capabilities()})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        if self.path == "/tokenize":
            self._json(200, {"tokens": self.stub.ids(body["prompt"] if "prompt" in body else _rendered(body))})
            return
        self.stub.bodies.append(body)
        text = self.stub.reply(body)
        self.stub.refusals -= (refused := self.stub.refusals > 0)
        if refused or text.startswith("refuse"):
            self._json(429, {"error": {"message": "the queue is full", "code": "overloaded"}}, {"Retry-After": "3"})
            return
        self.stub.running += 1
        try:
            self._stream(body, text)
        except (BrokenPipeError, ConnectionResetError):
            self.stub.disconnects += 1
            self.close_connection = True
        finally:
            self.stub.running -= 1

    def _stream(self, body: dict[str, Any], text: str) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        self._event(_chunk({"role": "assistant", "content": ""}))
        tokens = _tokens(text)
        time.sleep(0.15)
        self._event_each("reasoning_content", _tokens(self.stub.reasoning))
        if self.stub.reasoning:
            assert self.stub.content_may_come.wait(60)
        for i, token in enumerate(tokens):
            if select.select([self.connection], [], [], 0)[0]:
                raise BrokenPipeError
            if token == "BREAK ":
                self._event({"error": {"message": "the engine broke", "code": "engine_error"}})
                break
            self._event(self._token(body, token, i))
            time.sleep(self.stub.token_delay_s)
        else:
            self._event_each("tool_calls", [[piece] for piece in self.stub.calls])
            self._event(_chunk({}, finish=self.stub.finish))
            usage = {"prompt_tokens": 9, "completion_tokens": len(tokens), "total_tokens": 9 + len(tokens)}
            self._event({"id": "c", "choices": [], "usage": usage})
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _token(self, body: dict[str, Any], token: str, place: int) -> dict[str, Any]:
        """Of a chat, or of a completion that goes on with one."""
        entries = _logprobs(token, place, self.stub.ids) if body.get("logprobs") else None
        if "prompt_token_ids" not in body:
            return _chunk({"content": token}, entries and {"content": entries})
        logprobs = entries and {"entries": [{**entry, "top": entry["top_logprobs"]} for entry in entries]}
        return {"id": "c", "choices": [{"index": 0, "text": token, "logprobs": logprobs, "finish_reason": None}]}

    def _event_each(self, name: str, values: Iterable[Any]) -> None:
        for value in values:
            self._event(_chunk({name: value}))

    def _event(self, value: dict[str, Any]) -> None:
        self._write(f"data: {json.dumps(value)}\n\n".encode())

    def _write(self, data: bytes) -> None:
        """In two pieces, so that the page has to put an event together."""
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _status(self) -> dict[str, Any]:
        beat = self.stub.status_calls
        memory = {"device": "cpu", "allocated_bytes": int(1.2e9), "cached_bytes": 0, "total_bytes": int(16e9)}
        counted = {} if self.stub.completion_tokens is None else {"completion_tokens": self.stub.completion_tokens}
        return {
            **counted,
            "state": "ready",
            "running": self.stub.running + (beat // 3) % 3,
            "waiting": (beat // 5) % 2,
            "tokens_per_s": 60 + 40 * math.sin(beat / 3),
            "first_token_s": [0.11, 0.14, 0.2],
            "memory": [memory | {"allocated_bytes": int(1.2e9 + 3e8 * math.sin(beat / 4))}],
        }

    def _capabilities(self) -> dict[str, Any]:
        return {
            "parameters": self.stub.parameters,
            "defaults": {"temperature": {"value": 0.7, "source": "model"}},
            "limits": {"max_logprobs": 20, "max_stops": 4, "max_images": 2},
            "vision": self.stub.vision,
            "tokens": True,
            "eos_ids": [0],
            "context_length": 2048,
            "max_concurrency": 4,
        }

    def _refused(self) -> bool:
        if not self.stub.key or self.headers.get("Authorization") == f"Bearer {self.stub.key}":
            return False
        self._json(401, {"error": {"message": "this key is not known", "code": "invalid_api_key"}})
        return True

    def _file(self, name: str) -> None:
        path = next((path for path in PAGE.rglob("*") if path.relative_to(PAGE).as_posix() == name), None)
        if path is None:
            self._json(404, {"error": {"message": "not found"}})
            return
        content = path.read_bytes()
        self._head(200, {"Content-Type": TYPES[path.suffix], "Content-Length": str(len(content))})
        self.wfile.write(content)

    def _json(self, status: int, value: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})})
        self.wfile.write(content)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Security-Policy": CSP}.items():
            self.send_header(name, value)
        self.end_headers()


def _tokens(text: str) -> list[str]:
    """Words with the space behind them, so that joining gives the text."""
    tokens, word = [], ""
    for char in text:
        word += char
        if char in " \n":
            tokens.append(word)
            word = ""
    return [*tokens, word] if word else tokens


def _logprobs(token: str, place: int, ids: Callable[[str], list[int]]) -> list[dict[str, Any]]:
    share = (0.97, 0.82, 0.55, 0.31, 0.12, 0.03, 0.94, 0.99)[place * 7 % 8]
    others = [("chain ", (1 - share) * 0.6), ("wheel ", (1 - share) * 0.3)]
    top = sorted([(token, share), *others], key=lambda pair: -pair[1])
    return [_entry(token, share, ids) | {"top_logprobs": [_entry(*pair, ids) for pair in top]}]


def _entry(token: str, share: float, ids: Callable[[str], list[int]]) -> dict[str, Any]:
    return {"id": ids(token)[0], "token": token, "logprob": math.log(share), "bytes": list(token.encode())}


def _rendered(body: dict[str, Any]) -> str:
    return "".join(f"{message['role']}: {message['content']} " for message in body["messages"])


def _chunk(delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stub-1b", "choices": [choice]}
