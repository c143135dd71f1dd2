"""The HTTP client against servers that answer well, badly, or not at all."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from bench_rigs import (
    CERTIFICATE,
    DONE,
    STREAM_HEAD,
    Asked,
    chunked,
    event,
    raw,
    raw_server,
    text_event,
    usage_event,
    whole,
)

from drivetrain.core.errors import DrivetrainError, InvalidSetting
from drivetrain.http import address
from drivetrain.http.address import Address
from drivetrain.tools.bench import remote
from drivetrain.tools.bench.outcome import Failure
from drivetrain.tools.bench.remote import OMITTABLE, Endpoint, find_model, get, optional_fields

STREAM = (text_event(""), text_event("Hel"), text_event("lo"), text_event("", "length"), usage_event(2, 9, 4), DONE)
DEEP = b"[" * 100_000
"""More lists than Python reads."""


async def test_a_good_answer() -> None:
    async with raw_server(chunked(*STREAM, pause_s=0.02)) as server:
        answer = await server.remote(key="k1", extra={"min_tokens": 2}).ask("Hi", 2, None)
    assert answer.failure is None
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens, answer.counted) == (9, 2, 4, True)
    assert len(answer.events) == 2  # an event without text is none
    assert answer.first_s is not None
    assert 0.02 <= answer.first_s < answer.total_s
    (asked,) = server.asked
    assert asked.line == "POST /v1/chat/completions HTTP/1.1"
    assert asked.headers["authorization"] == "Bearer k1"
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 2,
    }


async def test_plain_completions_and_fields_left_out() -> None:
    events = (event(choices=[{"text": "a"}]), event(choices=[{"text": "b", "finish_reason": "length"}]), DONE)
    async with raw_server(chunked(*events)) as server:
        answer = await server.remote(chat=False, omit=frozenset({"ignore_eos", "stream_options"})).ask("Hi", 2, None)
    assert (answer.completion_tokens, answer.counted, answer.prompt_tokens) == (2, False, None)
    (asked,) = server.asked
    assert asked.line == "POST /v1/completions HTTP/1.1"
    assert asked.body.keys() == {"model", "prompt", "max_tokens", "temperature", "stream"}
    assert "authorization" not in asked.headers


async def test_reasoning_is_text() -> None:
    thought = event(choices=[{"delta": {"reasoning_content": "hm", "content": None}}])
    async with raw_server(chunked(thought, text_event("so", "stop"), DONE)) as server:
        answer = await server.remote().ask("Hi", 2, None)
    assert len(answer.events) == 2


@pytest.mark.parametrize("cut", [1, 5, 17])
async def test_chunks_may_be_cut_anywhere(cut: int) -> None:
    data = b": a comment\n\n" + b"".join(STREAM).replace(b"\n\n", b"\r\n\r\n")
    parts = [data[i : i + cut] for i in range(0, len(data), cut)]
    async with raw_server(chunked(*parts)) as server:
        answer = await server.remote().ask("Hi", 2, None)
    assert answer.failure is None
    assert (len(answer.events), answer.completion_tokens) == (2, 2)


@pytest.mark.parametrize("framing", [b"", b"content-length: %d\r\n"])
async def test_streams_without_chunks(framing: bytes) -> None:
    data = b"".join(STREAM)
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n" + (framing % len(data) if framing else b"")
    async with raw_server(raw(head + b"\r\n" + data)) as server:
        answer = await server.remote().ask("Hi", 2, None)
    assert (answer.failure, answer.completion_tokens) == (None, 2)


def refusal(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": 7}}).encode()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (whole(refusal("ignore_eos is unknown"), "400 Bad Request"), "http 400", "ignore_eos is unknown"),
        (whole(refusal("who are you?"), "401 Unauthorized"), "http 401", "who are you?"),
        (whole(b'{"detail": [{"msg": "no"}]}', "422 Unprocessable"), "http 422", '[{"msg": "no"}]'),
        (whole(b'{"message": "soon"}', "503 Busy"), "http 503", "soon"),
        (whole(b"<html>\n  no\n</html>", "502 Bad Gateway"), "http 502", "<html> no </html>"),
        (whole(b"{}"), "broken", "not an event stream"),
        (raw(b"SSH-2.0-OpenSSH\r\n"), "broken", "not HTTP"),
        (raw(b""), "broken", "not HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99\r\n\r\n"), "broken", "closed"),
        (raw(STREAM_HEAD + b"5\r\ndata:"), "broken", "closed in the middle"),
        (raw(STREAM_HEAD + b"1\r\n\n\r\n"), "broken", "closed in the middle"),
        (raw(STREAM_HEAD + b"zz\r\n"), "broken", "not HTTP"),
        (chunked(text_event("a")), "broken", "without a last event"),
        (chunked(b"data: {nonsense\n\n"), "broken", "does not follow OpenAI's API"),
        (chunked(b"data: [1]\n\n"), "broken", "does not follow OpenAI's API"),
        (chunked(b"data: " + DEEP + b"\n\n"), "broken", "does not follow OpenAI's API"),
        (whole(DEEP, "400 Bad Request"), "http 400", "[[["),
        (chunked(text_event("a"), b"data: " + refusal("it broke") + b"\n\n", DONE), "stream error", "it broke"),
        (chunked(*[b"x" * 2**19] * 3), "broken", "does not end"),
    ],
)  # fmt: skip
async def test_a_bad_answer_is_a_failure_of_a_kind(answer: Any, kind: str, words: str) -> None:
    async with raw_server(answer) as server:
        got = await server.remote().ask("Hi", 2, None)
    assert got.failure is not None
    assert got.failure.kind == kind
    assert words in got.failure.message


async def test_nobody_listens() -> None:
    async with raw_server(raw(b"")) as server:
        pass
    got = await server.remote().ask("Hi", 2, None)
    assert got.failure == Failure("connection", "Connection refused")


async def test_a_connection_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(remote, "CONNECT_TIMEOUT_S", 0.02)
    monkeypatch.setattr(asyncio, "open_connection", never)
    async with raw_server(raw(b"")) as server:
        got = await server.remote().ask("Hi", 2, None)
    assert got.failure == Failure("connection", "the connection was not accepted in time")


async def test_no_name_of_a_host() -> None:
    async with raw_server(raw(b"")) as server:
        got = await server.remote(address=Address.parse("http://a..b/v1")).ask("Hi", 2, None)
    assert got.failure is not None
    assert "no name of a host" in got.failure.message


async def test_a_key_is_shown_to_nobody() -> None:
    message = "Incorrect API key provided: sk-secret"
    async with raw_server(whole(refusal(message), "401 Unauthorized")) as server:
        remote = server.remote(key="sk-secret")
        got = await remote.ask("Hi", 2, None)
    assert got.failure is not None
    assert "sk-secret" not in got.failure.message
    assert "sk-secret" not in repr(remote._endpoint)


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_trusted", lambda: ssl.create_default_context(cafile=CERTIFICATE))
    async with raw_server(chunked(*STREAM), tls=True) as server:
        got = await server.remote(key="k").ask("Hi", 2, None)
    assert (got.failure, got.completion_tokens) == (None, 2)


async def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    async with raw_server(chunked(*STREAM), tls=True) as server:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the server's side of it
        try:
            got = await server.remote(key="k").ask("Hi", 2, None)
        finally:
            asyncio.get_running_loop().set_exception_handler(None)
    assert got.failure is not None
    assert got.failure.kind == "connection"
    assert "CERTIFICATE_VERIFY_FAILED" in got.failure.message
    assert server.asked == []


async def test_its_time_begins_when_it_is_sent_or_was_due() -> None:
    async with raw_server(chunked(*STREAM)) as server:
        assert (await server.remote().ask("Hi", 2, 3.5)).started == 3.5


@pytest.mark.parametrize(
    ("failure", "omit", "words"),
    [
        (Failure("http 400", "unknown field: ignore_eos"), (), "--omit ignore_eos"),
        (Failure("http 422", "stream_options: extra"), (), "--omit stream_options"),
        (Failure("http 400", "bad"), (), "for example with --omit ignore_eos"),
        (Failure("http 400", "bad"), ("ignore_eos",), "for example with --omit stream_options"),
        (Failure("http 401", ""), (), "DRIVETRAIN_BENCH_API_KEY"),
        (Failure("http 404", ""), (), "and a model 'm'"),
        (Failure("http 500", "x"), (), ""),
    ],
)
async def test_advice(failure: Failure, omit: tuple[str, ...], words: str) -> None:
    async with raw_server(raw(b"")) as server:
        advice = server.remote(omit=frozenset(omit)).advice(failure)
    assert words in advice
    assert bool(advice) is bool(words)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("https://example.org/api/v1/", "https://example.org/api/v1"),
        ("HTTP://[::1]:80/v1", "http://[::1]/v1"),
        ("https://example.org:80", "https://example.org:80/v1"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert str(Address.parse(url)) == shown


@pytest.mark.parametrize(
    "url",
    ["http://", "ftp://h/v1", "http://h:99999/v1", "http://h:x/v1", "http://[::1/v1", "http://h/v1?a=b", "http://h/v 1",
     "http://h/\u00fc", "http://u:p@h/v1", "://h", "http://h/v1#x", "http://h/\r\nx: y"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Address.parse(url)
    assert "u:p" not in caught.value.message


def test_a_password_in_what_is_no_url_is_not_shown() -> None:
    with pytest.raises(InvalidSetting) as caught:
        Address.parse("http://u:p@h:99999/v1")
    assert "u:p" not in caught.value.message


def listing(*names: str) -> Callable[..., Any]:
    return whole(json.dumps({"data": [{"id": name} for name in names]}).encode())


async def test_the_only_model_is_found() -> None:
    async with raw_server(listing("one")) as server:
        assert await find_model(Address.parse(server.url), "k") == "one"
    assert server.asked[0].line == "GET /v1/models HTTP/1.1"
    assert server.asked[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (listing("one", "two"), "lists one, two; name one with --model"),
        (listing(), "lists no model"),
        (whole(b'{"data": {"one": 1}}'), "lists no model"),
        (whole(b'{"data": ["one", {}]}'), "lists no model"),
        (whole(b"", "401 No"), "answers 401; put its key"),
        (whole(b"", "404 No"), "answers 404; check the path"),
        (whole(b"[]"), "does not return a JSON object"),
        (whole(DEEP), "does not return a JSON object"),
        (whole(b"<html>"), "does not return a JSON object"),
        (raw(b"junk\r\n"), "not HTTP"),
    ],
)
async def test_a_model_that_is_not_found(answer: Any, words: str) -> None:
    async with raw_server(answer) as server:
        with pytest.raises(DrivetrainError) as caught:
            await find_model(Address.parse(server.url), "")
    assert words in caught.value.message


async def test_a_list_that_does_not_come() -> None:
    async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw_server(hang) as server:
        with pytest.raises(DrivetrainError, match="in time"):
            await get(server.remote()._endpoint, "/models", timeout_s=0.05)


def test_what_is_measured_cannot_be_left_out() -> None:
    assert optional_fields(["ignore_eos"]) == {"ignore_eos"}
    with pytest.raises(InvalidSetting, match="stream cannot be left out"):
        optional_fields(["stream"])


@pytest.mark.parametrize("chat", [True, False])
def test_every_other_field_can_and_nothing_else(chat: bool) -> None:
    endpoint = Endpoint(address=Address.parse("http://127.0.0.1:1"), model="m", chat=chat)
    assert set(json.loads(endpoint.body("Hi", 2))) - {"stream", "messages", "prompt"} == set(OMITTABLE)
    assert optional_fields(OMITTABLE) == set(OMITTABLE)
    with pytest.raises(InvalidSetting, match="no field 'ignore_eso' to leave out; choose from ignore_eos, "):
        optional_fields(["ignore_eso"])
