"""A model's device and dtype, and how much memory a device has."""

from __future__ import annotations

from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.results import DeviceMemory
from drivetrain.engines.base.settings import Dtype


def pick_device(wanted: str) -> Any:
    import torch

    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in has.items() if there))
    base, _, number = wanted.partition(":")
    if not has[base] or (number and int(number) >= torch.cuda.device_count()):
        raise InvalidSetting(f"device {wanted} is not there; use auto, or see `drivetrain doctor`", param="device")
    return torch.device(wanted)


def pick_dtype(wanted: Dtype, config: Any, device: Any) -> Any:
    """`auto`: float32 on a CPU (few have native bfloat16), float16 on MPS, the weights' own on CUDA."""
    import torch

    if wanted is Dtype.AUTO:
        if device.type == "cuda":
            return getattr(config, "dtype", None) or torch.bfloat16
        return torch.float16 if device.type == "mps" else torch.float32
    return getattr(torch, wanted)


def device_memory(device: Any) -> tuple[DeviceMemory, ...]:
    import torch

    if device.type != "cuda":
        return ()
    free, total = torch.cuda.mem_get_info(device)
    return (
        DeviceMemory(
            device=str(device),
            allocated_bytes=torch.cuda.memory_allocated(device),
            cached_bytes=torch.cuda.memory_reserved(device),
            total_bytes=total,
            available_bytes=free,
        ),
    )
