"""Embeddings of other servers: ours, llama.cpp's, and ones that break."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from remote_rigs import PATIENT, Answer, Asked, Scripted, body, engine_of, error, raw, scripted, worker_at
from vllm_toy import VllmToy
from vllm_toy import served as vllm_served

from contract.llamacpp_server import LlamaCppServer, running
from contract.native_rig import NativeRig
from contract.rigs import LlamaCppRig, TransformersRig
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    NotReady,
    Overloaded,
    Unsupported,
)
from drivetrain.core.results import Embeddings
from drivetrain.engines.remote import embedding
from drivetrain.engines.remote.errors import Refused
from drivetrain.engines.remote.wire import Timeouts
from drivetrain.store.store import Store
from drivetrain.worker.worker import EngineWorker
from server.serving import Served, serving
from tiny import tokenizers as made

TEXTS = ["Hello", "Hello", "Something else entirely", "héllo 🌍"]
SIZE = 3
HASTY = Timeouts(connect_s=5.0, ask_s=5.0, first_s=1.0, idle_s=1.0)
CARD: dict[str, Any] = {
    "tokens": True, "generation": True, "embeddings": True, "embedding_size": SIZE, "pooling": "mean", "eos_ids": [2],
    "context_length": 100, "max_concurrency": 4, "vocab_size": 300, "stop": [], "architecture": "toy", "dtype": "none",
    "parameters": {}, "defaults": {}, "limits": {"max_stops": 4, "max_embed_inputs": 100},
}  # fmt: skip


@asynccontextmanager
async def at(served: Served) -> AsyncIterator[EngineWorker]:
    async with worker_at(f"{served.base}/v1", model=served.model, timeouts=PATIENT) as worker:
        yield worker


@pytest.fixture(scope="module")
def native_server(checkpoint: Callable[[str], Path]) -> Iterator[Served]:
    with serving(lambda: NativeRig(checkpoint).open()) as served:
        yield served


@pytest.fixture(scope="module")
def encoder_server(checkpoint: Callable[[str], Path]) -> Iterator[Served]:
    with serving(lambda: TransformersRig(checkpoint, "bert").open()) as served:
        yield served


@pytest.mark.parametrize("name", ["native_server", "encoder_server"])
async def test_the_vectors_are_those_of_the_server(name: str, request: pytest.FixtureRequest) -> None:
    served: Served = request.getfixturevalue(name)

    async def directly() -> Embeddings:
        return await served.worker.embed(TEXTS)

    there = await asyncio.to_thread(served.on_loop, directly())
    async with at(served) as worker:
        here = await worker.embed(TEXTS)
        assert worker.metadata.embedding_size == served.worker.metadata.embedding_size == len(here.vectors[0])
        assert worker.metadata.pooling == served.worker.metadata.pooling
    for ours, theirs in zip(here.vectors, there.vectors, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert here.usage == there.usage


async def test_a_model_without_a_text_is_served_for_its_vectors(encoder_server: Served) -> None:
    async with at(encoder_server) as worker:
        assert not worker.capabilities.generation
        with pytest.raises(Unsupported):
            await worker.generate(prompt="x")
        assert len((await worker.embed("x")).vectors) == 1


async def test_a_cancelled_call_frees_the_slot_of_the_upstream(native_server: Served) -> None:
    async with at(native_server) as worker:
        limit = worker.capabilities.context_length
        task = asyncio.create_task(worker.embed([[65] * min(limit, 200)] * 1500))
        async with asyncio.timeout(20):
            while not native_server.worker.status.running:
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, Cancelled)):
            await task
        assert not engine_of(worker).busy
        await asyncio.to_thread(native_server.settle)


@pytest.fixture(scope="module")
def gguf(smollm2: str) -> Path:
    return Store().pull(smollm2).path


@pytest.fixture(scope="module")
def llamacpp(gguf: Path) -> Iterator[LlamaCppServer]:
    with running(gguf, pooling="mean") as server:
        yield server


@pytest.mark.slow
async def test_llamacpps_server_gives_what_our_engine_gives(llamacpp: LlamaCppServer) -> None:
    async with (
        LlamaCppRig(whole=True).open() as direct,
        worker_at(llamacpp.url, model="smollm2", timeouts=PATIENT) as worker,
    ):
        here, there = await worker.embed(TEXTS), await direct.embed(TEXTS)
        assert worker.metadata.embedding_size == direct.metadata.embedding_size
        assert here.usage == there.usage
        for ours, theirs in zip(here.vectors, there.vectors, strict=True):
            assert sum(a * b for a, b in zip(ours, theirs, strict=True)) > 0.999
            assert math.hypot(*ours) == pytest.approx(1)
        assert here.vectors[0] == here.vectors[1] != here.vectors[2]
        assert (await worker.embed([[65, 66]])).usage.prompt_tokens == 2
        unusable: tuple[Any, ...] = ([], "", [""], [[]], [[10**9]])
        for bad in unusable:
            with pytest.raises(InvalidRequest):
                await worker.embed(bad)
        for long in (600, 1000, worker.capabilities.context_length + 1):
            with pytest.raises(ContextOverflow):
                await worker.embed([[65] * long])
        assert worker.status.engine_alive, "a long text is no fault of the upstream"
        with pytest.raises(DeadlineExceeded):
            await worker.embed([[65] * 500] * 100, timeout_s=0.1)
        assert not engine_of(worker).busy
        await asyncio.to_thread(llamacpp.settle)
        said = await worker.generate(prompt="The capital of France is", temperature=0, max_tokens=3)
        assert said.usage.completion_tokens == 3


@pytest.mark.slow
async def test_llamacpps_server_without_pooling_gives_none(gguf: Path) -> None:
    with running(gguf) as server:
        async with worker_at(server.url, model="smollm2", timeouts=PATIENT) as worker:
            assert not worker.capabilities.embeddings
            with pytest.raises(Unsupported):
                await worker.embed("x")


def vectors(*found: Sequence[Any], **entry: Any) -> Answer:
    data = [{"index": i, "embedding": list(vector)} | entry for i, vector in enumerate(found)]
    return body(json.dumps({"object": "list", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}))


@asynccontextmanager
async def toy(*answers: Answer, **card: Any) -> AsyncIterator[Scripted]:
    """Another Drivetrain whose vocabulary are the bytes; `answers` to what it is asked to embed."""
    models = {"data": [{"id": "m", "owned_by": "drivetrain"}]}
    async with scripted(*answers) as upstream:

        async def answer(asked: Asked, writer: Any) -> None:
            said: Any = models
            if asked.path == "/v1/embeddings":
                await (upstream.answers.pop(0) if len(upstream.answers) > 1 else upstream.answers[0])(writer)
                return
            if asked.path == "/v1/models/m":
                said = {"capabilities": CARD | card}
            elif asked.path == "/tokenize":
                said = {"tokens": list(asked.body["prompt"].encode())}
            elif asked.path == "/detokenize":
                said = {"prompt": "</s>"}
            await body(json.dumps(said))(writer)

        upstream._answer = answer  # type: ignore[method-assign]  # a server of another kind
        yield upstream


def embeds(upstream: Scripted) -> list[Asked]:
    return [asked for asked in upstream.asked if asked.path == "/v1/embeddings"]


GOOD = vectors((3.0, 0.0, 4.0))


async def test_ids_go_up_and_unit_vectors_come_down_in_their_order() -> None:
    data = [{"index": 1, "embedding": [0, 2, 0]}, {"index": 0, "embedding": [3.0, 0.0, 4.0]}]
    async with toy(body(json.dumps({"data": data}))) as upstream, worker_at(upstream.url) as worker:
        result = await worker.embed(["hi", "x"])
    assert result.vectors == ((0.6, 0.0, 0.8), (0.0, 1.0, 0.0))
    assert result.usage.prompt_tokens == 3
    assert [asked.body for asked in embeds(upstream)] == [
        {"model": "m", "input": [[104, 105], [120]], "encoding_format": "float"}
    ]


@pytest.mark.parametrize(("most", "limit"), [(2, 100), (100, 2)])
async def test_many_texts_are_several_questions(most: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MOST_INPUTS", most)
    limits = {"max_stops": 4, "max_embed_inputs": limit}
    two = vectors((1, 0, 0), (0, 1, 0))
    async with toy(two, two, vectors((0, 0, 1)), limits=limits) as upstream, worker_at(upstream.url) as worker:
        result = await worker.embed(["a", "b", "c", "d", "e"])
    assert [vector.index(1.0) for vector in result.vectors] == [0, 1, 0, 1, 2]
    assert [len(asked.body["input"]) for asked in embeds(upstream)] == [2, 2, 1]


@pytest.mark.parametrize(
    "bad",
    [
        vectors((1.0, 2.0)), vectors(), vectors((1.0, 2.0, "x")), vectors((1, 2, 3), (1, 2, 3)), body("{}"),
        body("<html>", kind="text/html"), vectors((0, 0, 0)), vectors((1, math.nan, 0)), vectors((1, 2, 3), index=7),
        raw(b""), error(500), error(502), raw(b"", hang=True),
    ],
)  # fmt: skip
async def test_what_is_no_vector_is_a_typed_error(bad: Answer) -> None:
    async with toy(bad) as upstream, worker_at(upstream.url, timeouts=HASTY) as worker:
        with pytest.raises(EngineFailed):
            await worker.embed("x")
        assert not engine_of(worker).busy


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(400, "no"), InvalidRequest),
        (error(400, "too long", code="context_length_exceeded"), ContextOverflow),
        (error(500, "input (600 tokens) is too large to process"), ContextOverflow),
        (error(429), Overloaded),
        (error(503), NotReady),
        (error(504), DeadlineExceeded),
    ],
)
async def test_each_refusal_has_its_place_in_the_tree(answer: Answer, kind: type[DrivetrainError]) -> None:
    async with toy(answer) as upstream, worker_at(upstream.url) as worker:
        for _ in range(4):
            with pytest.raises(DrivetrainError) as caught:
                await worker.embed("x")
            assert type(caught.value) is kind
        assert worker.status.engine_alive
        assert worker.status.endings[kind.code] == 4


async def test_another_upstream_answers_in_its_place() -> None:
    async with toy(error(502)) as bad, toy(GOOD) as good, worker_at(bad.url, good.url) as worker:
        for _ in range(6):
            assert (await worker.embed("x")).vectors == ((0.6, 0.0, 0.8),)
    assert (len(embeds(bad)), len(embeds(good))) == (3, 6)


async def test_where_not_all_embed_alike_none_are_promised() -> None:
    async with toy(GOOD) as one, toy(GOOD, embedding_size=7) as other, worker_at(one.url, other.url) as worker:
        assert not worker.capabilities.embeddings
    async with toy(GOOD, generation=False) as one, toy(GOOD, embedding_size=7, generation=False) as other:
        with pytest.raises(LoadFailed, match="embed alike"):
            async with worker_at(one.url, other.url):
                pass


async def test_cancelling_closes_the_upstream() -> None:
    async with toy(raw(b"", hang=True)) as upstream, worker_at(upstream.url) as worker:
        task = asyncio.create_task(worker.embed("x"))
        await until(lambda: embeds(upstream))
        assert engine_of(worker).busy
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not engine_of(worker).busy
        with pytest.raises(DeadlineExceeded):
            await worker.embed("x", timeout_s=0.05)
        await until(lambda: upstream.left == 2)
        assert worker.status.running == 0


async def test_closing_ends_what_is_under_way() -> None:
    async with toy(raw(b"", hang=True)) as upstream, worker_at(upstream.url) as worker:
        task = asyncio.create_task(worker.embed("x"))
        await until(lambda: embeds(upstream))
        await engine_of(worker).close()
        with pytest.raises(EngineFailed, match="closed"):
            await task
        with pytest.raises(NotReady):
            await worker.embed("x")


class EmbeddingVllm(VllmToy):
    """A vector is how many tokens a text has, and its last one."""

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        if path == "/v1/completions":
            raise Refused(404, "no such path")
        if path != "/v1/embeddings":
            return super().answer(path, body)
        found = [self.tokenizer(given).input_ids if isinstance(given, str) else given for given in body["input"]]
        data = [{"index": i, "embedding": [len(ids), ids[-1]]} for i, ids in enumerate(found)]
        return {"data": data}


@pytest.mark.parametrize("add_eos", [False, True])
async def test_a_vllm_that_embeds_gets_the_ids_that_it_would_make_itself(add_eos: bool) -> None:
    """Some vocabularies end a text with a token that the model pools at."""
    tokenizer = made.byte_level(add_bos=True, add_eos=add_eos, chat_template=made.CHATML)
    toy_ = EmbeddingVllm(tokenizer, vocab_size=len(tokenizer))
    told = toy_.answer("/v1/embeddings", {"input": TEXTS})["data"]
    async with vllm_served(toy_) as upstream, worker_at(upstream.url) as worker:
        assert not worker.capabilities.generation
        result = await worker.embed(TEXTS)
        assert result.usage.prompt_tokens == sum(entry["embedding"][0] for entry in told)
        for vector, entry in zip(result.vectors, told, strict=True):
            assert vector[0] / vector[1] == pytest.approx(entry["embedding"][0] / entry["embedding"][1])
        with pytest.raises(Unsupported):
            await worker.generate(prompt="x")


LLAMACPP: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_vocab": 300}}]},
    "/props": {"default_generation_settings": {"n_ctx": 100}, "total_slots": 1},
    "/tokenize": {"tokens": []},
}


@pytest.mark.parametrize(
    ("answer", "size", "noted"),
    [
        (vectors((1, 2, 3, 4)), 4, False), (error(400), 0, False), (error(501), 0, False), (error(404), 0, False),
        (body("<html>", kind="text/html"), 0, False), (error(500), 0, True),
    ],
)  # fmt: skip
async def test_one_letter_tells_whether_llamacpp_embeds(answer: Answer, size: int, noted: bool) -> None:
    async with told(answer) as upstream, worker_at(upstream.url) as worker:
        assert worker.capabilities.embeddings is (size > 0)
        assert worker.metadata.embedding_size == size
        assert any("embeddings" in note for note in worker.metadata.notes) is noted
        assert worker.capabilities.generation


@pytest.mark.parametrize("answer", [error(429), error(503), raw(b""), raw(b"", hang=True), vectors((1, 2), index=3)])
async def test_silence_about_embeddings_is_no_refusal_of_them(answer: Answer) -> None:
    async with told(answer) as upstream:
        with pytest.raises(LoadFailed):
            async with worker_at(upstream.url, timeouts=HASTY):
                pass


@asynccontextmanager
async def told(answer: Answer) -> AsyncIterator[Scripted]:
    async with scripted(answer) as upstream:

        async def say(asked: Asked, writer: Any) -> None:
            await (body(json.dumps(LLAMACPP[asked.path])) if asked.path in LLAMACPP else answer)(writer)

        upstream._answer = say  # type: ignore[method-assign]  # a server of another kind
        yield upstream


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)
