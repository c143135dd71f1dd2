"""A model's device and dtype, and how much memory a device has."""

from __future__ import annotations

from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.results import DeviceMemory


def pick_device(wanted: str) -> Any:
    import torch

    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in has.items() if there))
    base, _, number = wanted.partition(":")
    if base not in has or (number and not (base == "cuda" and number.isdigit())):
        raise InvalidSetting(f"device is {wanted!r}; it must be auto, cpu, cuda, cuda:N or mps", param="device")
    if not has[base] or (number and int(number) >= torch.cuda.device_count()):
        raise InvalidSetting(f"device {wanted} is not there; use auto, or see `drivetrain doctor`", param="device")
    return torch.device(wanted)


def pick_dtype(wanted: str, config: Any, device: Any) -> Any:
    """`auto`: float32 on a CPU (few have native bfloat16), float16 on MPS, the weights' own on CUDA."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if wanted == "auto":
        if device.type == "cuda":
            return getattr(config, "dtype", None) or torch.bfloat16
        return torch.float16 if device.type == "mps" else torch.float32
    if wanted not in known:
        raise InvalidSetting(f"dtype is {wanted!r}; it must be auto, {', '.join(known)}", param="dtype")
    return known[wanted]


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
