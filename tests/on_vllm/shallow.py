"""The small real model with few of its layers: it says little of sense, and all of it many times sooner."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

_LAYER = re.compile(r"(?<=^model\.layers\.)\d+")


def shallow_copy(model: Path, layers: Sequence[int], target: Path) -> Path:
    """A folder of safetensors with these layers of the model."""
    shutil.copytree(model, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": len(layers)}
    (target / "config.json").write_text(json.dumps(config))
    kept = {}
    for name, weights in load_file(model / "model.safetensors").items():
        if (found := _LAYER.search(name)) is None:
            kept[name] = weights
        elif (layer := int(found[0])) in layers:
            kept[_LAYER.sub(str(layers.index(layer)), name)] = weights
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target
