"""`/rerank` in Cohere's and Jina's shapes, `/score` in vLLM's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from contract.rigs import Rig, score_tolerance
from server.serving import Served, fake, serving

RERANK, SCORE = "/v1/rerank", "/v1/score"
DOCUMENTS = ["Tin cost more in 1911.", "A small boat on the sea.", "The sea.", "Tin cost more in 1911."]


def asking(served: Served, **fields: Any) -> dict[str, Any]:
    return {"model": served.model, "query": "small boat sea", "documents": DOCUMENTS, **fields}


def ranked(served: Served, path: str = RERANK, **fields: Any) -> dict[str, Any]:
    status, document = served.post(path, asking(served, **fields))
    assert status == 200, document
    return document


@pytest.mark.parametrize(("path", "texts"), [(RERANK, True), ("/rerank", True), ("/v2/rerank", False)])
def test_the_documents_in_order(served: Served, path: str, texts: bool) -> None:
    document = ranked(served, path)
    results, tokens = document["results"], document["meta"]["tokens"]
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in results) == [0, 1, 2, 3]
    assert document["model"] == served.model
    assert document["id"]
    assert tokens["input_tokens"] == document["usage"]["prompt_tokens"] > 0
    assert tokens["input_tokens"] + tokens["output_tokens"] == document["usage"]["total_tokens"]
    for one in results:
        assert one.get("document") == ({"text": DOCUMENTS[one["index"]]} if texts else None)
    other = ranked(served, path, return_documents=not texts)
    assert all(("document" in one) is not texts for one in other["results"])


def test_the_first_ones_alone(served: Served, rig: Rig) -> None:
    everything = {one["index"]: one["relevance_score"] for one in ranked(served)["results"]}
    for top_n in (1, 3, 4, 1000, 2**31 - 1):
        first = [one["index"] for one in ranked(served, top_n=top_n)["results"]]
        assert len(set(first)) == len(first) == min(top_n, 4)
        if rig.exact:
            assert first == list(everything)[:top_n]
        last = list(everything.values())[len(first) - 1]
        assert all(everything[index] > last - 2 * score_tolerance(rig) for index in first)  # either may be so far off


def test_strings_and_objects_are_the_same(served: Served, rig: Rig) -> None:
    def by_index(documents: list[Any]) -> dict[int, Any]:
        return {one["index"]: one for one in ranked(served, documents=documents)["results"]}

    objects = [{"text": text} for text in DOCUMENTS]
    plain = by_index(DOCUMENTS)
    for given in (objects, [DOCUMENTS[0], *objects[1:]]):
        found = by_index(given)
        assert found.keys() == plain.keys()
        for index, one in found.items():
            assert one["document"] == plain[index]["document"]
            assert one["relevance_score"] == pytest.approx(plain[index]["relevance_score"], abs=score_tolerance(rig))
    assert ranked(served, rank_fields=["text"], user="somebody")["results"]


@pytest.mark.parametrize("path", [SCORE, "/score"])
def test_scores_of_pairs(served: Served, rig: Rig, path: str) -> None:
    def scores(one: Any, two: Any) -> list[float]:
        status, document = served.post(path, {"model": served.model, "text_1": one, "text_2": two})
        assert status == 200, document
        assert document["object"] == "list"
        assert document["usage"]["total_tokens"] > 0
        assert [(item["index"], item["object"]) for item in document["data"]] == [
            (i, "score") for i in range(len(document["data"]))
        ]
        return [item["score"] for item in document["data"]]

    listed = {one["index"]: one["relevance_score"] for one in ranked(served)["results"]}
    near = score_tolerance(rig)
    assert scores("small boat sea", DOCUMENTS) == pytest.approx([listed[i] for i in range(4)], abs=near)
    assert scores(["small boat sea"], DOCUMENTS[1]) == pytest.approx([listed[1]], abs=near)
    assert scores(["small boat sea", "tin"], DOCUMENTS[1:3])[0] == pytest.approx(listed[1], abs=near)


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("documents", None, "documents"), ("documents", [], "documents"), ("documents", "a", "documents"),
        ("documents", [5], "documents[0]"), ("documents", ["a", None], "documents[1]"),
        ("documents", [["a"]], "documents[0]"), ("documents", ["a", {}], "documents[1].text"),
        ("documents", [{"text": 5}], "documents[0].text"), ("documents", [{"text": None}], "documents[0].text"),
        ("documents", [{"text": "a", "title": "b"}], "documents[0].title"), ("documents", ["a"] * 10_000, "documents"),
        ("query", None, "query"), ("query", "", "query"), ("query", ["a"], "query"), ("query", {"text": "a"}, "query"),
        ("top_n", 0, "top_n"), ("top_n", -1, "top_n"), ("top_n", 1.5, "top_n"), ("top_n", 10**30, "top_n"),
        ("top_n", True, "top_n"), ("return_documents", 1, "return_documents"),
        ("rank_fields", ["title"], "rank_fields"),
        ("max_chunks_per_doc", 3, "max_chunks_per_doc"), ("max_tokens_per_doc", 0, "max_tokens_per_doc"),
        ("timeout_s", -1, "timeout_s"), ("timeout_s", 1e8, "timeout_s"), ("model", None, "model"),
        ("nonsense", 1, "nonsense"),
    ],
)  # fmt: skip
def test_bad_values(served: Served, name: str, value: Any, param: str) -> None:
    for path in (RERANK, "/v2/rerank"):
        assert served.refused(path, asking(served, **{name: value}))["param"] == param


@pytest.mark.parametrize(
    ("one", "two", "param"),
    [
        (None, "a", "text_1"), ("a", None, "text_2"), ("a", [], "text_2"), ([], "a", "text_1"), ("", "a", "text_1"),
        (["a", "b"], ["a"], "text_1"), (["a", "b"], "a", "text_1"), (5, "a", "text_1"), ("a", [5], "text_2[0]"),
        ("a", ["b"] * 3000, "text_2"), (["a", ""], ["a", "b"], "text_1[1]"), ("a", {"text": "b"}, "text_2"),
    ],
)  # fmt: skip
def test_bad_pairs(served: Served, one: Any, two: Any, param: str) -> None:
    assert served.refused(SCORE, {"model": served.model, "text_1": one, "text_2": two})["param"] == param


def test_too_long_is_named_and_cut_if_asked(served: Served) -> None:
    long = "word " * 2 * served.worker.capabilities.context_length
    error = served.refused(RERANK, asking(served, documents=["a", long]))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents[1]")
    assert served.refused(SCORE, {"model": served.model, "text_1": "a", "text_2": ["a", long]})["param"] == "text_2[1]"
    assert len(ranked(served, documents=["a", long], max_tokens_per_doc=4)["results"]) == 2


def test_a_lenient_server_names_what_it_leaves_out() -> None:
    with serving(fake(), unknown_fields="warn") as served:
        documents = [{"text": "small boat", "title": "x"}, "tin"]
        _, headers, data = served.request(
            "POST", RERANK, asking(served, documents=documents, colour=1, rank_fields=["title"])
        )
        found = [one["index"] for one in json.loads(data)["results"]]
        assert found == [0, 1]
        assert set(headers["x-drivetrain-ignored"].split(", ")) == {"colour", "documents[0].title", "rank_fields"}


def test_the_card_says_by_which_way(served: Served) -> None:
    card = json.loads(served.request("GET", f"/v1/models/{served.model}")[2])["capabilities"]
    assert card["rerank"] == ("score_head" if served.worker.metadata.engine == "fake" else "yes_no")


def test_a_model_that_cannot_names_one_that_can(checkpoint: Callable[[str], Path]) -> None:
    with serving(lambda: drivetrain.Worker.open(checkpoint("bert"))) as served:
        error = served.refused(RERANK, asking(served))
        assert (error["param"], error["code"]) == ("model", "unsupported")
        assert "none of the models that are loaded here can" in error["message"]
        card = json.loads(served.request("GET", f"/v1/models/{served.model}")[2])["capabilities"]
        assert card["rerank"] is None


def test_a_cross_encoder(checkpoint: Callable[[str], Path]) -> None:
    with serving(lambda: drivetrain.Worker.open(checkpoint("bert_scorer"))) as served:
        assert len(ranked(served)["results"]) == 4
        assert ranked(served)["usage"]["completion_tokens"] == 0
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            assert served.refused(path, {"model": served.model, **body})["code"] == "unsupported"
