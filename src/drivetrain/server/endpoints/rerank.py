"""`/rerank` as Cohere's and Jina's clients ask it, and `/score` as vLLM's do: how well documents fit a query."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.results import Ranking
from drivetrain.server.context import Context
from drivetrain.server.encoding import Each, encoded
from drivetrain.server.errors import json_response, renamed
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.models import who_can
from drivetrain.server.parse.body import Values
from drivetrain.server.parse.rerank import RERANK, SCORE
from drivetrain.server.parse.translate import trace_headers
from drivetrain.server.tenants import salt_of
from drivetrain.telemetry.ids import id_here

_SIDES = {"query": "text_1", "documents": "text_2"}


async def rerank(exchange: Exchange, context: Context) -> Response:
    """Jina's answer with its texts, which Cohere's clients of version 1 take as well."""
    return await _reranked(exchange, context, version="1", texts=True)


async def rerank_by_index(exchange: Exchange, context: Context) -> Response:
    """Cohere's second version has no texts."""
    return await _reranked(exchange, context, version="2", texts=False)


async def score(exchange: Exchange, context: Context) -> Response:
    values = await read_body(exchange, context, SCORE)
    queries, documents = values["text_1"], values["text_2"]
    if len(queries) not in {1, len(documents)}:
        what = f"text_1 has {len(queries):,} entries and text_2 {len(documents):,}; send one text_1, or one for each"
        raise InvalidRequest(what, param="text_1")
    try:
        ranking = await _ranking(exchange, context, values, queries if len(queries) > 1 else queries[0], documents)
    except InvalidRequest as exc:
        raise renamed(exc, _SIDES) from exc

    def score_json(item: tuple[int, float]) -> dict[str, Any]:
        return {"index": item[0], "object": "score", "score": item[1]}

    document = {
        "id": id_here(),
        "object": "list",
        "created": int(time.time()),
        "model": values["model"],
        "data": Each(list(enumerate(ranking.scores)), score_json),
        "usage": _usage(ranking),
    }
    return json_response(await encoded(document), headers=values.headers)


async def _reranked(exchange: Exchange, context: Context, *, version: str, texts: bool) -> Response:
    values = await read_body(exchange, context, RERANK)
    documents, shows_texts = values["documents"], values.get("return_documents", texts)
    ranking = await _ranking(exchange, context, values, values["query"], documents)

    def result_json(index: int) -> dict[str, Any]:
        text = {"document": {"text": documents[index]}} if shows_texts else {}
        return {"index": index, "relevance_score": ranking.scores[index], **text}

    usage = ranking.usage
    document = {
        "id": id_here(),
        "model": values["model"],
        "results": Each(ranking.order[: values.get("top_n")], result_json),
        "usage": _usage(ranking),
        "meta": {
            "api_version": {"version": version},
            "tokens": {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens},
        },
    }
    return json_response(await encoded(document), headers=values.headers)


async def _ranking(
    exchange: Exchange, context: Context, values: Values, query: str | tuple[str, ...], documents: tuple[str, ...]
) -> Ranking:
    lease = context.models.lease(values["model"], values.get("timeout_s"))
    async with lease as worker:
        if worker.capabilities.rerank is None:
            able = who_can(context.models, lambda can: can.rerank is not None)
            raise Unsupported(f"this model cannot rank documents{able}", param="model")
        return await worker.rerank(
            query,
            documents,
            max_tokens_per_doc=values.get("max_tokens_per_doc"),
            timeout_s=lease.left_s or values.get("timeout_s"),
            cache_salt=salt_of(exchange.scope, worker.capabilities),
            trace_context=trace_headers(exchange.headers),
        )


def _usage(ranking: Ranking) -> dict[str, int]:
    usage = ranking.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
