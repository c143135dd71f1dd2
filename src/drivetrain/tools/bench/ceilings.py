"""The limits of the machine, measured in the same run, and how much of them was used."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, replace

from drivetrain.tools.bench.outcome import Round
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.workload import Closed

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """`measured_with` names the library, `device` and `dtype` what was measured."""

    memory_gb_per_s: float
    product_gflop_per_s: float
    measured_with: str
    device: str
    dtype: str

    def best_of(self, other: Ceilings) -> Ceilings:
        return replace(
            self,
            memory_gb_per_s=max(self.memory_gb_per_s, other.memory_gb_per_s),
            product_gflop_per_s=max(self.product_gflop_per_s, other.product_gflop_per_s),
        )


@dataclass(frozen=True, slots=True)
class NotMeasured:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How much of a ceiling decoding used. Per token, every weight is read once or takes part in two operations."""

    tokens_per_s: float
    memory_share: float | None
    product_share: float | None


async def measure(device: str = "cpu", dtype: str = "float32") -> Ceilings | NotMeasured:
    """In a separate process, so that no engine's threads or memory interfere. Takes some seconds."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "drivetrain.tools.bench.probe", device, dtype),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, errors = await process.communicate()
    except TimeoutError:
        return NotMeasured(f"measuring them took more than {TIMEOUT_S:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return NotMeasured(f"measuring them failed: {last[0][:200]}")
    return read(out)


def read(out: bytes) -> Ceilings | NotMeasured:
    """From the last line that the probe printed."""
    found = json.loads(out.splitlines()[-1])
    if "missing" in found:
        return NotMeasured(found["missing"])
    return Ceilings(
        memory_gb_per_s=found["memory_gb_per_s"],
        product_gflop_per_s=found["product_gflop_per_s"],
        measured_with=found["with"],
        device=found["device"],
        dtype=found["dtype"],
    )


def reached(rounds: list[Round], facts: TargetFacts, ceilings: Ceilings) -> Reached | None:
    """From the median round. None if no time was spent on decoding alone, or if the weights are not known."""
    rates = sorted(rate for played in rounds if (rate := played.decode_per_s) is not None)
    if facts.weights is None or not rates:
        return None
    rate, level = rates[len(rates) // 2], rounds[0].level
    num_bytes = facts.weights.bytes_as(facts.engine, facts.dtype)
    memory, product = None, None
    if isinstance(level, Closed) and level.streams == 1 and num_bytes is not None:
        memory = num_bytes * rate / 1e9 / ceilings.memory_gb_per_s
    else:
        product = 2 * facts.weights.num_parameters * rate / 1e9 / ceilings.product_gflop_per_s
    return Reached(tokens_per_s=rate, memory_share=memory, product_share=product)
