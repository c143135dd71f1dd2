"""From a model's files to a ready stepper: loading, the self-test, and the memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineInfo, ModelSpec, Progress
from drivetrain.engines.checkpoint.gguf import safetensors_made
from drivetrain.engines.checkpoint.pooling import stated_pooling
from drivetrain.engines.native import describe
from drivetrain.engines.native.compilation import Compilation, step_budget
from drivetrain.engines.native.embedding import NativeEmbedder
from drivetrain.engines.native.kv import memory
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.kv.prefix import PrefixIndex
from drivetrain.engines.native.kv.rows import KvRows, capacities
from drivetrain.engines.native.model import loading, selftest
from drivetrain.engines.native.model.runner import Runner, plain_pass
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.settings import NativeSettings
from drivetrain.engines.native.stepper import Stepper


@dataclass(frozen=True, slots=True)
class Assembled:
    info: EngineInfo
    stepper: Stepper
    embedder: NativeEmbedder
    device: Any
    compilation: Compilation


def assemble(spec: ModelSpec, progress: Progress) -> Assembled:
    settings = NativeSettings.of(spec.options)
    pooling = settings.pooling or stated_pooling(safetensors_made(spec) or spec.path)
    loaded = loading.load(spec, settings, progress)
    model = loaded.model
    progress("checking that a batch says what one text says", None)
    compilation = Compilation(loaded, settings)
    forward = compilation.found()
    if forward is None:
        forward = plain_pass(model)
        selftest.check(loaded, forward)
    cache = KvCache(loaded.layers, dtype=model.dtype, device=model.device)
    budget = memory.kv_budget(settings.kv_cache_gb, model.device)
    context = memory.fitting_context(
        loaded.context_length, cache.token_bytes, budget, stated=settings.context_length is not None
    )
    prefixes = PrefixIndex() if settings.prefix_cache else None
    rows = KvRows(
        capacities(context),
        token_bytes=cache.token_bytes,
        budget_bytes=budget,
        evicted=prefixes.forget if prefixes is not None else lambda slot: None,
    )
    scheduler = Scheduler(rows, prefixes, max_batch=settings.max_batch, budget=step_budget(loaded))
    progress("loaded", 1.0)
    return Assembled(
        describe.of_loaded(loaded, context, settings.max_batch, pooling, compilation.note),
        Stepper(scheduler, Runner(model, loaded.stage, cache, forward)),
        NativeEmbedder(model, loaded.stage, loaded.layers, pooling),
        model.device,
        compilation,
    )
