"""Requests for scores of documents: what is checked before they are queued, and how they are carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.engine import Engine, EngineInfo, Pair
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Integer, ListOf, String
from drivetrain.core.parameters import PARAMETERS, at_most
from drivetrain.core.results import Ranking, Usage
from drivetrain.worker.rankers import Asked, Ranker
from drivetrain.worker.run import Host
from drivetrain.worker.text_threads import TextThreads
from drivetrain.worker.texts_run import TextsRun, in_jobs
from drivetrain.worker.tracing import NoTrace, TextsTrace

Texts = tuple[tuple[str, str], ...]
"""Each document with its query, the query first."""


@dataclass(frozen=True, slots=True)
class RerankCall:
    """What was asked for, not yet checked. One query for all documents, or one for each."""

    query: Any
    documents: Any
    max_tokens_per_doc: int | None = None
    timeout_s: float | None = None
    cache_salt: str | None = None
    trace_context: Mapping[str, str] | None = None

    def check(self, capabilities: Capabilities) -> Texts:
        """Raises what can be told before the call is queued."""
        if capabilities.rerank is None:
            raise Unsupported("this model cannot rank documents", param="documents")
        limits = capabilities.limits
        texts = _texts(self.query, self.documents, limits)
        if self.max_tokens_per_doc is not None:
            Integer(1).judge("max_tokens_per_doc", self.max_tokens_per_doc)
        for name, value in (("timeout_s", self.timeout_s), ("cache_salt", self.cache_salt)):
            if value is not None:
                PARAMETERS[name].kind.judge(name, value)
        if self.timeout_s is not None:
            at_most("timeout_s", self.timeout_s, limits.max_timeout_s)
        return texts


class Reranking(TextsRun[Pair, Ranking]):
    what, phase = "scores", "score"

    def __init__(
        self,
        call: RerankCall,
        texts: Texts,
        *,
        model: str,
        host: Host,
        threads: TextThreads,
        trace: TextsTrace | NoTrace,
    ) -> None:
        super().__init__(host, trace)
        self._call = call
        self._texts = texts
        self._model = model
        self._threads = threads

    async def _prepare(self, info: EngineInfo) -> list[Pair]:
        ranker, lengths = self._ranker, [len(query) + len(document) for query, document in self._texts]

        def pair(i: int) -> Pair:
            query, document = self._texts[i]
            return ranker.pair(query, document, max_tokens=self._call.max_tokens_per_doc, param=f"documents[{i}]")

        return await in_jobs(self._threads.lane(sum(lengths)), lengths, pair)

    async def _compute(self, engine: Engine, items: Sequence[Pair]) -> Ranking:
        """Equal ones are computed once: in another batch, the last bits of a score could differ."""
        asked = Asked(self._host.admission.spare, self._call.cache_salt, self._trace.context)
        different = list(dict.fromkeys(items))
        scores, sampled = await self._ranker.scores(engine, different, asked)
        known = dict(zip(different, scores, strict=True))
        usage = Usage(sum(len(item.token_ids) for item in items), sampled)
        return Ranking(self._model, tuple(known[item] for item in items), usage)

    @property
    def _ranker(self) -> Ranker:
        ranker = self._host.ranker
        assert ranker is not None, "it was checked"
        return ranker


def _texts(query: Any, documents: Any, limits: Limits) -> Texts:
    if not isinstance(documents, (list, tuple)):
        raise InvalidRequest("documents must be a list of strings", param="documents")
    if len(documents) > limits.max_embed_inputs:
        what = f"documents has {len(documents):,} entries; the limit is {limits.max_embed_inputs:,}"
        raise InvalidRequest(what, param="documents")
    found = ListOf(String(max_chars=limits.max_prompt_chars), non_empty=True).judge("documents", documents)
    whole = String(non_empty=True, max_chars=limits.max_prompt_chars)
    if isinstance(query, (list, tuple)):
        if len(query) != len(found):
            what = f"query has {len(query):,} entries and documents {len(found):,}; send one query, or one for each"
            raise InvalidRequest(what, param="query")
        queries = ListOf(whole).judge("query", query)
    else:
        queries = (whole.judge("query", query),) * len(found)
    if (chars := sum(map(len, queries)) + sum(map(len, found))) > limits.max_prompt_chars:
        what = f"the documents, each with its query, have {chars:,} characters; the limit is"
        raise InvalidRequest(f"{what} {limits.max_prompt_chars:,}, so send fewer at a time", param="documents")
    return tuple(zip(queries, found, strict=True))
