"""What the native engine leans on in torch without a promise of its: an upgrade that moves it fails here."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch._inductor.codecache import CppCodeCache
from torch._subclasses import FakeTensor

SCHEMAS = {
    "mkldnn._reorder_linear_weight": "(Tensor self, int? batch_size=None) -> Tensor Y",
    "mkldnn._linear_pointwise": (
        "(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y"
    ),
    "quantized.linear_prepack": (
        "(Tensor W, Tensor? B=None) -> __torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack"
    ),
    "quantized.linear_with_input_q_dq_qweight_dq_output_fp32": (
        "(Tensor X, float X_scale, int X_zero_point, "
        "__torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack) -> Tensor Y"
    ),
    "quantized.linear_unpack": (
        "(__torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack) -> (Tensor W_origin, Tensor? B_origin)"
    ),
    "aten.int_repr": "(Tensor self) -> Tensor",
    "aten.q_per_channel_scales": "(Tensor self) -> Tensor",
    "aten._make_per_channel_quantized_tensor": "(Tensor self, Tensor scale, Tensor zero_point, int axis) -> Tensor",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_operations_that_take_what_they_took(name: str) -> None:
    room, operation = name.split(".")
    if room == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is built without oneDNN")
    schema = str(getattr(getattr(torch.ops, room), operation).default._schema)
    assert schema == f"{room}::{operation}{SCHEMAS[name]}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler loads old parts of torch
def test_the_compiler_takes_what_it_took() -> None:
    from torch._inductor.compile_fx import compile_fx_aot

    given = inspect.signature(compile_fx_aot).parameters
    assert list(given)[:2] == ["model_", "example_inputs_"]
    assert "config_patches" in given
    assert callable(torch._C._aoti.AOTIModelContainerRunnerCpu)
    assert "extra_flags" in inspect.signature(CppCodeCache.load_async).parameters
    assert issubclass(FakeTensor, torch.Tensor)
    assert torch._subclasses.FakeTensor is FakeTensor
    assert callable(torch._make_per_channel_quantized_tensor)
