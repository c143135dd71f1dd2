"""A vision part for llama.cpp: a CLIP of two layers and LLaVA's projector, random weights, half a megabyte.

Every picture becomes 16 places, whatever its size: it is padded to a square and scaled down. Needs `gguf` and `numpy`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

WIDTH, HEADS, LAYERS, SIDE, PATCH = 32, 2, 2, 28, 7
PLACES = (SIDE // PATCH) ** 2


def write(path: Path, *, embedding: int, gain: float = 1.0) -> Path:
    """`embedding` is the width of the text model. The same bytes every time."""
    import gguf
    import numpy as np

    random = np.random.default_rng(0)

    def weight(*shape: int, size: float = 1.0) -> Any:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return (random.standard_normal(shape) * size / fan_in**0.5).astype(np.float32)

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    for name, number in {
        "image_size": SIDE,
        "patch_size": PATCH,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "block_count": LAYERS,
        "projection_dim": embedding,
        "attention.head_count": HEADS,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    tensors = {
        "v.class_embd": weight(WIDTH),
        "v.patch_embd.weight": weight(WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": weight(PLACES + 1, WIDTH),
        "mm.0.weight": weight(embedding, WIDTH),
        "mm.0.bias": weight(embedding, size=0.1),
        "mm.2.weight": weight(embedding, embedding, size=gain),
        "mm.2.bias": weight(embedding, size=0.1 * gain),
    }
    for norm in ("v.pre_ln", *(f"v.blk.{i}.{ln}" for i in range(LAYERS) for ln in ("ln1", "ln2"))):
        tensors |= {f"{norm}.weight": np.ones(WIDTH, np.float32), f"{norm}.bias": np.zeros(WIDTH, np.float32)}
    for i in range(LAYERS):
        shapes = {f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
        shapes |= {"ffn_up": (2 * WIDTH, WIDTH), "ffn_down": (WIDTH, 2 * WIDTH)}
        for name, shape in shapes.items():
            tensors[f"v.blk.{i}.{name}.weight"] = weight(*shape)
            tensors[f"v.blk.{i}.{name}.bias"] = weight(shape[0], size=0.1)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
