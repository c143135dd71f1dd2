"""Weights of 8-bit floats, as real checkpoints have them."""

from __future__ import annotations

from pathlib import Path


def quantize(folder: Path) -> None:
    """The projections of a folder's weights, each as one block with its scale. Its configuration is left alone."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for name in [key for key in weights if key.endswith("_proj.weight")]:
        scale = weights[name].abs().amax() / 448
        weights[name.replace("weight", "weight_scale_inv")] = scale.reshape(1, 1)
        weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
