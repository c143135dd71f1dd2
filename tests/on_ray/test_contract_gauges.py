"""What a handle counts is what its callers saw, as `contract/test_gauges.py` has it of a worker.

Its times are taken where the events arrive, so those cases are not asked here, nor those of the engine's own gauges.
"""

from __future__ import annotations

from contract.mixed_load import mixed_load
from contract.test_gauges import test_what_is_echoed_alone_samples_nothing
from drivetrain.core.errors import DeadlineExceeded, EngineFailed, Overloaded
from drivetrain.core.stats import ENDINGS
from on_ray.ray_rig import RayRig

__all__ = ["test_what_is_echoed_alone_samples_nothing"]


async def test_a_mixed_load_is_counted_exactly(rig: RayRig) -> None:
    async with mixed_load(rig) as (worker, seen):  # type: ignore[arg-type] # a rig in all but its class
        stats = worker.stats
        for code in (Overloaded.code, DeadlineExceeded.code, EngineFailed.code, "cancelled", "finished"):
            assert seen.endings[code] >= 1, code
        assert dict(stats.endings) == dict(seen.endings)
        assert set(stats.endings) <= set(ENDINGS)
        assert dict(stats.answers) == dict(seen.answers)
        assert stats.prompt_tokens == seen.prompt_tokens
        assert stats.cached_tokens == seen.cached_tokens
        assert stats.completion_tokens == seen.completion_tokens
        assert stats.first_token_s.count == stats.prefill_s.count == seen.begun
        assert stats.queue_s.count == stats.request_s.count
        assert stats.answer_length.count == seen.endings["finished"]
        behind_first = seen.completion_tokens - seen.begun
        assert behind_first // 2 <= stats.between_tokens_s.count <= behind_first
        assert worker.status.running == worker.status.waiting == 0
