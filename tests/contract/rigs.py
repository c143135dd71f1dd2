"""The engines under the contract: one rig each. A new engine joins by adding its rig to `RIGS`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import pytest

from contract.filling import FillingBytes, filling_gguf
from contract.shallow import shallow_gguf
from drivetrain.core.engine import Engine, ModelSpec, WeightsFormat
from drivetrain.core.errors import Unsupported
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.families.base import Family
from drivetrain.families.registry import FamilyChoice, TemplateFamily
from drivetrain.text.answers.detect import GENERIC, FormChoice
from drivetrain.text.templates import ChatTemplate
from drivetrain.worker import model
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, model_of


class Rig(Protocol):
    """How the suite drives one engine. The model must be able to say at least `LONG` tokens."""

    name: str
    seeded: bool
    """Whether different seeds give different texts (at temperature 1, with enough tokens)."""
    exact: bool
    """Whether an answer does not depend on what else is in its batch. llama.cpp's kernels round by the company."""

    def open(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[EngineWorker]:
        """A started worker with an engine of its own; stopped, and seen to be clean, on leaving. `tracer` is none of
        the settings, but the worker's; `template` is a chat template for a model that reasons; `infill` asks for a
        model whose vocabulary has the tokens for it, which only some rigs have."""
        ...

    def idle(self, worker: EngineWorker) -> bool:
        """Whether the engine has nothing to do any more."""
        ...

    def steps(self, worker: EngineWorker) -> int:
        """How many steps the engine has run since it was loaded."""
        ...

    def fault(
        self, worker: EngineWorker, at_step: int, error: BaseException
    ) -> contextlib.AbstractContextManager[None]:
        """While entered, step `at_step` (from 0) of every request raises `error` inside the engine."""
        ...


NEED_WEIGHTS = frozenset({"llamacpp", "remote-llamacpp"})
"""Rigs that run real weights: their tests are slow ones."""

CANNOT_RANK = frozenset({"remote"})
"""Rigs whose models give no scores of documents: the tests that need them are not collected."""

LONG = 200
PROMPT = "Once upon a time there was a small engine that kept its word."


def score_tolerance(rig: Rig) -> float:
    """How far the scores of one document may be apart. llama.cpp, in 4 bits, gives one up to 0.08 by the company."""
    return 1e-5 if rig.exact else 0.15


@asynccontextmanager
async def started(engine: Engine, spec: ModelSpec, settings: dict[str, Any]) -> AsyncIterator[EngineWorker]:
    tracer, template = settings.pop("tracer", None), settings.pop("template", None)
    worker = EngineWorker(engine, spec, Settings(**settings), tracer=tracer)
    with pytest.MonkeyPatch.context() as patch:
        if template is not None:
            patch.setattr(model, "choose", lambda **_: FamilyChoice(_family(template), "for this test", ()))
            patch.setattr(model, "form_of", lambda _: FormChoice(GENERIC, "for this test", reasons=True))
        await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def _family(template: str) -> Family:
    return TemplateFamily(template=ChatTemplate(template, special_tokens={}, special_strings=frozenset()))


class FakeRig:
    name = "fake"
    seeded = True
    exact = True

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        unsupported = settings.pop("unsupported", frozenset())
        tokenizer = FillingBytes() if settings.pop("infill", False) else None
        script = Script(repeat=True, unsupported=unsupported, step_delay_s=0.001)
        spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
        async with started(FakeEngine(script, tokenizer=tokenizer), spec, settings) as worker:
            yield worker

    def idle(self, worker: EngineWorker) -> bool:
        return self._engine(worker).health().active == 0

    def steps(self, worker: EngineWorker) -> int:
        return self._engine(worker).steps_run

    @contextlib.contextmanager
    def fault(self, worker: EngineWorker, at_step: int, error: BaseException) -> Iterator[None]:
        engine = self._engine(worker)
        before = engine.script
        engine.script = replace(before, fault=error, fault_at_step=at_step)
        try:
            yield
        finally:
            engine.script = before

    def _engine(self, worker: EngineWorker) -> FakeEngine:
        engine = engine_of(worker)
        assert isinstance(engine, FakeEngine)
        return engine


class TransformersRig:
    """The real engine on a tiny random-weight LLaMA with a byte-level vocabulary."""

    name = "transformers"
    seeded = True
    exact = True

    def __init__(self, checkpoint: Callable[[str], Path], model: str = "llama") -> None:
        self._checkpoint = checkpoint
        self._model = model

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        from drivetrain.engines.transformers.engine import TransformersEngine

        unsupported = settings.pop("unsupported", frozenset())
        engine = TransformersEngine()
        if unsupported:
            engine = narrowed(TransformersEngine, unsupported)
        model = "llama-infill" if settings.pop("infill", False) else self._model
        spec = ModelSpec(name=model, path=self._checkpoint(model), format=WeightsFormat.SAFETENSORS)
        async with started(engine, spec, settings) as worker:
            yield worker
        assert not engine._thread.alive

    def idle(self, worker: EngineWorker) -> bool:
        return not self._engine(worker).busy

    def steps(self, worker: EngineWorker) -> int:
        return int(self._engine(worker).steps_run)

    @contextlib.contextmanager
    def fault(self, worker: EngineWorker, at_step: int, error: BaseException) -> Iterator[None]:
        model = model_of(engine_of(worker))
        step = 0

        def fail(*_: Any, **__: Any) -> None:
            nonlocal step
            step += 1
            if step > at_step:
                step = 0
                raise error

        handle = model.register_forward_pre_hook(fail)
        try:
            yield
        finally:
            handle.remove()

    def _engine(self, worker: EngineWorker) -> Any:
        return engine_of(worker)


class LlamaCppRig:
    """The real engine on four layers of the real small model, with a short context so that a worker starts in a second.

    They are computed with one thread, as OMP_NUM_THREADS has it for the others: the test processes share the cores.
    """

    name = "llamacpp"
    seeded = True
    exact = False

    def __init__(self, *, whole: bool = False) -> None:
        """`whole`: all layers of it, and the engine's own number of threads."""
        self._whole = whole

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        from drivetrain.engines.llamacpp.engine import LlamaCppEngine
        from drivetrain.store.store import Store

        unsupported = settings.pop("unsupported", frozenset())
        engine = narrowed(LlamaCppEngine, unsupported) if unsupported else LlamaCppEngine()
        path = Store().pull("smollm2-135m").path
        options = {"context_length": 2048, "slots": 4}
        if not self._whole:
            path, options["threads"] = shallow_gguf(path), 1
        with filling_gguf(path) if settings.pop("infill", False) else contextlib.nullcontext(path) as path:
            spec = ModelSpec(name="smollm2", path=path, format=WeightsFormat.GGUF, options=options)
            async with started(engine, spec, settings) as worker:
                yield worker
        assert not engine.health().alive

    def idle(self, worker: EngineWorker) -> bool:
        return not self._engine(worker).busy

    def steps(self, worker: EngineWorker) -> int:
        return int(self._engine(worker).steps_run)

    @contextlib.contextmanager
    def fault(self, worker: EngineWorker, at_step: int, error: BaseException) -> Iterator[None]:
        """Each choice fails as it hears its token frame number `at_step`."""
        from drivetrain.engines.llamacpp.generation import ChoiceRun

        heard: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        take = ChoiceRun._take

        def fail(choice: Any, *frame: Any) -> None:
            step = heard[choice] = heard.get(choice, -1) + 1
            if step == at_step:
                raise error
            take(choice, *frame)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChoiceRun, "_take", fail)
            yield

    def _engine(self, worker: EngineWorker) -> Any:
        return engine_of(worker)


