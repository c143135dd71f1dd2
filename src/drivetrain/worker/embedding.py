"""What may be embedded: texts or token ids, checked and tokenized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.engine import EmbedItem, EngineInfo
from drivetrain.core.errors import ContextOverflow, InvalidRequest, Unsupported
from drivetrain.core.kinds import check_text
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.prompt import Prompt
from drivetrain.worker.lane import LONG_CHARS, TextThreads
from drivetrain.worker.overflow import refuse_hopeless

EmbedInput = str | tuple[int, ...]

TEXTS_A_JOB = 32


def check_embedding(inputs: Any, timeout_s: float | None, capabilities: Capabilities) -> list[EmbedInput]:
    """What can be told of a request before it has a place: the texts, or what is wrong with it."""
    if not capabilities.embeddings:
        raise Unsupported("this model gives no embeddings", param="input")
    items = embed_inputs(inputs, capabilities.limits)
    if timeout_s is not None:
        PARAMETERS["timeout_s"].kind.judge("timeout_s", timeout_s)
    return items


def embed_inputs(inputs: Any, limits: Limits) -> list[EmbedInput]:
    if not isinstance(inputs, (str, list, tuple)):
        raise InvalidRequest("input must be a text, a list of texts or a list of token id lists", param="input")
    items = [inputs] if isinstance(inputs, str) else list(inputs)
    if not items:
        raise InvalidRequest("there is nothing to embed", param="input")
    if len(items) > limits.max_embed_inputs:
        raise InvalidRequest(
            f"input is {len(items):,} entries; the limit is {limits.max_embed_inputs:,}", param="input"
        )
    made: list[EmbedInput] = []
    for i, item in enumerate(items):
        if not isinstance(item, (str, list, tuple)) or not item:
            raise InvalidRequest(f"input[{i}] must be a text or token ids, and not empty", param=f"input[{i}]")
        if isinstance(item, str):
            check_text(f"input[{i}]", item)
            if len(item) > limits.max_prompt_chars:
                what = f"input[{i}] is {len(item):,} characters; the limit is {limits.max_prompt_chars:,}"
                raise InvalidRequest(what, param=f"input[{i}]")
        made.append(item if isinstance(item, str) else tuple(item))
    return made


async def tokenize_inputs(
    inputs: Sequence[EmbedInput], info: EngineInfo, trace_context: Mapping[str, str] | None, threads: TextThreads
) -> list[EmbedItem]:
    """Some texts a job, so that other requests do not wait for all of a long list."""
    chars = sum(len(item) for item in inputs if isinstance(item, str))
    jobs = [partial(_tokenize, inputs, start, end, info, trace_context) for start, end in _jobs(inputs)]
    made = await threads.lane(chars).run(jobs, admitted=True)
    return [item for items in made for item in items]


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
                f"input[{i}] is {len(ids)} tokens, the context is {limit}",
                prompt_tokens=len(ids),
                limit=limit,
                param=f"input[{i}]",
            )
        if any(type(t) is not int or not 0 <= t < info.vocab_size for t in ids):
            raise InvalidRequest(
                f"input[{i}] holds an id outside the vocabulary of {info.vocab_size}", param=f"input[{i}]"
            )
        items.append(EmbedItem(ids, trace_context))
    return items
