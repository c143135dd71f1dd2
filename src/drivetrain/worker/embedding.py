"""Requests for vectors: what is checked before they are queued, and how their texts are tokenized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.budget import check_vectors
from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.engine import EmbedItem, Engine, EngineInfo
from drivetrain.core.errors import ContextOverflow, InvalidRequest, Unsupported
from drivetrain.core.kinds import check_text
from drivetrain.core.parameters import PARAMETERS, at_most
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import Embeddings, Usage
from drivetrain.worker.run import Host
from drivetrain.worker.settle import refuse_hopeless
from drivetrain.worker.text_threads import TextThreads
from drivetrain.worker.texts_run import TextsRun, in_jobs
from drivetrain.worker.tracing import NoTrace, TextsTrace

EmbedInput = str | tuple[int, ...]


class Embedding(TextsRun[EmbedItem, Embeddings]):
    what, phase = "embeddings", "embed"

    def __init__(
        self,
        inputs: Sequence[EmbedInput],
        *,
        model: str,
        host: Host,
        threads: TextThreads,
        trace: TextsTrace | NoTrace,
    ) -> None:
        super().__init__(host, trace)
        self._inputs = inputs
        self._model = model
        self._threads = threads

    async def _prepare(self, info: EngineInfo) -> list[EmbedItem]:
        inputs, context = self._inputs, self._trace.context
        lane = self._threads.lane(sum(len(item) for item in inputs if isinstance(item, str)))
        return await in_jobs(lane, [len(item) for item in inputs], lambda i: _tokenized(inputs[i], i, info, context))

    async def _compute(self, engine: Engine, items: Sequence[EmbedItem]) -> Embeddings:
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


def _tokenized(item: EmbedInput, i: int, info: EngineInfo, trace_context: Mapping[str, str] | None) -> EmbedItem:
    limit, param = info.capabilities.context_length, f"input[{i}]"
    if isinstance(item, str):
        refuse_hopeless(item, limit=limit, longest_piece=info.tokenizer.longest_piece, param=param)
    ids = tuple(info.tokenizer.encode(Prompt.raw(item))) if isinstance(item, str) else item
    if not ids:
        raise InvalidRequest(f"{param} has no tokens", param=param)
    if len(ids) > limit:
        what = f"{param} has {len(ids)} tokens, but the context holds {limit}"
        raise ContextOverflow(what, prompt_tokens=len(ids), limit=limit, param=param)
    if any(type(t) is not int or not 0 <= t < info.vocab_size for t in ids):
        raise InvalidRequest(f"{param} contains an id outside the vocabulary of {info.vocab_size}", param=param)
    return EmbedItem(ids, trace_context)
