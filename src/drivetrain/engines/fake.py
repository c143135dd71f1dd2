"""A deterministic engine without weights that follows a script: its text, its delays and its faults.

It ships for the contract suite, the overhead benchmarks and anybody who tests an application against Drivetrain. Its
step loop is one task that gives every running request one step per round, as a batching engine does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass, field, replace
from typing import Any

from drivetrain.core.capabilities import Capabilities, RerankWay
from drivetrain.core.constraint import Matcher
from drivetrain.core.engine import (
    EmbedItem,
    EngineInfo,
    EngineRequest,
    Health,
    IdLogprobs,
    ModelSpec,
    Pair,
    Progress,
    PromptStep,
    StepSink,
    TokenStep,
)
from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidRequest, LoadFailed
from drivetrain.core.parameters import ENGINE_PARAMETERS, TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.results import DeviceMemory, EngineCounts, FinishReason
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.base.channel import StepChannel
from drivetrain.text.byte_tokenizer import ByteTokenizer

_CLOSING = tuple(b'}]"')

HONOURED = frozenset(
    {
        "n", "seed", "reproducibility", "ignore_eos", "min_tokens", "logprobs", "prompt_logprobs", "temperature",
        "cache_salt", "constraint",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the fake says and when it breaks. Only `reply` looks at a request's prompt.

    It says `text` (or `token_ids`) once, with an EOS behind it, or with `repeat` again and again until a limit.
    """

    text: str = "The quick brown fox jumps over the lazy dog. "
    token_ids: tuple[int, ...] | None = None
    reply: Callable[[EngineRequest], Sequence[int]] | None = None
    repeat: bool = False
    ids_per_step: int = 1
    first_delay_s: float = 0.0
    step_delay_s: float = 0.0
    fault: BaseException | None = None
    fault_at_step: int = 0
    hang_at_step: int | None = None
    no_output: bool = False
    """End without a token and without a reason, as broken engines do."""
    load_error: Exception | None = None
    vision: bool = False
    rerank: bool = True
    max_concurrency: int = 64
    context_length: int = 4096
    unsupported: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Running:
    request: EngineRequest
    channel: StepChannel
    sources: list[list[int]]
    likeliest: list[int]
    position: list[int]
    open: set[int]
    limit: int
    started: float
    matchers: list[Matcher]
    """One per choice, if the request has a grammar."""
    off_script: set[int] = field(default_factory=set)
    """Choices whose script the grammar did not allow."""
    steps: int = 0
    prompt_sent: bool = False


