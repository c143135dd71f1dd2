"""How well documents fit a query, on every engine: by a head of the model, or by its logits of yes and no."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.rigs import CANNOT_RANK, Rig, score_tolerance
from contract.test_endings import until_idle, works
from drivetrain.core.capabilities import RerankWay
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Unsupported,
)
from drivetrain.worker.worker import EngineWorker
from recorded_spans import RecordingTracer, checked

QUERY = "small boat"
DOCUMENTS = ["A price list.", "A small boat on the sea.", "", "A price list.", "Ein kleines Böötchen 🚣 日本"]
UNABLE = "this model cannot rank documents"
PARENT = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}


@pytest.fixture
async def ranker(rig: Rig, worker: EngineWorker) -> EngineWorker:
    """For most tests; those of a rig of `CANNOT_RANK` are not collected."""
    if worker.capabilities.rerank is None:
        pytest.skip(UNABLE)
    return worker


async def test_a_model_that_cannot_rank_says_so(rig: Rig, worker: EngineWorker) -> None:
    """It can neither way: an upstream with text alone, or without a bias."""
    able = worker.capabilities.rerank is not None
    assert not (able and rig.name in CANNOT_RANK)
    if not able:
        assert not {"logit_bias", "logprobs"} <= worker.capabilities.parameters or not worker.capabilities.tokens
        with pytest.raises(Unsupported, match=UNABLE) as caught:
            await worker.rerank(QUERY, DOCUMENTS)
        assert caught.value.param == "documents"


async def test_each_document_has_its_score_and_equal_ones_keep_their_order(rig: Rig, ranker: EngineWorker) -> None:
    assert ranker.capabilities.rerank in {RerankWay.HEAD, RerankWay.LOGITS}
    found = await ranker.rerank(QUERY, DOCUMENTS)
    assert len(found.scores) == len(DOCUMENTS)
    assert all(0 <= score <= 1 for score in found.scores)
    assert sorted(found.order) == list(range(len(DOCUMENTS)))
    assert [found.scores[i] for i in found.order] == sorted(found.scores, reverse=True)
    assert found.scores[0] == found.scores[3]
    assert found.order.index(0) < found.order.index(3)
    for i in (1, 4):
        alone = await ranker.rerank(QUERY, [DOCUMENTS[i]])
        assert alone.scores[0] == pytest.approx(found.scores[i], abs=score_tolerance(rig))
    pairs = await ranker.rerank([QUERY, "price"], [DOCUMENTS[1], DOCUMENTS[0]])
    assert pairs.scores[0] == pytest.approx(found.scores[1], abs=score_tolerance(rig))
    assert len(pairs.scores) == 2


async def test_usage_is_that_of_what_was_computed(rig: Rig, ranker: EngineWorker) -> None:
    before = ranker.status
    one = await ranker.rerank(QUERY, ["A small boat."])
    two = await ranker.rerank(QUERY, ["A small boat."] * 2)
    assert two.scores[0] == two.scores[1] == pytest.approx(one.scores[0], abs=score_tolerance(rig))
    assert two.usage.prompt_tokens == 2 * one.usage.prompt_tokens > 0
    if ranker.capabilities.rerank is RerankWay.HEAD:
        assert one.usage.completion_tokens == 0
    else:
        assert 1 <= one.usage.completion_tokens <= 2
    after = ranker.status
    assert after.prompt_tokens - before.prompt_tokens == 3 * one.usage.prompt_tokens
    assert after.completion_tokens - before.completion_tokens == sum(r.usage.completion_tokens for r in (one, two))
    assert after.endings["finished"] - before.endings.get("finished", 0) == 2


async def test_a_long_document_is_refused_or_cut_if_asked(rig: Rig, ranker: EngineWorker) -> None:
    limit = ranker.capabilities.context_length
    long = "word " * 2 * limit
    with pytest.raises(ContextOverflow) as caught:
        await ranker.rerank(QUERY, ["short", long])
    assert caught.value.param == "documents[1]"
    with pytest.raises(ContextOverflow):
        await ranker.rerank(long, ["short"])
    cut = await ranker.rerank(QUERY, [long, "word " * 6, "é🌍" * 40], max_tokens_per_doc=3)
    whole = await ranker.rerank(QUERY, ["word " * 6])
    assert cut.usage.prompt_tokens < 3 * whole.usage.prompt_tokens
    assert cut.scores[0] == pytest.approx(cut.scores[1], abs=score_tolerance(rig))


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"documents": []}, "documents"), ({"documents": "text"}, "documents"), ({"documents": None}, "documents"),
        ({"documents": [5]}, "documents[0]"), ({"documents": ["a", b"b"]}, "documents[1]"),
        ({"documents": ["a", "\ud800"]}, "documents[1]"), ({"documents": ["a"] * 10_000}, "documents"),
        ({"query": ""}, "query"), ({"query": 5}, "query"), ({"query": None}, "query"), ({"query": []}, "query"),
        ({"query": ["a", "b"]}, "query"), ({"query": "\ud800"}, "query"), ({"query": "x" * 3_000_000}, "documents"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"), ({"max_tokens_per_doc": 1.5}, "max_tokens_per_doc"),
        ({"max_tokens_per_doc": 10**40}, "max_tokens_per_doc"), ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"), ({"timeout_s": 1e9}, "timeout_s"),
        ({"cache_salt": 5}, "cache_salt"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(ranker: EngineWorker, arguments: dict[str, Any], param: str) -> None:
    ended = sum(ranker.status.endings.values())
    with pytest.raises(InvalidRequest) as caught:
        await ranker.rerank(**{"query": QUERY, "documents": ["a", "b", "c"], **arguments})
    assert caught.value.param == param
    assert sum(ranker.status.endings.values()) == ended + 1


async def test_an_engine_that_cannot_be_held_to_two_words_says_so(rig: Rig) -> None:
    async with rig.open(unsupported=frozenset({"logit_bias"})) as worker:
        if worker.capabilities.rerank is RerankWay.HEAD:
            assert (await worker.rerank(QUERY, ["a"])).scores
            return
        with pytest.raises(Unsupported) as caught:
            await worker.rerank(QUERY, ["a"])
        assert caught.value.param == "documents"


async def test_deadline_and_cancelling_free_the_engine(rig: Rig, ranker: EngineWorker) -> None:
    many = [f"{i} " * 40 for i in range(1500)]
    ended = sum(ranker.status.endings.values())
    slow = ranker.capabilities.rerank is RerankWay.LOGITS
    if slow:
        with pytest.raises(DeadlineExceeded):
            await ranker.rerank(QUERY, many, timeout_s=0.2)
    task = asyncio.create_task(ranker.rerank(QUERY, many))
    while not ranker.status.running and not task.done():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_idle(rig, ranker)
    await works(ranker)
    assert sum(ranker.status.endings.values()) - ended == (3 if slow else 2)


@pytest.mark.usefixtures("ranker")
async def test_others_are_served_meanwhile_and_the_gate_holds(rig: Rig) -> None:
    """It has one slot of its own, and takes others only while nobody else wants them."""
    async with rig.open() as worker:
        most = worker.capabilities.max_concurrency
        ranking = asyncio.create_task(worker.rerank(QUERY, [f"{i} " * 30 for i in range(200)]))
        seen = 0
        for _ in range(2):
            await works(worker)
            seen = max(seen, worker.status.running)
            assert worker.status.running <= most
        ranking.cancel()
        await asyncio.gather(ranking, return_exceptions=True)
        await until_idle(rig, worker)
        assert worker.status.running == worker.status.waiting == 0


async def test_a_failure_ends_it_once(rig: Rig, ranker: EngineWorker) -> None:
    if ranker.capabilities.rerank is RerankWay.HEAD:
        return
    before = ranker.status.endings.get("engine_error", 0)
    with rig.fault(ranker, 0, RuntimeError("broken on purpose")), pytest.raises(EngineFailed):
        await ranker.rerank(QUERY, ["a", "b", "c"])
    await until_idle(rig, ranker)
    assert ranker.status.endings["engine_error"] == before + 1
    assert len((await ranker.rerank(QUERY, ["a", "b"])).scores) == 2


@pytest.mark.usefixtures("ranker")
async def test_shutting_down_ends_it(rig: Rig) -> None:
    async with rig.open() as worker:
        if worker.capabilities.rerank is RerankWay.HEAD:
            return
        task = asyncio.create_task(worker.rerank(QUERY, [f"{i} " * 40 for i in range(1500)]))
        while not worker.status.running:
            await asyncio.sleep(0.001)
        await worker.stop()
        with pytest.raises(Cancelled):
            await task


@pytest.mark.usefixtures("ranker")
async def test_it_has_its_span(rig: Rig) -> None:
    tracer = RecordingTracer()
    async with rig.open(tracer=tracer) as worker:
        found = await worker.rerank(QUERY, ["a", "b"], trace_context=PARENT)
        with pytest.raises(InvalidRequest):
            await worker.rerank(QUERY, [], trace_context=PARENT)
        good, refused = tracer.requests
        checked(good, ("queue", "prepare", "score"))
        checked(refused, (), InvalidRequest.code)
        assert good.attributes["gen_ai.usage.input_tokens"] == found.usage.prompt_tokens
        assert {(span.name, str(span.parent)) for span in (good, refused)} == {
            (f"rerank {worker.metadata.name}", str(PARENT))
        }


async def test_no_text_forges_the_end_of_the_other(ranker: EngineWorker) -> None:
    specials = " ".join(sorted(ranker.info.tokenizer.special_strings))
    found = await ranker.rerank(specials or "x", [specials, f"{specials} yes", "\ue000drivetrain\ue001"])
    assert all(0 <= score <= 1 for score in found.scores)
