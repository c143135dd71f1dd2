"""The text tier: what any server of OpenAI's API is good for, what is refused by name, how its answers are counted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from remote_rigs import (
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

from contract.rigs import ASKING
from drivetrain.core.errors import Cancelled, EngineFailed, InvalidRequest, LoadFailed, ModelNotFound, Unsupported
from drivetrain.core.events import Delta, Finished, Started
from drivetrain.core.parameters import ENGINE_PARAMETERS
from drivetrain.engines.remote.dialects.chat import HONOURED

CHAT: dict[str, Any] = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]}
HELLO = stream(
    says("Hel"), says("lo "), says("world"), ends(), usage(12, 4, prompt_tokens_details={"cached_tokens": 3})
)


async def test_messages_go_up_as_they_are_and_text_comes_down() -> None:
    async with scripted(HELLO) as upstream, worker_at(upstream.url) as worker:
        events = [event async for event in worker.stream(**CHAT, max_tokens=9, temperature=0.5)]
    assert isinstance(events[0], Started)
    assert [event.text for event in events if isinstance(event, Delta) and event.text] == ["Hel", "lo ", "world"]
    sent = upstream.generations[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {SECRET}"
    assert sent.body == {
        "model": "m",
        "messages": CHAT["messages"],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (12, 4, 3)
    assert last.usage.told


@pytest.mark.parametrize(
    "answer",
    [stream(says("Hel"), says("lo"), ends()), stream(says("Hel"), says("lo"), ends(), done=False)],
    ids=["no usage", "no usage and no DONE"],
)
async def test_without_usage_the_pieces_are_counted_and_marked_so(answer: Answer) -> None:
    async with scripted(answer) as upstream, worker_at(upstream.url) as worker:
        result = await worker.generate(**CHAT)
    assert (result.text, result.choices[0].finish_reason) == ("Hello", "stop")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.told) == (0, 2, False)


async def test_a_usage_that_cannot_be_true_is_not_taken() -> None:
    for wrong in (usage(1, 1), usage(1, 10**15), usage(1, "x"), json.dumps({"usage": {"prompt_tokens": 5}})):  # type: ignore[arg-type]  # that is the test
        async with scripted(stream(says("a"), says("b"), ends(), wrong)) as upstream, worker_at(upstream.url) as worker:
            try:
                result = await worker.generate(**CHAT)
            except EngineFailed:
                assert "completion_tokens" not in wrong
            else:
                assert (result.usage.completion_tokens, result.usage.told) == (2, False)


async def test_our_own_matcher_ends_at_stops_and_closes_the_upstream() -> None:
    slow = raw(head() + f"data: {says('one st')}\n\ndata: {says('op two')}\n\n".encode(), hang=True)
    async with scripted(slow) as upstream, worker_at(upstream.url) as worker:
        result = await worker.generate(**CHAT, stop=["stop"])
        assert (result.text, result.choices[0].matched_stop) == ("one ", "stop")
        assert "stop" not in upstream.generations[0].body
        assert not result.usage.told
        await left(upstream)


async def test_cancelling_closes_the_upstream() -> None:
    slow = raw(head() + f"data: {says('a')}\n\n".encode(), hang=True)
    async with scripted(slow) as upstream, worker_at(upstream.url) as worker:
        stream = worker.stream(**CHAT)
        await stream.__anext__()
        await stream.__anext__()
        await stream.aclose()
        assert not engine_of(worker).busy
        await left(upstream)
        with pytest.raises(Cancelled):
            await stream.__anext__()


async def left(upstream: Any) -> None:
    async with asyncio.timeout(1):
        while not upstream.left:
            await asyncio.sleep(0.005)


async def test_each_choice_is_a_request_of_its_own() -> None:
    async with scripted(HELLO) as upstream, worker_at(upstream.url) as worker:
        result = await worker.generate(**CHAT, n=3)
    assert [choice.text for choice in result.choices] == ["Hello world"] * 3
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.told) == (12, 12, True)
    assert len(upstream.generations) == 3
    assert all("n" not in asked.body for asked in upstream.generations)


@pytest.mark.parametrize("name", sorted(ENGINE_PARAMETERS - HONOURED))
async def test_what_a_text_cannot_honour_is_refused_by_name(name: str) -> None:
    async with scripted(HELLO) as upstream, worker_at(upstream.url) as worker:
        with pytest.raises((Unsupported, InvalidRequest)) as caught:
            await worker.generate(**CHAT, **{name: ASKING[name]})
        assert caught.value.param == name
        assert not upstream.generations


@pytest.mark.parametrize(
    "request_",
    [{"prompt": "x"}, {"prompt_token_ids": [1]}, {**CHAT, "stop_token_ids": [1]}, {**CHAT, "stop_sequences": [[1]]},
     {**CHAT, "overflow": "truncate_left"}, {**CHAT, "context_length": 10}, {**CHAT, "receipt": True}],
    ids=lambda request_: list(request_)[-1],
)  # fmt: skip
async def test_what_needs_ids_is_refused_by_name(request_: dict[str, Any]) -> None:
    async with scripted(HELLO) as upstream, worker_at(upstream.url) as worker:
        with pytest.raises(Unsupported) as caught:
            await worker.generate(**request_)
        assert caught.value.param == list(request_)[-1]


async def test_it_counts_and_splits_nothing_and_says_so() -> None:
    async with scripted(HELLO) as upstream, worker_at(upstream.url) as worker:
        assert not worker.capabilities.tokens
        for work in (worker.count_tokens("x"), worker.tokenize(messages=CHAT["messages"]), worker.detokenize([0])):
            with pytest.raises(Unsupported):
                await work
        assert any("no token ids" in note for note in worker.metadata.notes)


async def test_images_are_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with scripted(HELLO) as upstream, worker_at(upstream.url) as worker:
        with pytest.raises(Unsupported):
            await worker.generate(messages=[{"role": "user", "content": [part]}])


async def test_a_server_that_wants_max_completion_tokens_gets_it() -> None:
    def refuse(body: dict[str, Any]) -> dict[str, Any] | None:
        if "max_tokens" in body:
            return {"message": "Unsupported parameter: use 'max_completion_tokens' instead.", "param": "max_tokens"}
        return {"message": "stream_options is not known"} if "stream_options" in body else None

    async with scripted(stream(says("a"), ends()), refuse_trial=refuse) as upstream, worker_at(upstream.url) as worker:
        await worker.generate(**CHAT, max_tokens=5)
        assert any("tells no usage" in note for note in worker.metadata.notes)
    sent = upstream.generations[0].body
    assert (sent["max_completion_tokens"], "max_tokens" in sent, "stream_options" in sent) == (5, False, False)


async def test_a_finish_reason_that_is_no_end_is_an_error() -> None:
    async with scripted(stream(says("a"), ends("content_filter"))) as upstream, worker_at(upstream.url) as worker:
        with pytest.raises(EngineFailed, match="content_filter"):
            await worker.generate(**CHAT)


async def test_half_a_second_of_comments_is_no_silence() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(head() + f"data: {says('a')}\n\n".encode())
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b": alive\n\n")
        writer.write(f"data: {ends()}\n\ndata: [DONE]\n\n".encode())

    async with scripted(slowly) as upstream, worker_at(upstream.url) as worker:
        assert (await worker.generate(**CHAT)).text == "a"


async def test_a_vllm_is_recognized_and_served_as_text() -> None:
    models = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 512}]}
    async with scripted(HELLO, models=models) as upstream, worker_at(upstream.url) as worker:
        assert worker.metadata.versions["upstream"] == "vllm"
        assert worker.capabilities.context_length == 512
        assert not worker.capabilities.tokens


async def test_an_unknown_model_is_refused_at_the_start() -> None:
    async with scripted(HELLO) as upstream:
        with pytest.raises(ModelNotFound, match="lists m"):
            async with worker_at(upstream.url, model="other"):
                pass


async def test_a_server_without_a_list_is_taken_at_our_word() -> None:
    class Without(dict[str, Any]):
        pass

    async with scripted(HELLO) as upstream:
        upstream_answer = upstream._answer

        async def answer(asked: Any, writer: asyncio.StreamWriter) -> None:
            await (error(404) if asked.method == "GET" else _through(upstream_answer, asked))(writer)

        upstream._answer = answer  # type: ignore[method-assign]  # one test's server
        async with worker_at(upstream.url, model="any") as worker:
            assert (await worker.generate(**CHAT)).text == "Hello world"


def _through(answer: Any, asked: Any) -> Answer:
    async def pass_on(writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer)

    return pass_on


@pytest.mark.parametrize("models", ["[]", '{"data": 5}', '{"data": [5]}', "<html>", ""])
async def test_what_is_no_such_server_cannot_be_loaded(models: str) -> None:
    async with scripted(body("{}")) as upstream:
        upstream.models = None

        async def answer(asked: Any, writer: asyncio.StreamWriter) -> None:
            await body(models)(writer)

        upstream._answer = answer  # type: ignore[method-assign]  # one test's server
        with pytest.raises(LoadFailed):
            async with worker_at(upstream.url):
                pass
