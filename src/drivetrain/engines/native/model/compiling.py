"""`compile`: the forward pass as compiled programs, where the model's class would call some two thousand operations.

The class is traced once for a single id and once for any number of them: what it does to its input becomes a flat
list of operations, whatever Python it went through. torch's compiler joins those between the matrix products and the
attention, which stay ours (`attention/operators.py`). It needs a C++ compiler and a CPU.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from drivetrain.core.engine import Progress
from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.model.runner import Forward, plain_pass

FEWEST = 2
"""The fewest ids and logits in the program for any number: torch takes 0 and 1 for constants."""

EXAMPLE = (24, 7)
"""Ids and logits of the traced pass: two numbers that cannot be confused."""

CACHE = "TORCHINDUCTOR_CACHE_DIR"


def check_machine(device: Any) -> None:
    """Raise `InvalidSetting` if nothing can be compiled here."""
    if device.type != "cpu":
        raise _refused(f"compile is for CPUs so far, and the device is {device}", "leave compile out")
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise _refused(f"compile needs a C++ compiler, and there is no {compiler}", "install one, or leave compile out")


def compiled_pass(model: Any, stage: AttentionStage, progress: Progress) -> Forward:
    """Takes half a minute for a small model, and two seconds if it was compiled here before."""
    try:
        _set_cache_folder()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's compiler loads old parts of torch
            progress("compiling the attention", None)
            if model.dtype is torch.float32:
                stage.use_kernel()
            progress("compiling the step of one stream", None)
            one = _compiled(model, 1, 1)
            progress("compiling the step of several streams", None)
            return Compiled(one, _compiled(model, *EXAMPLE))
    except Exception as exc:
        raise _refused(f"this model cannot be compiled ({one_line(exc)})", "leave compile out") from exc


class Compiled:
    """A `Forward` of two programs for tensors of any length, so nothing is compiled later."""

    def __init__(self, one: Callable[..., Any], several: Callable[..., Any]) -> None:
        self._one = one
        self._several = several

    def __call__(self, input_ids: Any, position_ids: Any, keep: Any) -> Any:
        wanted = len(keep)
        alone = input_ids.shape[1] == 1
        missing = (1 if alone else FEWEST) - wanted
        if missing > 0:
            keep = torch.cat([keep, keep.new_zeros(missing)])
        logits = (self._one if alone else self._several)(input_ids, position_ids, keep)
        return logits[:wanted] if missing > 0 else logits


def _compiled(model: Any, num_ids: int, num_kept: int) -> Callable[..., Any]:
    from torch._inductor import standalone_compile
    from torch.fx.experimental.proxy_tensor import make_fx

    example = torch.zeros(1, num_ids, dtype=torch.long), torch.arange(num_ids)[None], torch.arange(num_kept)
    trace = make_fx(plain_pass(model), tracing_mode="symbolic", _allow_non_fake_inputs=True)
    with torch.no_grad():
        operations = trace(*example)
        inputs = [node.meta["val"] for node in operations.graph.nodes if node.op == "placeholder"]
        program: Callable[..., Any] = standalone_compile(operations, inputs, dynamic_shapes="from_graph")
    return program


def _set_cache_folder() -> None:
    """In the user's own folder: the compiler's default is one that all users of the machine can write to."""
    if not os.environ.get(CACHE):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "drivetrain" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[CACHE] = str(folder)


def _refused(why: str, remedy: str) -> InvalidSetting:
    return InvalidSetting(f"{why}; {remedy}", param="compile")
