"""What a handle counts is what its callers saw, as `contract/test_gauges.py` has it of a worker.

Its times are taken where the events arrive, so those cases are not asked here, nor those of the engine's own gauges.
"""

from __future__ import annotations

from contract.mixed_load import check_counts, mixed_load
from contract.test_gauges import test_what_is_echoed_alone_samples_nothing
from drivetrain.core.errors import DeadlineExceeded, EngineFailed, Overloaded
from on_ray.ray_rig import RayRig

__all__ = ["test_what_is_echoed_alone_samples_nothing"]


async def test_a_mixed_load_is_counted_exactly(rig: RayRig) -> None:
    async with mixed_load(rig) as (worker, seen):  # type: ignore[arg-type] # a rig in all but its class
        for code in (Overloaded.code, DeadlineExceeded.code, EngineFailed.code, "cancelled", "finished"):
            assert seen.endings[code] >= 1, code
        check_counts(worker.stats, seen)
        assert worker.status.running == worker.status.waiting == 0
