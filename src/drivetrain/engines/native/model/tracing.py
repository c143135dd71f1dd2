"""The forward pass as a compiled program: the model's class, traced once and compiled ahead of time.

What the class does to its input becomes a flat list of operations, whatever Python it went through. torch's compiler
joins those between the matrix products and the attention, which stay ours (`attention/operators.py`). The weights are
inputs of the program, so it belongs to a class and its sizes, not to a model in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.attention.operators import Operands
from drivetrain.engines.native.cpu.weight_layout import packed_layers
from drivetrain.engines.native.model.runner import plain_pass

MODEL = ""
"""The name of the tensor that stands for the model itself."""


def name_operands(model: Any, stage: AttentionStage) -> Operands:
    """Number the products of a model. Two models of one class and configuration get the same numbers."""
    packed = packed_layers(model)
    operands = Operands([layer.forward for layer in packed], stage)
    for number, layer in enumerate(packed):
        layer.named(operands.model, number)
    stage.model = operands.model
    return operands


def tensors_of(model: Any, operands: Operands) -> dict[str, Any]:
    """All that a program may take as an input besides ids and positions, by name."""
    return {MODEL: operands.model, **dict(model.named_buffers()), **dict(model.named_parameters())}


def compile_to(library: Path, model: Any, operands: Operands, num_ids: int, num_kept: int) -> list[str]:
    """Write the program, and return the names of the tensors that follow its three inputs."""
    from torch._export.utils import _compiling_state_context
    from torch._inductor.compile_fx import compile_fx_aot
    from torch.fx.experimental.proxy_tensor import make_fx

    example = torch.zeros(1, num_ids, dtype=torch.long), torch.arange(num_ids)[None], torch.arange(num_kept)
    trace = make_fx(plain_pass(model), tracing_mode="symbolic", _allow_non_fake_inputs=True)
    with torch.no_grad():
        program = trace(*example)
        names = _constants_to_inputs(program, tensors_of(model, operands))
        inputs = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
        with _compiling_state_context():
            compile_fx_aot(program, inputs, config_patches={"aot_inductor.output_path": str(library)})
    return names


def _constants_to_inputs(program: Any, tensors: dict[str, Any]) -> list[str]:
    """What is neither a weight nor a buffer stays: numbers that the class wrote down."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    graph = program.graph
    last = graph.find_nodes(op="placeholder")[-1]
    fake_mode = last.meta["val"].fake_mode
    made: dict[str, Any] = {}
    for node in graph.find_nodes(op="get_attr"):
        tensor = getattr(program, node.target)
        if (name := names.get(id(tensor))) is None:
            continue
        if name not in made:
            with graph.inserting_after(last):
                last = made[name] = graph.placeholder(f"tensor_{len(made)}")
            last.meta["val"] = fake_mode.from_tensor(tensor, static_shapes=True)
        node.replace_all_uses_with(made[name])
        graph.erase_node(node)
    output = graph.output_node()
    output.args = ((output.args[0],),)  # the compiler wants a tuple
    program.recompile()
    return list(made)
