"""From a model's files to a stepper that is ready: loading, the check, and the memory for keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import Description, EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.native import describe, loading, memory, selftest
from drivetrain.engines.native.cache import KvCache
from drivetrain.engines.native.kv import KvRows, capacities
from drivetrain.engines.native.prefix import PrefixIndex
from drivetrain.engines.native.runner import Runner
from drivetrain.engines.native.scheduler import Scheduler
from drivetrain.engines.native.stepper import Stepper

DEFAULT_BATCH = 64
LARGEST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Assembled:
    info: EngineInfo
    stepper: Stepper
    device: Any


def assemble(spec: ModelSpec, progress: Progress) -> Assembled:
    options = spec.options
    max_batch = batch_size(options)
    loaded = loading.load(spec, progress)
    progress("checking that a batch says what one text says", None)
    selftest.check(loaded)
    model = loaded.model
    cache = KvCache(loaded.layers, dtype=model.dtype, device=model.device)
    budget = memory.kv_budget(options.get("kv_cache_gb"), model.device)
    context = memory.fitting_context(
        loaded.context_length, cache.token_bytes, budget, stated=options.get("context_length") is not None
    )
    prefixes = PrefixIndex() if options.get("prefix_cache", True) else None
    rows = KvRows(
        capacities(context),
        token_bytes=cache.token_bytes,
        budget_bytes=budget,
        evicted=prefixes.forget if prefixes is not None else lambda slot: None,
    )
    scheduler = Scheduler(rows, prefixes, max_batch=max_batch)
    progress("loaded", 1.0)
    return Assembled(
        describe.of_loaded(loaded, context, max_batch),
        Stepper(scheduler, Runner(model, loaded.stage, cache)),
        model.device,
    )


def describe_files(spec: ModelSpec, progress: Progress) -> Description:
    """What can be told of a model before it is loaded."""
    return describe.of_files(spec, progress, batch_size(spec.options))


def batch_size(options: Mapping[str, Any]) -> int:
    wanted = options.get("max_batch")
    if wanted is None:
        return DEFAULT_BATCH
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= LARGEST_BATCH:
        raise InvalidSetting(f"max_batch is {wanted!r}; it must be from 1 to {LARGEST_BATCH}", param="max_batch")
    return wanted
