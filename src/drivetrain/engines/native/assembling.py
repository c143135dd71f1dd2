"""From a model's files to a ready stepper: loading, the self-test, and the memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineInfo, ModelSpec, Progress
from drivetrain.engines.checkpoint.gguf import safetensors_made
from drivetrain.engines.checkpoint.pooling import stated_pooling
from drivetrain.engines.native import describe
from drivetrain.engines.native.attention.reference import ReferenceAttention
from drivetrain.engines.native.compilation import Compilation, step_budget
from drivetrain.engines.native.embedding import NativeEmbedder
from drivetrain.engines.native.kv import memory
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.cache import KvCache, block_bytes
from drivetrain.engines.native.model import loading, selftest
from drivetrain.engines.native.model.runner import Pass, Runner, plain_pass
from drivetrain.engines.native.schedule.budget import largest_chunk
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.settings import NativeSettings, Speculative
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
    computing = compilation.found()
    if computing is None:
        computing = Pass(plain_pass(model), ReferenceAttention)
        selftest.check(loaded, computing)
    budget = memory.kv_budget(settings.kv_cache_gb, model.device)
    sizes = block_bytes(loaded.shapes, loaded.windows, model.dtype)
    chunk = largest_chunk(on_cpu=model.device.type == "cpu")
    context = memory.fitting_context(
        loaded.context_length, sizes, chunk, budget, stated=settings.context_length is not None
    )
    num_blocks = memory.num_blocks(sizes, context, chunk, settings.max_batch, budget)
    pool = BlockPool(num_blocks, shares=settings.prefix_cache, chunk=chunk)
    cache = KvCache(loaded.shapes, pool.sizes, windows=loaded.windows, dtype=model.dtype, device=model.device)
    runner = Runner(model, loaded.stage, cache, computing.attention(loaded.layers, cache), computing.forward)
    scheduler = Scheduler(pool, max_batch=settings.max_batch, budget=step_budget(loaded, runner.attention))
    embedder = NativeEmbedder(runner, scheduler, pooling)
    progress("loaded", 1.0)
    return Assembled(
        describe.of_loaded(loaded, context, settings.max_batch, pooling, compilation.note),
        Stepper(scheduler, runner, embedder, speculates=settings.speculative is Speculative.NGRAM),
        embedder,
        model.device,
        compilation,
    )
