"""The two ways to tell how well a document fits a query: by a head of the model, and by its logits of yes and no."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from drivetrain.core.capabilities import RerankWay
from drivetrain.core.engine import (
    Engine,
    EngineInfo,
    EngineRequest,
    IdLogprobs,
    Pair,
    PairScorer,
    Step,
    TokenStep,
)
from drivetrain.core.errors import ContextOverflow, DrivetrainError, EngineFailed, Unsupported
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.sampling import Sampling
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.families.judging import Question, TrainedQuestion, answer_ids
from drivetrain.worker.admission import Slot
from drivetrain.worker.settle import refuse_hopeless

T = TypeVar("T")

FORCED = 100.0
"""A bias that leaves no other id a chance. Logprobs are of the logits before it."""

ALTERNATIVES = 20
"""The most that every engine gives. If yes and no are among them, one token tells both."""

FURTHEST = 700.0
"""Between two logprobs, or from 0 for a logit: `exp` of more than this overflows."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What goes with the engine's work for one request."""

    spare: Callable[[], Slot | None]
    cache_salt: str | None
    trace_context: Mapping[str, str] | None


class Ranker(ABC):
    """One per loaded model. `pair` is called on text threads, one call at a time for each lane."""

    def __init__(self, info: EngineInfo) -> None:
        self._tokenizer: Tokenizer = info.tokenizer
        self._context = info.capabilities.context_length

    def pair(self, query: str, document: str, *, max_tokens: int | None, param: str) -> Pair:
        """Both as the engine takes them. `max_tokens`: how much of the document counts. `param` names it."""
        limit = self._context
        if max_tokens is not None:
            document = self._cut(document, max_tokens)
        refuse_hopeless(query + document, limit=limit, longest_piece=self._tokenizer.longest_piece, param=param)
        made = self._encoded(query, document)
        if len(made.token_ids) + self._answer > limit:
            answer = f" and the answer {self._answer}" if self._answer else ""
            raise ContextOverflow(
                f"{param} and its query make {len(made.token_ids)} tokens{answer}, but the context holds {limit}; "
                "shorten the text",
                prompt_tokens=len(made.token_ids),
                limit=limit,
                param=param,
            )
        return made

    _answer = 0
    """Tokens that the context must have room for."""

    @property
    @abstractmethod
    def form(self) -> str:
        """As in `Metadata`."""

    @abstractmethod
    def _encoded(self, query: str, document: str) -> Pair: ...

    @abstractmethod
    async def scores(self, engine: Engine, pairs: Sequence[Pair], asked: Asked) -> tuple[tuple[float, ...], int]:
        """From 0 to 1 for each pair, and how many tokens were sampled for them."""

    def _cut(self, document: str, most: int) -> str:
        text = document[: most * self._tokenizer.longest_piece]
        ids = self._tokenizer.encode(Prompt((Segment(text, literal=True),))) if text else []
        if len(ids) <= most:
            return text
        return self._tokenizer.decode(ids[:most], skip_special=False).rstrip("\ufffd")  # half a character


class HeadRanker(Ranker):
    """The sigmoid of the head's logit, whatever a checkpoint says that its authors applied: so all scores are from 0
    to 1, as in the APIs that ask for them, in the same order."""

    def __init__(self, info: EngineInfo, scorer: PairScorer, question: Question) -> None:
        super().__init__(info)
        self._scorer = scorer
        self._question = question if isinstance(question, TrainedQuestion) else None
        """Such a reranker reads its question, even if a head has been put in the place of the two words."""

    @property
    def form(self) -> str:
        return "pair" if self._question is None else self._question.name

    def _encoded(self, query: str, document: str) -> Pair:
        if self._question is not None:
            return Pair(tuple(self._tokenizer.encode(self._question.render(query, document))))
        return self._scorer.encode(query, document)

    async def scores(self, engine: Engine, pairs: Sequence[Pair], asked: Asked) -> tuple[tuple[float, ...], int]:
        logits = await self._scorer.score(pairs)
        if not all(map(math.isfinite, logits)):
            raise EngineFailed("the model gave no usable score for one of these texts")
        return tuple(map(sigmoid, logits)), 0


