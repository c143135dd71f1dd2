"""`/v1/rerank` and `/v1/score`."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.case import BY_ENDPOINT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.refusing import refusal
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, honoured, is_number, param_names, take
from drivetrain.tools.conform.requester import LEFT_OUT
from drivetrain.tools.conform.survey import UNKNOWN_FIELD, answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotOffered, ensure

CASES = Cases(Area.RERANK, BY_ENDPOINT)
case = CASES.case

QUERY = "a small boat on the sea"
DOCUMENTS = ["The price of tin in 1911.", "A small boat on the sea.", "Tin is a metal.", "A ship on the water."]
NEAR = 0.15
"""Some engines round by what else they compute, so that documents this near may change places."""


async def _post(t: Trial, path: str = "/rerank", **fields: Any) -> RecordedExchange:
    body = {"model": t.model, "query": QUERY, "documents": DOCUMENTS, **fields}
    return await t.post(path, {name: value for name, value in body.items() if value is not LEFT_OUT})


async def _rank(t: Trial, **fields: Any) -> dict[int, float]:
    """The score of each index, in the order of the results. A model that cannot must refuse."""
    exchange = await _post(t, **fields)
    _offered(exchange)
    honoured(exchange, {name: None for name in fields if name not in {"query", "documents"}})
    results = take(exchange.json(), "results", list)
    scores: dict[int, float] = {}
    for result in results:
        index, score = take(result, "index", int), result.get("relevance_score")
        if not is_number(score):
            raise Failed(f"a relevance_score is no number: {brief(score)}")
        ensure(index not in scores, f"the document {index} is in the results twice")
        scores[index] = float(score)
    most = len(fields.get("documents", DOCUMENTS))
    ensure(all(0 <= index < most for index in scores), f"the indices are {list(scores)}, of {most} documents")
    return scores


def _offered(exchange: RecordedExchange) -> None:
    says = exchange.reply.lower()
    if exchange.status in {400, 422} and (b"rank" in says or b"score" in says) and not param_names(exchange, "query"):
        raise NotOffered("the server says that this model cannot rank documents")
    answered(exchange)


@case("shape", asks="four documents", holds="each once, by its index, with a number, the highest first")
async def _shape(t: Trial) -> None:
    scores = await _rank(t)
    ensure(sorted(scores) == [0, 1, 2, 3], f"the indices are {list(scores)}, of four documents")
    falling = sorted(scores.values(), reverse=True)
    ensure(list(scores.values()) == falling, f"the scores do not fall: {list(scores.values())}")
    ensure(len(set(scores.values())) > 1, "different documents have the same score")


@case("top_n", asks="top_n = 2", holds="the first two of all results", offered=BY_FIELD)
async def _top_n(t: Trial) -> None:
    everything, first = await _rank(t), list(await _rank(t, top_n=2))
    ensure(len(first) == 2, f"with top_n = 2 there are {len(first)} results")
    second = sorted(everything.values(), reverse=True)[1]
    ensure(
        all(everything[index] > second - NEAR for index in first),
        f"with top_n = 2 the results are {first}, and the scores without it {everything}",
    )


@case("alone", asks="a document alone, and among others", holds="about the same score")
async def _alone(t: Trial) -> None:
    among, alone = (await _rank(t))[1], (await _rank(t, documents=[DOCUMENTS[1]]))[0]
    ensure(abs(among - alone) < NEAR, f"the score is {among} among others and {alone} alone")


@case("equal", asks="a document twice", holds="one score, and the order in which they were sent")
async def _equal(t: Trial) -> None:
    scores = await _rank(t, documents=[DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0]])
    ensure(abs(scores[0] - scores[2]) < NEAR, f"the same document has the scores {scores[0]} and {scores[2]}")
    if scores[0] == scores[2]:
        ensure(list(scores).index(0) < list(scores).index(2), "of equal documents, the later one comes first")


@case("objects", asks="documents as objects with a text", holds="the scores of the texts")
async def _objects(t: Trial) -> None:
    texts = await _rank(t)
    objects = await _rank(t, documents=[{"text": text} for text in DOCUMENTS])
    ensure(all(abs(texts[i] - objects.get(i, 2.0)) < NEAR for i in texts), "objects have other scores than their texts")


@case("texts", asks="return_documents = true, and false", holds="the texts, and none", offered=BY_FIELD)
async def _texts(t: Trial) -> None:
    for wanted in (True, False):
        await _rank(t, return_documents=wanted)
        for result in take(t.exchanges[-1].json(), "results", list):
            found = result.get("document")
            text = found.get("text") if isinstance(found, dict) else found
            expected = DOCUMENTS[result["index"]] if wanted else None
            ensure(text == expected, f"with return_documents = {wanted} a result's document is {brief(found)}")


@case("score", asks="/score of one text with three", holds="a score each, in order, near those of /rerank")
async def _score(t: Trial) -> None:
    ranked = await _rank(t)
    exchange = await t.post("/score", {"model": t.model, "text_1": QUERY, "text_2": DOCUMENTS})
    answered(exchange)
    data = take(exchange.json(), "data", list)
    ensure([take(item, "index", int) for item in data] == [0, 1, 2, 3], "there is not one score a text, in order")
    for item in data:
        score, index = item.get("score"), item["index"]
        ensure(is_number(score), f"a score is no number: {brief(score)}")
        ensure(abs(score - ranked[index]) < NEAR, f"the text {index} has {score} here and {ranked[index]} in /rerank")


_BAD: tuple[tuple[str, str, Any], ...] = (
    ("documents_missing", "documents", LEFT_OUT),
    ("documents_empty", "documents", []),
    ("documents_number", "documents", [5]),
    ("query_missing", "query", LEFT_OUT),
    ("top_n_zero", "top_n", 0),
    ("unknown", UNKNOWN_FIELD, 1),
)


for _row in _BAD:
    refusal(CASES, *_row, plain=_rank, post=_post)
