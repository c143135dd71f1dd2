"""Cohere's own client, both versions of it, at our server: documents in the order of how well they fit."""

from __future__ import annotations

from collections.abc import Iterator

import cohere
import httpx
import pytest

from clients.conftest import MODEL

QUERY = "Which river flows through Paris?"
DOCUMENTS = [
    "The Danube flows through Vienna and Budapest.",
    "Tomatoes need sun and water.",
    "The Seine is the river that flows through Paris.",
    "Tomatoes need sun and water.",
]


@pytest.fixture
def server(url: str) -> str:
    return url.removesuffix("/v1")


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """Closed when the test is over: not every version of the client closes its own."""
    with httpx.Client(timeout=120) as made:
        yield made


@pytest.mark.shows("cohere", "rerank, by version 2 of its API")
def test_version_2(server: str, http: httpx.Client) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server, httpx_client=http)
    answer = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    order = [result.index for result in answer.results]
    assert sorted(order) == [0, 1, 2, 3]
    assert order.index(1) + 1 == order.index(3), "equal documents keep their order"
    assert answer.id
    assert answer.meta is not None
    assert answer.meta.api_version is not None
    assert answer.meta.api_version.version == "2"
    assert answer.meta.tokens is not None
    assert (answer.meta.tokens.input_tokens or 0) > 0


@pytest.mark.shows("cohere", "rerank, by version 2 of its API")
def test_version_2_cut(server: str, http: httpx.Client) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server, httpx_client=http)
    everything = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)
    best = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=2, max_tokens_per_doc=100)
    assert [result.index for result in best.results] == [result.index for result in everything.results][:2]
    with pytest.raises(cohere.BadRequestError) as caught:
        client.rerank(model=MODEL, query=QUERY, documents=["short", "word " * 20_000])
    assert caught.value.body["error"]["param"] == "documents[1]"
    cut = client.rerank(model=MODEL, query=QUERY, documents=["short", "word " * 20_000], max_tokens_per_doc=20)
    assert len(cut.results) == 2


@pytest.mark.shows("cohere", "rerank, by version 1 of its API")
@pytest.mark.parametrize("returned", [True, False])
def test_version_1(server: str, http: httpx.Client, returned: bool) -> None:
    client = cohere.Client(api_key="none", base_url=server, httpx_client=http)
    documents = [{"text": text} for text in DOCUMENTS]
    answer = client.rerank(model=MODEL, query=QUERY, documents=documents, top_n=3, return_documents=returned)
    assert len(answer.results) == 3
    for result in answer.results:
        if returned:
            assert result.document is not None
            assert result.document.text == DOCUMENTS[result.index]
        else:
            assert result.document is None
    assert answer.meta is not None


@pytest.mark.shows("cohere", "rerank, by version 2 of its API")
async def test_version_2_async(server: str) -> None:
    async with cohere.AsyncClientV2(api_key="none", base_url=server, timeout=120) as client:
        answer = await client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS[:2], top_n=1)
    assert len(answer.results) == 1


def test_what_is_wrong_is_told(server: str, http: httpx.Client) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server, httpx_client=http)
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="nobody", query=QUERY, documents=DOCUMENTS)
    with pytest.raises(cohere.BadRequestError) as caught:
        client.rerank(model=MODEL, query=QUERY, documents=[])
    assert caught.value.body["error"]["param"] == "documents"