class FakeEngine:
    """`steps_run` counts the rounds of the step loop, so a test can see that it has come to rest."""

    def __init__(self, script: Script | None = None, *, tokenizer: Tokenizer | None = None) -> None:
        self.script = script or Script()
        self.steps_run = 0
        self._tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self._running: list[_Running] = []
        self._loop_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self._dead: str = ""
        self._mask_s = 0.0
        self._last_progress = time.monotonic()

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        progress("loading the fake", 0.5)
        if self.script.load_error is not None:
            raise LoadFailed(f"the fake was told to fail: {self.script.load_error}") from self.script.load_error
        self._loop_task = asyncio.create_task(self._loop(), name="fake-engine")
        progress("loaded", 1.0)
        eos = self._tokenizer.id_of(self._tokenizer.eos_token or "")
        engine_side = (HONOURED | ({"images"} if self.script.vision else frozenset())) & ENGINE_PARAMETERS
        return EngineInfo(
            engine="fake",
            capabilities=Capabilities(
                parameters=(WORKER_PARAMETERS | TOKEN_PARAMETERS | engine_side) - self.script.unsupported,
                vision=self.script.vision,
                embeddings=True,
                rerank=RerankWay.HEAD if self.script.rerank else None,
                context_length=self.script.context_length,
                max_concurrency=self.script.max_concurrency,
            ),
            tokenizer=self._tokenizer,
            eos_ids=frozenset() if eos is None else frozenset({eos}),
            vocab_size=self._tokenizer.vocab_size,
            architecture="fake",
            device="none",
            dtype="none",
            embedding_size=8,
            pooling="mean",
            scorer=self if self.script.rerank else None,
        )

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        channel = StepChannel(sink, on_abort=self._wake.set, on_finish=lambda index: self._finish(running, index))
        n = len(request.seeds)
        text = self._text(request)
        running = _Running(
            request=request,
            channel=channel,
            sources=[self._with_eos(_rotated(text, request, seed)) for seed in request.seeds],
            likeliest=self._with_eos(text),
            position=[0] * n,
            open=set(range(n)),
            limit=request.max_tokens if request.max_tokens is not None else request.context_length,
            started=time.monotonic(),
            matchers=[request.grammar.matcher() for _ in range(n)] if request.grammar is not None else [],
        )
        if self._closed or self._dead:
            channel.release(EngineFailed(self._dead or "the engine is closed"))
            return channel
        self._running.append(running)
        self._wake.set()
        return channel

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        if self._closed or self._dead:
            raise EngineFailed(self._dead or "the engine is closed")
        return [_unit_vector(item.token_ids) for item in items]

    def encode(self, first: str, second: str) -> Pair:
        """As in `PairScorer`."""
        one, two = (self._tokenizer.encode(Prompt((Segment(text, literal=True),))) for text in (first, second))
        return Pair((*one, *two), (*(0 for _ in one), *(1 for _ in two)))

    async def score(self, pairs: Sequence[Pair]) -> list[float]:
        """The more of the first text's words the second one has, the higher."""
        if self._closed or self._dead:
            raise EngineFailed(self._dead or "the engine is closed")
        return [_overlap(pair) for pair in pairs]

    def memory(self) -> tuple[DeviceMemory, ...]:
        return ()

    def health(self) -> Health:
        alive = not self._closed and not self._dead
        counts = EngineCounts(mask_s=self._mask_s)
        return Health(alive, len(self._running), self._last_progress, self._dead, counts=counts)

    def die(self, why: str = "the fake died") -> None:
        """Like an engine whose process was killed: all requests end, and no new one starts."""
        self._dead = why
        for running in self._running:
            running.channel.release(EngineFailed(why))
        self._running.clear()

    async def close(self) -> None:
        self._closed = True
        for running in self._running:
            running.channel.abort()
            running.channel.release()
        self._running.clear()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
            self._loop_task = None

    async def _loop(self) -> None:
        while True:
            if not self._running:
                self._wake.clear()
                await self._wake.wait()
            self._step()
            await asyncio.sleep(self.script.step_delay_s)

    def _step(self) -> None:
        self.steps_run += 1
        ended = False
        now = time.monotonic()
        for running in tuple(self._running):
            self._advance(running, now)
            ended |= not running.open
        if ended:
            self._running = [r for r in self._running if r.open]

    def _advance(self, running: _Running, now: float) -> None:
        """One step of one request. What it raises ends this request and no other."""
        script, channel = self.script, running.channel
        if channel.aborted:
            running.open.clear()
            channel.release()
            return
        if script.hang_at_step == running.steps or now < running.started + script.first_delay_s:
            return
        try:
            if script.fault is not None and running.steps == script.fault_at_step:
                raise script.fault
            if script.no_output:
                running.open.clear()
            else:
                self._emit(running)
        except Exception as exc:  # noqa: BLE001 - the script may raise anything; it is translated here
            running.open.clear()
            channel.release(_translated(exc))
            return
        running.steps += 1
        self._last_progress = now
        if not running.open:
            channel.release()

    def _emit(self, running: _Running) -> None:
        if not running.prompt_sent:
            running.prompt_sent = True
            running.channel.push(self._prompt_step(running.request))
        for index in sorted(running.open):
            step = self._next_step(running, index)
            if step.reason is not None:
                running.open.discard(index)
            running.channel.push(step)

    def _prompt_step(self, request: EngineRequest) -> PromptStep:
        ids = request.prompt_ids
        if request.media is not None:
            ids = tuple(b for _ in request.media.images for b in (0,) * 16) + tuple(request.media.prompt.text.encode())
        logprobs = None
        if request.prompt_logprobs is not None:
            each = {i: self._logprobs(i, i, request.prompt_logprobs) for i in set(ids)}
            logprobs = (IdLogprobs(None), *(each[i] for i in ids[1:]))[: len(ids)]
        return PromptStep(ids if request.media is not None else None, logprobs)

    def _next_step(self, running: _Running, index: int) -> TokenStep:
        request, source = running.request, running.sources[index]
        if self.script.ids_per_step == 1 and request.logprobs is None and not running.matchers:
            at = running.position[index]
            token_id = source[at % len(source)]
            if at + 1 < running.limit and token_id not in request.stop_ids:  # the common case
                running.position[index] = at + 1
                return TokenStep(index, (token_id,))
        ids: list[int] = []
        begin = running.position[index]
        reason = None
        for at in range(begin, min(begin + self.script.ids_per_step, running.limit)):
            token_id = source[at % len(source)]
            if running.matchers:
                token_id = self._follow(running, index, at)
            elif token_id in request.stop_ids and at < request.min_tokens:
                token_id = source[0] if source[0] not in request.stop_ids else ord("x")
            ids.append(token_id)
            if token_id in request.stop_ids:
                reason = FinishReason.STOP
                break
        running.position[index] = end = begin + len(ids)
        if reason is None and end >= running.limit:
            reason = FinishReason.LENGTH
        logprobs = None
        if request.logprobs is not None:
            likeliest = running.likeliest
            logprobs = tuple(
                self._logprobs(i, likeliest[at % len(likeliest)], request.logprobs) for at, i in enumerate(ids, begin)
            )
        return TokenStep(index, tuple(ids), logprobs, reason)

    def _follow(self, running: _Running, index: int, at: int) -> int:
        """The greedy answer, as long as the grammar allows it; from then on the shortest way to an end."""
        request, matcher = running.request, running.matchers[index]
        scripted = running.likeliest[at % len(running.likeliest)]
        if index not in running.off_script:
            if scripted in request.stop_ids and matcher.may_end and at >= request.min_tokens:
                return scripted
            if scripted not in request.stop_ids and scripted in self._allowed(matcher):
                matcher.take((scripted,))
                return scripted
            running.off_script.add(index)
        if matcher.may_end and request.stop_ids and at >= request.min_tokens:
            return min(request.stop_ids)
        allowed = self._allowed(matcher)
        token_id = next((i for i in (*_CLOSING, *allowed) if i in allowed and i not in request.stop_ids), None)
        if token_id is None:
            message = f"the constraint cannot be followed any further: {matcher.fault}"
            raise InvalidRequest(message, param="constraint")
        matcher.take((token_id,))
        return token_id

    def _allowed(self, matcher: Matcher) -> list[int]:
        mask = bytearray(-(-self._tokenizer.vocab_size // 32) * 4)
        began = time.thread_time()
        matcher.write_mask(addressof(c_char.from_buffer(mask)), len(mask))
        self._mask_s += time.thread_time() - began
        return [i for i in range(self._tokenizer.vocab_size) if mask[i // 8] >> i % 8 & 1]

    def _text(self, request: EngineRequest) -> list[int]:
        """The greedy answer, without its end."""
        script = self.script
        if script.reply is not None:
            return list(script.reply(request))
        if script.token_ids is not None:
            return list(script.token_ids)
        return list(script.text.encode())

    def _with_eos(self, ids: list[int]) -> list[int]:
        eos = self._tokenizer.id_of(self._tokenizer.eos_token or "")
        return ids if self.script.repeat or eos is None else [*ids, eos]

    def _finish(self, running: _Running, index: int) -> None:
        running.open.discard(index)
        if not running.open and running in self._running:
            self._running.remove(running)
            running.channel.release()

    def _logprobs(self, token_id: int, likeliest: int, count: int) -> IdLogprobs:
        """One token has most of the probability, whatever is sampled; after it come the ids from 32 on."""

        def of(i: int) -> float:
            return -0.5 if i == likeliest else -3.5 - (i - 32) % self._tokenizer.vocab_size / 8

        others = [i for i in range(32, 32 + count) if i != likeliest]
        return IdLogprobs(of(token_id), tuple((i, of(i)) for i in [likeliest, *others][:count]))


def _translated(exc: Exception) -> DrivetrainError:
    if isinstance(exc, (EngineFailed, InvalidRequest)):
        return exc
    error = EngineFailed(f"the fake was told to fail: {exc}")
    error.__cause__ = exc
    return error


def _rotated(ids: list[int], request: EngineRequest, seed: int) -> list[int]:
    """Above temperature 0, the seed rotates the text."""
    if request.sampling.greedy or len(ids) < 2:
        return ids
    shift = ((seed + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 32) % len(ids)
    return ids[shift:] + ids[:shift]


def _unit_vector(ids: Sequence[int]) -> tuple[float, ...]:
    rng = random.Random(repr(list(ids)))  # noqa: S311 - not for secrets
    values = [rng.gauss(0, 1) for _ in range(8)]
    norm = sum(v * v for v in values) ** 0.5
    return tuple(v / norm for v in values)


def _overlap(pair: Pair) -> float:
    types = pair.type_ids or (0,) * len(pair.token_ids)
    texts = (bytes(i % 256 for i, of in zip(pair.token_ids, types, strict=True) if of == which) for which in (0, 1))
    wanted, found = (set(text.split()) for text in texts)
    return 6 * len(wanted & found) / max(1, len(wanted)) - 3


def scripted(*, tokenizer: Tokenizer | None = None, **changes: Any) -> FakeEngine:
    """A fake with a script that differs from the default one in these fields."""
    return FakeEngine(replace(Script(), **changes), tokenizer=tokenizer)
