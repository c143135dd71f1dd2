"""Upstreams that break, in every way that a server can: one typed ending each, and nothing of the key in it."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from remote_rigs import (
    QUICK,
    SECRET,
    Answer,
    body,
    ends,
    engine_of,
    error,
    head,
    raw,
    says,
    scripted,
    stream,
    usage,
    worker_at,
)

from drivetrain.core.errors import (
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    ModelNotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
)
from drivetrain.core.events import Delta
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.engine import RemoteEngine
from drivetrain.engines.remote.wire import Timeouts

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}]}
SOME = f"data: {says('some')}\n\n".encode()
GOOD = stream(says("good"), ends(), usage(1, 1))

BROKEN: dict[str, Answer] = {
    "dies in mid-stream": raw(head() + SOME, cut=True),
    "ends in mid-stream": raw(head() + SOME),
    "DONE without a finish reason": stream(says("some")),
    "ends in mid-chunk": raw(head(transfer_encoding="chunked") + b"ffff\r\n" + SOME),
    "a chunk size that is none": raw(head(transfer_encoding="chunked") + b"%x\r\n" % len(SOME) + SOME + b"\r\nxyz\r\n"),
    "ends before its length": raw(head(content_length="10000") + SOME),
    "garbage for an event": raw(head() + SOME + b"data: {garbage\n\n"),
    "an event that is no object": raw(head() + SOME + b"data: 5\n\n"),
    "choices that are none": raw(head() + SOME + b'data: {"choices": [5]}\n\n'),
    "bytes that are no text": raw(head() + SOME + b"data: \xff\xfe\n\n"),
    "an event without end": raw(head() + SOME + b"data: " + b"x" * (2**22 + 2**17)),
    "deep nesting": raw(head() + SOME + b"data: " + b"[" * 100_000 + b"\n\n"),
    "silence in mid-stream": raw(head() + SOME, hang=True),
    "an error event": raw(head() + SOME + b'data: {"error": {"message": "boom"}}\n\n'),
    "an error line": raw(head() + SOME + b'error: {"message": "boom", "code": 500}\n\n'),
}
"""Each of them has said «some» before."""

BEFORE: dict[str, Answer] = {
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "closes at once": raw(b""),
    "resets at once": raw(b"", cut=True),
    "silence": raw(b"", hang=True),
    "silence behind the head": raw(head(), hang=True),
    "silence in the body of an error": raw(head(500, "application/json", content_length="100") + b"{", hang=True),
    "headers without end": raw(b"HTTP/1.1 200 x\r\n" + b"a: b\r\n" * 300),
    "a header line without end": raw(b"HTTP/1.1 200 x\r\na: " + b"b" * 2**17),
    "JSON for a stream": body(json.dumps({"choices": [{"message": {"content": "x"}}]})),
    "a page for a stream": body("<html>", kind="text/html"),
    "a bad gateway": body("<html>bad</html>", 502, "text/html"),
}
"""Each of them has said nothing of an answer."""


@pytest.mark.parametrize(
    ("name", "silent"),
    [("first_timeout_s", raw(head(), hang=True)), ("silence_timeout_s", BROKEN["silence in mid-stream"])],
)
async def test_how_long_a_server_may_be_silent_is_a_setting(name: str, silent: Answer) -> None:
    options = [("first_timeout_s", 2.0), ("silence_timeout_s", 2.0), (name, 0.2)]
    async with scripted(silent) as upstream, worker_at(upstream.url, timeouts=None, options=options) as worker:
        with pytest.raises(EngineFailed, match=r"nothing for 0\.2 seconds"):
            await worker.generate(**CHAT)


async def test_a_head_and_a_first_event_have_one_time_together() -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await raw(head())(writer)
        await asyncio.sleep(0.3)
        await raw(SOME)(writer)

    quick = Timeouts(connect_s=1, ask_s=1, first_s=0.5, idle_s=1)
    async with scripted(slow) as upstream, worker_at(upstream.url, timeouts=quick) as worker:
        with pytest.raises(EngineFailed, match=r"nothing for 0\.5 seconds|not answer within 0\.5 seconds"):
            await worker.generate(**CHAT)


def test_what_is_no_setting_stays_as_it_is() -> None:
    assert Timeouts.of({"connect_timeout_s": 1.5, "context_length": 5}) == Timeouts(connect_s=1.5)
    assert Timeouts.of({}) == Timeouts()


@pytest.mark.parametrize("name", BROKEN)
async def test_a_break_in_mid_stream_is_a_typed_ending_with_what_came(name: str) -> None:
    async with scripted(BROKEN[name]) as upstream, worker_at(upstream.url) as worker:
        texts = []
        with pytest.raises(EngineFailed) as caught:
            async for event in worker.stream(**CHAT):
                texts.append(event.text if isinstance(event, Delta) else "")
        assert "".join(texts) == "some"
        assert caught.value.partial is not None
        assert caught.value.partial.choices[0].text == "some"
        assert caught.value.partial.choices[0].finish_reason is None
        assert len(upstream.generations) == 1, "nothing is asked again once something has come"
        upstream.answers = [GOOD]
        assert (await worker.generate(**CHAT)).text == "good"


@pytest.mark.parametrize("name", BEFORE)
async def test_a_break_before_the_first_byte_is_tried_again(name: str) -> None:
    quick = QUICK if "silence" not in name else type(QUICK)(connect_s=5, ask_s=5, first_s=1, idle_s=1)
    async with scripted(BEFORE[name], GOOD) as upstream, worker_at(upstream.url, timeouts=quick) as worker:
        assert (await worker.generate(**CHAT)).text == "good"
        assert len(upstream.generations) == 2


@pytest.mark.parametrize("name", BEFORE)
async def test_what_stays_broken_is_a_typed_ending(name: str) -> None:
    """A server that may have died of the request is asked once more; one that a gateway speaks for, twice."""
    quick = type(QUICK)(connect_s=5, ask_s=5, first_s=1, idle_s=1)
    async with scripted(BEFORE[name]) as upstream, worker_at(upstream.url, timeouts=quick) as worker:
        with pytest.raises(EngineFailed) as caught:
            await worker.generate(**CHAT)
        assert len(upstream.generations) == (3 if name == "a bad gateway" else 2)
        assert "127.0.0.1" not in caught.value.message


REFUSALS: list[tuple[Answer, type[DrivetrainError], str | None]] = [
    (error(400, "temperature is too hot", param="temperature"), InvalidRequest, "temperature"),
    (error(400, "too many", param="max_completion_tokens"), InvalidRequest, "max_tokens"),
    (error(422, "not so"), InvalidRequest, None),
    (error(413, "too large"), InvalidRequest, None),
    (error(400, "no", code="context_length_exceeded", param="messages"), ContextOverflow, "messages"),
    (error(400, "This model's maximum context length is 8 tokens"), ContextOverflow, None),
    (error(401, f"wrong key {SECRET}"), EngineFailed, None),
    (error(403), EngineFailed, None),
    (error(404, "gone"), ModelNotFound, None),
    (error(429, "slow down", retry_after=7), Overloaded, None),
    (error(503, "draining", retry_after=9), NotReady, None),
    (error(504, "late"), DeadlineExceeded, None),
    (error(500, "oom", code="out_of_memory"), OutOfMemory, None),
    (error(418), EngineFailed, None),
    (body("", 302, location="http://elsewhere/v1"), EngineFailed, None),
    (body(json.dumps({"detail": "plain words"}), 400), InvalidRequest, None),
    (body(json.dumps({"object": "error", "message": "old vLLM", "param": None}), 400), InvalidRequest, None),
    (body("[]", 400), InvalidRequest, None),
    (body("[" * 100_000, 400), InvalidRequest, None),
    (body('{"error": "words"}', 400), InvalidRequest, None),
    (body('{"error": {"message": 5, "param": [], "code": {}}}', 400), InvalidRequest, None),
]


@pytest.mark.parametrize(("answer", "kind", "param"), REFUSALS)
async def test_each_refusal_has_its_place_in_the_tree(
    answer: Answer, kind: type[DrivetrainError], param: str | None
) -> None:
    async with scripted(answer) as upstream, worker_at(upstream.url) as worker:
        with pytest.raises(DrivetrainError) as caught:
            await worker.generate(**CHAT)
    assert type(caught.value) is kind
    assert caught.value.param == param
    assert SECRET not in caught.value.message
    if kind in {Overloaded, NotReady}:
        assert isinstance(caught.value, Overloaded)
        assert caught.value.retry_after_s in {7.0, 9.0}


async def test_a_request_that_breaks_its_server_is_not_sent_there_again() -> None:
    async with scripted(error(500)) as upstream, worker_at(upstream.url) as worker:
        for i in range(1, 6):
            with pytest.raises(EngineFailed):
                await worker.generate(**CHAT)
            assert len(upstream.generations) == i
        assert worker.status.engine_alive, "a few such requests do not shut the door for all"


async def test_a_full_upstream_is_not_held_against_it() -> None:
    async with scripted(error(429, retry_after=0)) as upstream, worker_at(upstream.url) as worker:
        for _ in range(3):
            with pytest.raises(Overloaded):
                await worker.generate(**CHAT)
        assert worker.status.engine_alive


async def test_an_error_in_mid_stream_keeps_its_class() -> None:
    told = {
        "context_length_exceeded": ContextOverflow,
        "out_of_memory": OutOfMemory,
        "deadline_exceeded": DeadlineExceeded,
    }
    for code, kind in told.items():
        event = json.dumps({"error": {"message": "no", "code": code}})
        async with scripted(stream(says("a"), event)) as upstream, worker_at(upstream.url) as worker:
            with pytest.raises(kind):
                await worker.generate(**CHAT)


async def test_a_redirect_takes_no_key_anywhere() -> None:
    async with scripted(GOOD) as elsewhere:
        moved = body("", 307, location=elsewhere.url)
        async with scripted(moved) as upstream, worker_at(upstream.url) as worker:
            with pytest.raises(EngineFailed, match="redirect"):
                await worker.generate(**CHAT)
            assert not elsewhere.asked


async def test_a_wrong_key_is_said_at_the_start_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(GOOD) as upstream:

        async def refuse(asked: Any, writer: Any) -> None:
            await error(401, f"the key {SECRET} is wrong")(writer)

        upstream._answer = refuse  # type: ignore[method-assign]  # one test's server
        with caplog.at_level(logging.DEBUG), pytest.raises(LoadFailed, match="DRIVETRAIN_REMOTE_API_KEY") as caught:
            async with worker_at(upstream.url):
                pass
    assert SECRET not in f"{caught.value!r} {caught.value.message} {caplog.text}"


async def test_the_key_is_in_no_repr_error_log_or_metadata(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with scripted(raw(head() + SOME, cut=True)) as upstream, worker_at(upstream.url) as worker:
            shown = [repr(Key(SECRET)), repr(worker.metadata), repr(worker.capabilities), repr(engine_of(worker).pool)]
            for _ in range(4):
                with pytest.raises(DrivetrainError) as caught:
                    await worker.generate(**CHAT)
                shown.append(repr(caught.value))
            assert upstream.generations[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in caplog.text + "".join(shown)


@pytest.mark.parametrize("owner", ["drivetrain", "llamacpp", "vllm"])
async def test_silence_while_it_is_asked_is_no_lower_tier(owner: str) -> None:
    """Neither is anything left out that it would have offered: it is not served at all, and that is said."""
    listed = {"data": [{"id": "m", "owned_by": owner, "max_model_len": 2048, "meta": {"n_vocab": 9}}]}
    async with scripted(GOOD) as upstream:

        async def busy(asked: Any, writer: Any) -> None:
            await (body(json.dumps(listed)) if asked.path == "/v1/models" else raw(b"", hang=True))(writer)

        upstream._answer = busy  # type: ignore[method-assign]  # one test's server
        with pytest.raises(LoadFailed, match="did not report what it can do"):
            async with worker_at(upstream.url, timeouts=Timeouts(connect_s=1, ask_s=1, first_s=1, idle_s=1)):
                pass
        assert len(upstream.asked) == 2
        assert not any("chat" in asked.path for asked in upstream.asked)


CARDS = [[], ["capabilities"], None, 5, {}, {"capabilities": {"tokens": True, "generation": True, "limits": [1]}}]


@pytest.mark.parametrize("card", CARDS)
async def test_a_card_that_is_none_is_said(card: Any) -> None:
    async with scripted(GOOD, models={"data": [{"id": "m", "owned_by": "drivetrain"}]}) as upstream:
        listed = upstream._answer

        async def odd(asked: Any, writer: Any) -> None:
            await (listed(asked, writer) if asked.path == "/v1/models" else body(json.dumps(card))(writer))

        upstream._answer = odd  # type: ignore[method-assign]  # one test's server
        with pytest.raises(LoadFailed, match="its description of the model"):
            async with worker_at(upstream.url):
                pass


async def test_answers_that_are_too_long_are_not_held_against_an_upstream() -> None:
    async with scripted(BROKEN["an event without end"]) as upstream, worker_at(upstream.url) as worker:
        for count in range(1, 6):
            with pytest.raises(EngineFailed, match="does not end"):
                await worker.generate(**CHAT)
            assert len(upstream.generations) == count, "nor is it asked for again"
        upstream.answers = [GOOD]
        assert (await worker.generate(**CHAT)).text == "good"


async def test_nobody_there_is_said_at_the_start() -> None:
    async with scripted(GOOD) as upstream:
        url = upstream.url
    with pytest.raises(LoadFailed, match="nobody listens"):
        async with worker_at(url):
            pass


async def test_a_closed_engine_generates_nothing() -> None:
    engine = RemoteEngine()
    await engine.close()
    assert not engine.health().alive


async def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parents[1] / "unit" / "tools" / "bench" / "localhost.pem")
    served = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context)
    port = served.sockets[0].getsockname()[1]
    try:
        with pytest.raises(LoadFailed, match="TLS fails") as caught:
            async with worker_at(f"https://localhost:{port}/v1"):
                pass
    finally:
        served.close()
    assert SECRET not in caught.value.message
