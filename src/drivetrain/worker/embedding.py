"""One request for vectors, under the same rules as one for text: its checks, its tokenizing, its one ending."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from drivetrain.core.budget import check_vectors
from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.engine import EmbedItem, EngineInfo
from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    Unsupported,
    bug,
)
from drivetrain.core.kinds import check_text
from drivetrain.core.parameters import PARAMETERS, at_most
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import Embeddings, Usage
from drivetrain.core.stats import Times
from drivetrain.worker.admission import ATTEMPTS, Slot
from drivetrain.worker.run import Host
from drivetrain.worker.settle import refuse_hopeless
from drivetrain.worker.text_threads import LONG_CHARS, TextThreads
from drivetrain.worker.tracing import EmbeddingTrace, NoTrace

EmbedInput = str | tuple[int, ...]

TEXTS_A_JOB = 32

_log = logging.getLogger(__name__)


class Embedding:
    """Ends with its vectors, an error, its deadline or an interrupt. Its slot is free once the engine releases it."""

    def __init__(
        self,
        inputs: Sequence[EmbedInput],
        *,
        model: str,
        host: Host,
        threads: TextThreads,
        trace: EmbeddingTrace | NoTrace,
    ) -> None:
        self.times = Times()
        self._inputs = inputs
        self._model = model
        self._host = host
        self._threads = threads
        self._trace = trace
        self._attempts = 1
        self._outcome: Embeddings | BaseException | None = None
        self._ended = asyncio.Event()
        self.work = asyncio.create_task(self._work(), name="drivetrain-embed")
        """Lasts until the engine has released the request."""

    async def vectors(self, timeout_s: float) -> Embeddings:
        """Returns or raises once the request has ended; then the engine has released it, unless it was interrupted."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"the embeddings did not finish within {timeout_s:g} seconds") from None
        finally:
            self.work.cancel()
            await self._ended.wait()
            if self.times.admitted is not None:
                self._host.stats.request_s.observe(time.monotonic() - self.times.entered)
        return self._taken()

    def interrupt(self, error: DrivetrainError) -> None:
        """End it at once, without waiting. Does nothing if it has ended."""
        self._end(error)

    @property
    def may_start_again(self) -> bool:
        is_wanted = not self._ended.is_set() and not self.work.cancelling()
        return is_wanted and self._attempts < ATTEMPTS

    def _end(self, outcome: Embeddings | BaseException) -> None:
        if not self._ended.is_set():
            self._outcome = outcome
            self._ended.set()

    def _taken(self) -> Embeddings:
        """Only once: the traceback of a raised outcome holds frames that hold this object."""
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, Embeddings):
                return outcome
            assert outcome is not None
            raise outcome
        finally:
            del outcome

    async def _work(self) -> None:
        try:
            self._end(await self._compute())
        except asyncio.CancelledError:
            self._end(Cancelled("the request was cancelled"))
        except Exception as exc:  # noqa: BLE001 - `vectors` raises it
            self._end(exc if isinstance(exc, DrivetrainError) else bug(exc))
        except BaseException as exc:  # noqa: BLE001 - as above
            self._end(exc)

    async def _compute(self) -> Embeddings:
        admission, enter = self._host.admission, self._host.admission.enter
        self._trace.phase("queue")
        while True:
            slot = await enter().wait()
            try:
                return await self._on(slot)
            except (EngineFailed, Cancelled) as exc:
                if not self.may_start_again or not admission.goes_on(slot, exc):
                    raise
                _log.warning("restarting embeddings on another engine: %s", exc.message)
                self._trace.restarted(exc)
            finally:
                slot.release()
            self._host.engine_failed()
            self._attempts += 1
            self.times.admitted = self.times.prepared = None
            enter = admission.enter_again

    async def _on(self, slot: Slot) -> Embeddings:
        host, trace, times = self._host, self._trace, self.times
        engine, info = host.engine, host.info
        times.admitted = time.monotonic()
        if self._attempts == 1:
            host.stats.count_admitted(times)
        trace.phase("prepare")
        items = await tokenize_inputs(self._inputs, info, trace.context, self._threads)
        if not slot.is_good:
            raise EngineFailed("the engine failed while preparing the texts")
        times.prepared = time.monotonic()
        trace.phase("embed")
        vectors = await engine.embed(items)
        return Embeddings(self._model, tuple(vectors), Usage(prompt_tokens=sum(len(item.token_ids) for item in items)))


