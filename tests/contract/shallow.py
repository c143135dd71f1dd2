"""The small real model with few of its layers: it says little of sense, and all of it many times sooner."""

from __future__ import annotations

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

LAYERS = (0, 1, 28, 29)
"""Of SmolLM2's thirty. Of the first ones alone it says one word for ever."""

_LAYER = re.compile(r"(?<=^model\.layers\.)\d+|(?<=^blk\.)\d+")


def shallow_copy(model: Path, layers: Sequence[int], target: Path) -> Path:
    """A folder of safetensors with these layers of the model."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": len(layers)}
    (target / "config.json").write_text(json.dumps(config))
    kept = {}
    for name, weights in load_file(model / "model.safetensors").items():
        if (place := _place(name, layers)) is not None:
            kept[place] = weights
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


@functools.cache
def shallow_gguf(model: Path) -> Path:
    """A GGUF file with `LAYERS` of the model, which goes when this process ends."""
    import gguf

    reader = gguf.GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    target = Path(_folder().name) / model.name
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = len(LAYERS) if name == f"{architecture}.block_count" else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if (place := _place(tensor.name, LAYERS)) is not None:
            writer.add_tensor(place, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _place(tensor: str, layers: Sequence[int]) -> str | None:
    """What it is called with these layers alone. None if it is of another."""
    if (found := _LAYER.search(tensor)) is None:
        return tensor
    layer = int(found[0])
    return _LAYER.sub(str(layers.index(layer)), tensor) if layer in layers else None