class AskingRanker(Ranker):
    """Asks of each document a question whose answer begins with yes or no: the score is the softmax of their logits.

    That is exact: the difference of two logprobs of one distribution is that of the logits. The answer is forced to be
    the likelier of the two words. If the other is not among the alternatives, a second one is forced to be that.
    """

    _answer = 1

    def __init__(self, info: EngineInfo, question: Question) -> None:
        super().__init__(info)
        self._question = question
        self._ids: tuple[int, int] | None = None

    @property
    def form(self) -> str:
        return self._question.name

    def _encoded(self, query: str, document: str) -> Pair:
        prompt = self._question.render(query, document)
        if self._ids is None:
            yes, no = answer_ids(self._tokenizer, prompt)
            if yes == no:
                raise Unsupported("this model's vocabulary cannot tell yes from no", param="model")
            self._ids = yes, no
        return Pair(tuple(self._tokenizer.encode(prompt)))

    async def scores(self, engine: Engine, pairs: Sequence[Pair], asked: Asked) -> tuple[tuple[float, ...], int]:
        jobs = [partial(self._judged, engine, pair, asked) for pair in pairs]
        verdicts = await Spreading(jobs, asked.spare).done()
        return tuple(score for score, _ in verdicts), sum(sampled for _, sampled in verdicts)

    async def _judged(self, engine: Engine, pair: Pair, asked: Asked) -> tuple[float, int]:
        assert self._ids is not None
        yes, no = self._ids
        known = await self._logprobs(engine, pair, (yes, no), asked)
        missing = [word for word in (yes, no) if word not in known]
        for word in missing:
            known |= await self._logprobs(engine, pair, (word,), asked)
        return sigmoid(known[yes] - known[no]), 1 + len(missing)

    async def _logprobs(self, engine: Engine, pair: Pair, words: tuple[int, ...], asked: Asked) -> dict[int, float]:
        """Of some ids: of one of these words at least."""
        request = EngineRequest(
            request_id="rerank",
            prompt_ids=pair.token_ids,
            context_length=self._context,
            max_tokens=1,
            sampling=Sampling(temperature=0.0, logit_bias=dict.fromkeys(words, FORCED)),
            seeds=(0,),
            logprobs=ALTERNATIVES,
            cache_salt=asked.cache_salt,
            trace_context=asked.trace_context,
        )
        sink = _FirstToken()
        handle = engine.generate(request, sink)
        try:
            await sink.over.wait()
        finally:
            handle.abort()
            await sink.over.wait()  # until the engine holds nothing of it
        token_id, found = sink.taken()
        if token_id not in words or found.logprob is None:
            raise EngineFailed("the engine did not keep to the answers that it was given")
        return {**dict(found.top), token_id: found.logprob}


class _FirstToken:
    """The sink of one question."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self._found: tuple[int, IdLogprobs] | None = None
        self._error: DrivetrainError | None = None

    def take(self, step: Step) -> None:
        if isinstance(step, TokenStep) and self._found is None and step.token_ids and step.logprobs:
            self._found = step.token_ids[0], step.logprobs[0]

    def close(self, error: DrivetrainError | None) -> None:
        self._error = error
        self.over.set()

    def taken(self) -> tuple[int, IdLogprobs]:
        if self._found is None:
            raise self._error or EngineFailed("the engine ended without an answer")
        return self._found


class Spreading(Generic[T]):
    """Jobs one after the other on the slot that the caller has, and beside them on slots that nobody else wants.

    The first one is alone, so that the others find what is computed of their common beginning.
    """

    def __init__(self, jobs: Sequence[Callable[[], Awaitable[T]]], spare: Callable[[], Slot | None]) -> None:
        self._left = deque(enumerate(jobs))
        self._spare = spare
        self._made: dict[int, T] = {}
        self._group = asyncio.TaskGroup()

    async def done(self) -> list[T]:
        """The results, in the order of the jobs. The first error ends all; nothing runs any more when it is raised."""
        num_jobs = len(self._left)
        try:
            async with self._group:
                while self._left:
                    await self._next()
                    self._widen()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [self._made[index] for index in range(num_jobs)]

    async def _next(self) -> None:
        index, job = self._left.popleft()
        self._made[index] = await job()

    def _widen(self) -> None:
        while self._left and (slot := self._spare()) is not None:
            task = self._group.create_task(self._beside(slot, self._left.popleft()))
            task.add_done_callback(lambda _, slot=slot: slot.release())  # type: ignore[misc]  # it may never begin

    async def _beside(self, slot: Slot, numbered: tuple[int, Callable[[], Awaitable[T]]]) -> None:
        index, job = numbered
        try:
            self._made[index] = await job()
        finally:
            slot.release()
        self._widen()


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-FURTHEST, min(FURTHEST, logit))))


def ranker_for(way: RerankWay | None, info: EngineInfo, question: Question) -> Ranker | None:
    if way is RerankWay.HEAD and info.scorer is not None:
        return HeadRanker(info, info.scorer, question)
    return AskingRanker(info, question) if way is RerankWay.LOGITS else None