def check_embedding(
    inputs: Any, timeout_s: float | None, capabilities: Capabilities, *, size: int | None
) -> list[EmbedInput]:
    """Checks a request before it is queued. `size` is how many numbers a vector has, or None if unknown."""
    if not capabilities.embeddings:
        raise Unsupported("this model does not produce embeddings", param="input")
    items = embed_inputs(inputs, capabilities.limits)
    if timeout_s is not None:
        PARAMETERS["timeout_s"].kind.judge("timeout_s", timeout_s)
        at_most("timeout_s", timeout_s, capabilities.limits.max_timeout_s)
    check_vectors(len(items), size, capabilities.limits)
    return items


def embed_inputs(inputs: Any, limits: Limits) -> list[EmbedInput]:
    if not isinstance(inputs, (str, list, tuple)):
        raise InvalidRequest("input must be a string, a list of strings or a list of token id lists", param="input")
    items = [inputs] if isinstance(inputs, str) else list(inputs)
    if not items:
        raise InvalidRequest("input is empty; send at least one text", param="input")
    if len(items) > limits.max_embed_inputs:
        raise InvalidRequest(
            f"input has {len(items):,} entries; the limit is {limits.max_embed_inputs:,}", param="input"
        )
    checked: list[EmbedInput] = []
    for i, item in enumerate(items):
        if not isinstance(item, (str, list, tuple)) or not item:
            raise InvalidRequest(f"input[{i}] must be a string or token ids, and not empty", param=f"input[{i}]")
        if isinstance(item, str):
            check_text(f"input[{i}]", item)
            if len(item) > limits.max_prompt_chars:
                what = f"input[{i}] has {len(item):,} characters; the limit is {limits.max_prompt_chars:,}"
                raise InvalidRequest(what, param=f"input[{i}]")
        checked.append(item if isinstance(item, str) else tuple(item))
    return checked


async def tokenize_inputs(
    inputs: Sequence[EmbedInput], info: EngineInfo, trace_context: Mapping[str, str] | None, threads: TextThreads
) -> list[EmbedItem]:
    """In jobs of a few texts each, so that other requests do not wait for a whole long list."""
    chars = sum(len(item) for item in inputs if isinstance(item, str))
    jobs = [partial(_tokenize, inputs, start, end, info, trace_context) for start, end in _jobs(inputs)]
    batches = await threads.lane(chars).run(jobs, admitted=True)
    return [item for batch in batches for item in batch]


def _jobs(inputs: Sequence[EmbedInput]) -> Iterator[tuple[int, int]]:
    start = chars = 0
    for i, item in enumerate(inputs):
        if i - start >= TEXTS_A_JOB or (i > start and chars + len(item) > LONG_CHARS):
            yield start, i
            start, chars = i, 0
        chars += len(item)
    yield start, len(inputs)


def _tokenize(
    inputs: Sequence[EmbedInput], start: int, end: int, info: EngineInfo, trace_context: Mapping[str, str] | None
) -> list[EmbedItem]:
    items = []
    limit = info.capabilities.context_length
    for i, item in enumerate(inputs[start:end], start):
        if isinstance(item, str):
            longest = info.tokenizer.longest_piece
            refuse_hopeless(item, limit=limit, longest_piece=longest, param=f"input[{i}]")
        ids = tuple(info.tokenizer.encode(Prompt.raw(item))) if isinstance(item, str) else item
        if not ids:
            raise InvalidRequest(f"input[{i}] has no tokens", param=f"input[{i}]")
        if len(ids) > limit:
            raise ContextOverflow(
                f"input[{i}] has {len(ids)} tokens, but the context holds {limit}",
                prompt_tokens=len(ids),
                limit=limit,
                param=f"input[{i}]",
            )
        if any(type(t) is not int or not 0 <= t < info.vocab_size for t in ids):
            raise InvalidRequest(
                f"input[{i}] contains an id outside the vocabulary of {info.vocab_size}", param=f"input[{i}]"
            )
        items.append(EmbedItem(ids, trace_context))
    return items
