"""The keyword methods of a worker, the same for one in this process and for one behind a handle."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.options import GenerateOptions
from drivetrain.core.parameters import build_request
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Embeddings, Ranking, Result
from drivetrain.core.stats import Stats, ending
from drivetrain.core.worker import EventSink
from drivetrain.telemetry.genai import Operation
from drivetrain.telemetry.ids import id_here
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.worker import logbook
from drivetrain.worker.reranking import RerankCall
from drivetrain.worker.stream import EventStream, Readable, Reader
from drivetrain.worker.tracing import Traces

T = TypeVar("T")


class Face(ABC):
    """Each request is counted and logged once, when it ends, even if it is refused before it has a run."""

    def __init__(self, name: str, stats: Stats, tracer: GenAiTracer | None = None) -> None:
        self._name = name
        self.stats = stats
        self._traces = Traces(tracer, name)

    # What each kind of worker does in its own way. All of these raise at once what can be told without work.

    @abstractmethod
    def _admitted(self, request: GenerateRequest, sink: EventSink) -> Readable:
        """A request that was accepted but has not begun."""

    @abstractmethod
    def _tokenize(
        self,
        text: str | None,
        asked: GenerateRequest | None,
        *,
        add_special_tokens: bool | None,
        request_id: str,
    ) -> Awaitable[list[int]]:
        """`asked` has what goes with the text or takes its place: a suffix, or a chat."""
        ...

    @abstractmethod
    def _detokenize(self, ids: Sequence[int], *, request_id: str) -> Awaitable[str]: ...

    @abstractmethod
    def _embed(
        self, inputs: Any, *, timeout_s: float | None, trace_context: Mapping[str, str] | None, request_id: str
    ) -> Awaitable[Embeddings]: ...

    @abstractmethod
    def _rerank(self, call: RerankCall, *, request_id: str) -> Awaitable[Ranking]: ...

    # Answers

    def stream(self, **request: Unpack[GenerateOptions]) -> EventStream:
        """The events of one answer; see `core/request.py` for the parameters.

        A request that cannot be honoured raises here, at once; work begins when the first event is awaited.

            async for event in worker.stream(messages=[...], max_tokens=64): ...
        """
        return self._open(self._build(request))

    async def generate(self, **request: Unpack[GenerateOptions]) -> Result:
        """The whole answer at once, with the same text as the joined stream."""
        return await self.complete(self._build(request))

    async def complete(self, request: GenerateRequest) -> Result:
        async with self._open(request) as stream:
            while await stream.batch():
                pass
            return stream.result()

    def _build(self, request: Mapping[str, Any]) -> GenerateRequest:
        try:
            return build_request(request)
        except DrivetrainError as exc:
            operation = Operation.CHAT if "messages" in request else Operation.TEXT_COMPLETION
            given_id = request.get("request_id")
            request_id = given_id if given_id and isinstance(given_id, str) else id_here()
            self._refuse(exc, request_id, operation, request.get("trace_context"))
            raise

    def _open(self, request: GenerateRequest) -> EventStream:
        reader = Reader()
        return EventStream(self._admitted(request, reader), reader)

    def _refuse(
        self, error: DrivetrainError, request_id: str, operation: Operation, parent: Mapping[str, str] | None
    ) -> None:
        """Count, log and trace the end of a request that has no run."""
        error.request_id = request_id
        self._traces.refuse(operation, error, parent)
        self.stats.endings[error.code] += 1
        logbook.refused(request_id, self._name, error)

    # Tokens and vectors

    async def count_tokens(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> int:
        """The number of tokens in a prompt, or in a chat once it is rendered with these tools."""
        return len(await self.tokenize(text, messages=messages, tools=tools))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        suffix: str | None = None,
        messages: Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        reasoning_effort: str | None = None,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """The ids of a prompt, perhaps with a suffix, or of a chat once it is rendered with these tools and variables.

        `add_special_tokens` says whether the tokenizer adds its own around the text, such as a BOS. None does as for an
        answer: yes for a prompt, and what the prompt form says for a chat.
        """
        if (text is None) == (messages is None):
            raise InvalidRequest("give either a text or messages", param="text")
        said = {
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "reasoning_effort": reasoning_effort,
        }
        if messages is None and (name := next((name for name, value in said.items() if value), None)):
            raise InvalidRequest(f"{name} goes with messages, not with a text", param=name)
        if messages is not None and suffix:
            raise InvalidRequest("suffix goes with a text, not with messages", param="suffix")
        beside = suffix or messages is not None
        asked = build_request({"suffix": suffix, "messages": messages, **said}) if beside else None
        request_id = id_here()
        work = self._tokenize(text, asked, add_special_tokens=add_special_tokens, request_id=request_id)

        def log(ids: list[int] | None, error: BaseException | None, seconds: float) -> None:
            logbook.tokenized(request_id, self._name, error, len(ids or ()), seconds)

        return await self._finish(work, request_id, log)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, with special tokens by name."""
        request_id = id_here()
        work = self._detokenize(ids, request_id=request_id)

        def log(text: str | None, error: BaseException | None, seconds: float) -> None:
            logbook.tokenized(request_id, self._name, error, 0 if text is None else len(ids), seconds)

        return await self._finish(work, request_id, log)

    async def embed(
        self,
        inputs: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        timeout_s: float | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> Embeddings:
        """A unit vector for each text (or list of token ids). `metadata.pooling` says how it is pooled."""
        request_id = id_here()
        work = self._embed(inputs, timeout_s=timeout_s, trace_context=trace_context, request_id=request_id)

        def log(embeddings: Embeddings | None, error: BaseException | None, seconds: float) -> None:
            logbook.embedded(request_id, self._name, error, embeddings, seconds)

        embeddings = await self._finish(work, request_id, log)
        self.stats.prompt_tokens += embeddings.usage.prompt_tokens
        return embeddings

    async def rerank(
        self,
        query: str | Sequence[str],
        documents: Sequence[str],
        *,
        max_tokens_per_doc: int | None = None,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> Ranking:
        """How well each document fits the query, or, of as many queries as documents, its own one; from 0 to 1.

        A document that does not fit into the context is refused, unless `max_tokens_per_doc` says after how many
        tokens of it the rest may be left out. `capabilities.rerank` says by which way the scores come about.
        """
        request_id = id_here()
        call = RerankCall(query, documents, max_tokens_per_doc, timeout_s, cache_salt, trace_context)
        work = self._rerank(call, request_id=request_id)

        def log(ranking: Ranking | None, error: BaseException | None, seconds: float) -> None:
            logbook.reranked(request_id, self._name, error, ranking, seconds)

        ranking = await self._finish(work, request_id, log)
        self.stats.prompt_tokens += ranking.usage.prompt_tokens
        self.stats.completion_tokens += ranking.usage.completion_tokens
        return ranking

    async def _finish(
        self, work: Awaitable[T], request_id: str, log: Callable[[T | None, BaseException | None, float], None]
    ) -> T:
        """Await the work; count and log how it ends."""
        began = time.monotonic()
        try:
            result = await work
        except BaseException as exc:
            if isinstance(exc, DrivetrainError):
                exc.request_id = request_id
            self.stats.endings[ending(exc)] += 1
            log(None, exc, time.monotonic() - began)
            raise
        self.stats.endings[ending(None)] += 1
        log(result, None, time.monotonic() - began)
        return result
