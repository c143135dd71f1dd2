"""From a model's files to a ready stepper: loading, the self-test, and the memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineInfo, ModelSpec, Progress
from drivetrain.engines.checkpoint.gguf import safetensors_made
from drivetrain.engines.checkpoint.pooling import stated_pooling
from drivetrain.engines.native import describe
from drivetrain.engines.native.embedding import NativeEmbedder
from drivetrain.engines.native.kv import memory
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.kv.prefix import PrefixIndex
from drivetrain.engines.native.kv.rows import KvRows, capacities
from drivetrain.engines.native.model import loading, selftest
from drivetrain.engines.native.model.compiling import compiled_pass
from drivetrain.engines.native.model.runner import Runner, plain_pass
from drivetrain.engines.native.schedule.budget import budget_for
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.settings import NativeSettings
from drivetrain.engines.native.stepper import Stepper


@dataclass(frozen=True, slots=True)
class Assembled:
    info: EngineInfo
    stepper: Stepper
    embedder: NativeEmbedder
    device: Any


def assemble(spec: ModelSpec, progress: Progress) -> Assembled:
    settings = NativeSettings.of(spec.options)
    pooling = settings.pooling or stated_pooling(safetensors_made(spec) or spec.path)
    loaded = loading.load(spec, settings, progress)
    model = loaded.model
    forward = compiled_pass(model, loaded.stage, progress) if settings.compile else plain_pass(model)
    progress("checking that a batch says what one text says", None)
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
    step = budget_for(
        on_cpu=model.device.type == "cpu",
        weights=loaded.num_weights,
        attended=sum(shape.attended for shape in loaded.layers.values()),
        cached=sum(shape.cached for shape in loaded.layers.values()),
        by_kernel=loaded.stage.kernel is not None,
    )
    scheduler = Scheduler(rows, prefixes, max_batch=settings.max_batch, budget=step)
    progress("loaded", 1.0)
    return Assembled(
        describe.of_loaded(loaded, context, settings.max_batch, pooling),
        Stepper(scheduler, Runner(model, loaded.stage, cache, forward)),
        NativeEmbedder(model, loaded.stage, loaded.layers, pooling),
        model.device,
    )