def narrowed(base: Any, unsupported: frozenset[str]) -> Any:
    class Narrowed(base):  # type: ignore[misc]  # any engine
        """The same engine, declaring less: what it does not declare must be refused by name."""

        async def load(self, spec: Any, progress: Any) -> Any:
            info = await super().load(spec, progress)
            parameters = info.capabilities.parameters - unsupported
            return replace(info, capabilities=replace(info.capabilities, parameters=parameters))

    return Narrowed()


ASKING: dict[str, Any] = {
    "max_reasoning_tokens": 5, "reproducibility": "exact",
    "min_tokens": 2, "n": 2, "seed": 1, "ignore_eos": True, "logprobs": 1, "prompt_logprobs": 1,
    "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "typical_p": 0.5, "top_h": 0.5,
    "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "repetition_penalty": 1.5, "encoder_repetition_penalty": 1.5,
    "presence_penalty": 1.0, "frequency_penalty": 1.0, "no_repeat_ngram_size": 2, "dry_multiplier": 1.0,
    "dry_base": 2.0, "dry_allowed_length": 3, "dry_range": 9, "dry_sequence_breakers": [","],
    "xtc_probability": 0.5, "xtc_threshold": 0.2,
    "encoder_no_repeat_ngram_size": 2, "guidance_scale": 2.0, "exponential_decay_length_penalty": (1, 1.5),
    "logit_bias": {1: 1.0}, "sequence_bias": [((1, 2), 1.0)], "bad_words_ids": [[1]], "suppress_tokens": [1],
    "begin_suppress_tokens": [1], "cache_salt": "a tenant", "constraint": {"choice": ["yes", "no"]},
    "images": ["data:image/png;base64,AAAA"],
}  # fmt: skip
"""For each engine parameter a value that asks for something."""


async def honours(worker: EngineWorker, *names: str) -> bool:
    """Whether the engine declares all of these. Each one that it does not declare must be refused by name."""
    missing = [name for name in names if name not in worker.capabilities.parameters]
    for name in missing:
        extra: dict[str, Any] = {"echo": True} if name == "prompt_logprobs" else {}
        with pytest.raises(Unsupported) as caught:
            await worker.generate(prompt=PROMPT, max_tokens=4, **extra, **{name: ASKING[name]})
        assert caught.value.param == name
    return not missing
