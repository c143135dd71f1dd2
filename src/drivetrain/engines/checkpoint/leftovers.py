"""Weights in the files that no layer of the model takes: which are refused, and which are ignored."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from drivetrain.core.errors import LoadFailed

_log = logging.getLogger(__name__)

_TABLE = re.compile(
    r"(?:^|[._])(?:inv_freq|masked_bias|causal_mask|cos_cached|sin_cached|position_ids|version|[kv]_scale)$"
)
"""Tables that older versions of classes saved, and scales of a quantized cache, which no engine here has."""

_STACK = re.compile(r"(.*?\.)(\d+)\.")
"""The name of a stack of layers, then the number of a layer."""

NUM_EXAMPLES = 3


def refuse_leftovers(problems: Mapping[str, Any], model: Any) -> None:
    """A configuration with fewer layers than the files, or of another class, makes a model that talks nonsense.

    `problems` leaves out what the class itself ignores. Parts that the class does not have at all belong to another use
    of the same files and are only logged: a pretraining head, an image tower, layers that predict tokens ahead.
    """
    known = _Known(model)
    unused = sorted(problems.get("unexpected_keys", ()))
    refused = [name for name in unused if known.ought_to_take(name)]
    if refused:
        *some, last = refused[:NUM_EXAMPLES]
        examples = f"{', '.join(some)} and {last}" if some else last
        raise LoadFailed(
            f"no layer takes {len(refused)} of the weights in the files, {examples} among them: config.json describes"
            " a smaller model, or another one; correct it, or pull or copy the model again"
        )
    if unused:
        _log.info(
            "%d weights in the files are of parts that this class does not have, %s first", len(unused), unused[0]
        )


class _Known:
    """A model's parts, by the names of its weights without the prefix of its base model."""

    def __init__(self, model: Any) -> None:
        self._prefix = f"{model.base_model_prefix}." if model.base_model_prefix else ""
        names = [self._bare(name) for name in model.state_dict()]
        self._modules = {module for name in names if (module := name.rpartition(".")[0])}
        self._stacks = {found[1] for name in names if (found := _STACK.match(name))}
        self._buffers = {self._bare(name) for name, _ in model.named_buffers()}
        text = model.config.get_text_config()
        depth = getattr(text, "num_hidden_layers", None) or 0
        self._predicting = range(depth, depth + (getattr(text, "num_nextn_predict_layers", None) or 0))

    def ought_to_take(self, name: str) -> bool:
        """Whether the model has the stack of layers, or else the module, that the weight belongs to."""
        name = self._bare(name)
        if name in self._buffers or _TABLE.search(name) or self._is_mask(name):
            return False
        if (found := _STACK.match(name)) is None:
            return name.rpartition(".")[0] in self._modules
        return found[1] in self._stacks and int(found[2]) not in self._predicting

    def _is_mask(self, name: str) -> bool:
        """Older classes saved an attention's mask as its `bias`. The attention has no weights; its parts do."""
        module, _, leaf = name.rpartition(".")
        parts = f"{module}."
        return leaf == "bias" and module not in self._modules and any(m.startswith(parts) for m in self._modules)

    def _bare(self, name: str) -> str:
        return name.removeprefix(self._prefix)
