"""From a model's files to a ready stepper: loading, the self-test, and the memory for keys and values."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineInfo, ModelSpec, Progress
from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.base.settings import Pooling
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.gguf import safetensors_made
from drivetrain.engines.checkpoint.pooling import stated_pooling
from drivetrain.engines.checkpoint.step_threads import StepThreads
from drivetrain.engines.native import describe
from drivetrain.engines.native.attention.backend import CapturableAttention
from drivetrain.engines.native.attention.choosing import attention_for
from drivetrain.engines.native.attention.reference import ReferenceAttention
from drivetrain.engines.native.compilation import Compilation, step_budget
from drivetrain.engines.native.cpu.weight_layout import lay_out_for_torch
from drivetrain.engines.native.embedding import NativeEmbedder
from drivetrain.engines.native.kv import memory
from drivetrain.engines.native.kv.blocks import BlockPool
from drivetrain.engines.native.kv.cache import KvCache, block_bytes
from drivetrain.engines.native.model import loading, selftest
from drivetrain.engines.native.model.graphs import GraphRunner, cuda_capture
from drivetrain.engines.native.model.loading import NativeModel
from drivetrain.engines.native.model.probe import translated
from drivetrain.engines.native.model.runner import Pass, Runner, plain_pass
from drivetrain.engines.native.schedule.budget import largest_chunk
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.settings import NativeSettings, Speculative
from drivetrain.engines.native.stepper import Stepper

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembled:
    info: EngineInfo
    stepper: Stepper
    device: Any
    compilation: Compilation
    threads: StepThreads


def assemble(spec: ModelSpec, progress: Progress) -> Assembled:
    settings = NativeSettings.of(spec.options)
    pooling = settings.pooling or stated_pooling(safetensors_made(spec) or spec.path)
    loaded = loading.load(spec, settings, progress)
    with translated(loaded.quantization):
        return _assemble(loaded, settings, pooling, progress)


def _assemble(loaded: NativeModel, settings: NativeSettings, pooling: Pooling, progress: Progress) -> Assembled:
    model = loaded.model
    progress("checking that a batch says what one text says", None)
    compilation = Compilation(loaded, settings)
    computing = compilation.found()
    if computing is None:
        lay_out_for_torch(model)
        computing = _by_its_class(loaded)
    budget = memory.kv_budget(settings.kv_cache_gb, model.device)
    sizes = block_bytes(loaded.shapes, loaded.windows, model.dtype)
    chunk = largest_chunk(on_cpu=model.device.type == "cpu")
    context = memory.fitting_context(
        loaded.context_length, sizes, chunk, budget, stated=settings.context_length is not None
    )
    num_blocks = memory.num_blocks(sizes, context, chunk, settings.max_batch, budget)
    pool = BlockPool(num_blocks, shares=settings.prefix_cache, chunk=chunk)
    runner = _runner(loaded, computing, pool, settings.max_batch, context, progress)
    scheduler = Scheduler(pool, max_batch=settings.max_batch, budget=step_budget(loaded, runner.attention))
    embedder = NativeEmbedder(runner, scheduler, pooling)
    progress("loaded", 1.0)
    return Assembled(
        describe.of_loaded(loaded, context, settings.max_batch, pooling, compilation.note),
        Stepper(scheduler, runner, embedder, speculates=settings.speculative is Speculative.NGRAM),
        model.device,
        compilation,
        StepThreads.of(model.device, yields=settings.yield_cores),
    )


def _runner(
    loaded: NativeModel, computing: Pass, pool: BlockPool, max_batch: int, context: int, progress: Progress
) -> Runner:
    """One that captures the steps which only decode, where device and attention can."""
    model, stage = loaded.model, loaded.stage
    sizes = {window: number + 1 for window, number in pool.sizes.items()}  # the last block of each group is nobody's
    cache = KvCache(loaded.shapes, sizes, windows=loaded.windows, dtype=model.dtype, device=model.device)
    attention = computing.attention(loaded.layers, cache)
    if not isinstance(attention, CapturableAttention):
        return Runner(model, stage, cache, attention, computing.forward)
    progress("capturing the steps that decode", None)
    runner = GraphRunner(
        model,
        stage,
        cache,
        attention,
        computing.forward,
        max_batch=max_batch,
        context_length=context,
        spares=list(pool.sizes.values()),
        capture=cuda_capture(),
    )
    runner.capture()
    return runner


def _by_its_class(loaded: NativeModel) -> Pass:
    """With the best attention for this device that passes the self-test."""
    forward = plain_pass(loaded.model)
    best = attention_for(loaded.layers, loaded.model.device, loaded.model.dtype)
    if best is not ReferenceAttention:
        try:
            selftest.check(loaded, Pass(forward, best))
            return Pass(forward, best)
        except Exception as exc:  # noqa: BLE001 - whatever it is: if the reference fails too, that is raised
            _log.warning("attention stays with torch's plain operations: %s", one_line(exc))
            errors.free_cached_memory()
    selftest.check(loaded, Pass(forward, ReferenceAttention))
    return Pass(forward, ReferenceAttention)
