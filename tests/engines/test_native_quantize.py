"""`quantize int8`: exact whole-number products, row by row; refusals; and a model that still says what it said."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_library import built

torch = pytest.importorskip("torch")

from contract.native_rig import NativeRig  # noqa: E402 - it needs torch
from drivetrain.core.errors import InvalidSetting  # noqa: E402
from drivetrain.engines.native.cpu import int8  # noqa: E402
from drivetrain.engines.native.cpu.int8 import WEIGHT_STEPS, PlainInt8, hadamard, input_steps  # noqa: E402
from drivetrain.engines.native.cpu.weight_layout import PackedLinear, lay_out_for_torch, pack_linear_layers  # noqa: E402

ASKED: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
INT8 = {"quantize": "int8"}

pytestmark = pytest.mark.skipif(
    not int8.available(), reason="torch has no int8 products for this processor, and says so"
)

MakeProduct = Callable[[Any, Any], Any]


@pytest.fixture(scope="module", params=["fbgemm", pytest.param("our own", marks=pytest.mark.slow)])
def product_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeProduct:
    """A product with a weight and a bias, by either library."""
    if request.param == "fbgemm":
        return lambda weight, bias: PlainInt8.of(weight, bias).for_torch()
    library = built(int8.SOURCE, tmp_path_factory.mktemp("int8"))
    return lambda weight, bias: PlainInt8.of(weight, bias).in_panels(library, torch.empty)


def whole(shape: tuple[int, ...], steps: int, seed: int = 0) -> Any:
    return torch.randint(-steps, steps + 1, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 33])
@pytest.mark.parametrize(("wide", "out"), [(576, 960), (100, 72), (4096, 24), (3, 5)])
def test_sums_are_exact(rows: int, wide: int, out: int) -> None:
    steps = input_steps()
    x, weight = whole((rows, wide), steps), whole((out, wide), WEIGHT_STEPS, seed=1)
    found = int8._fbgemm(x.float(), int8._pack(weight.to(torch.int8), torch.ones(out)), steps)
    assert torch.equal(found.long(), x @ weight.T)


def test_the_largest_values_do_not_overflow() -> None:
    steps = input_steps()
    weight = torch.full((64, 1024), WEIGHT_STEPS, dtype=torch.int8)
    packed = int8._pack(weight, torch.ones(64))
    for sign in (1.0, -1.0):
        found = int8._fbgemm(torch.full((3, 1024), sign * steps), packed, steps)
        assert torch.equal(found, torch.full((3, 64), sign * steps * WEIGHT_STEPS * 1024))


def test_a_processor_that_cuts_sums_off_gets_fewer_steps_and_the_same_exactness() -> None:
    """fbgemm made to do without VNNI, in a process of its own: it looks once."""
    code = "import test_native_quantize as t; t.test_the_largest_values_do_not_overflow(); print(t.input_steps())"
    where = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | where, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "63", done.stderr


@pytest.mark.parametrize("size", [1, 2, 64])
def test_mixing_changes_no_product(size: int) -> None:
    matrix = hadamard(size)
    assert torch.equal(matrix, matrix.T)
    torch.testing.assert_close(matrix @ matrix, torch.eye(size))


@pytest.mark.parametrize("shape", [(576,), (1, 576), (1, 5, 576), (2, 3, 576), (1, 0, 576)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_near_the_one_in_float32(product_of: MakeProduct, shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(576, 128, bias=bias)
    x = torch.randn(shape)
    with torch.inference_mode():
        wanted, found = linear(x), product_of(linear.weight, linear.bias)(x)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0)


def test_inputs_keep_many_more_digits_than_weights(product_of: MakeProduct) -> None:
    """Against the same weights after rounding: what is left is the rounding of the inputs."""
    torch.manual_seed(0)
    weight, x = torch.randn(64, 512), torch.randn(8, 512) * torch.logspace(-4, 4, 8)[:, None]
    x[:, 7] *= 100
    product = product_of(weight, None)
    with torch.inference_mode():
        rounded = product(torch.eye(512) * 64).T / 64
        wanted, found = x @ rounded.T, product(x)
    worst = ((found - wanted).abs().amax(1) / wanted.abs().amax(1)).max()
    assert worst < 4 / input_steps() ** 2


def test_nothing_of_a_neighbour_gets_into_a_row(product_of: MakeProduct) -> None:
    torch.manual_seed(0)
    product = product_of(torch.randn(200, 576), torch.randn(200))
    x = torch.randn(70, 576)
    other = x.clone()
    other[::3] = torch.randn(24, 576) * 1e4
    with torch.inference_mode():
        well, found = product(x), product(other)
        alone = torch.stack([product(row) for row in x])
    kept = torch.arange(70) % 3 != 0
    assert torch.equal(found[kept], well[kept])
    torch.testing.assert_close(alone, well, rtol=1e-4, atol=1e-4)


def test_what_is_no_number_stays_in_its_row(product_of: MakeProduct) -> None:
    torch.manual_seed(0)
    product = product_of(torch.randn(64, 128), None)
    x = torch.randn(5, 128)
    x[4] = 0
    with torch.inference_mode():
        well = product(x)
        x[1, 3], x[2, 5] = torch.nan, torch.inf
        found = product(x)
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 3, 4]], well[[0, 3, 4]])
    assert torch.equal(well[4], torch.zeros(64))


def test_only_linear_layers_of_either_kind_are_replaced() -> None:
    from transformers.pytorch_utils import Conv1D

    special = type("Special", (torch.nn.Linear,), {})  # somebody else's idea of a linear layer
    torch.manual_seed(0)
    for quantize in ("none", "int8"):
        model = torch.nn.ModuleDict(
            {"a": torch.nn.Linear(128, 96), "b": Conv1D(64, 96), "small": torch.nn.Linear(8, 8), "own": special(96, 96)}
        )
        model.device = torch.device("cpu")
        torch.nn.init.normal_(model["b"].bias)
        model.requires_grad_(False)
        x = torch.randn(3, 128)
        wanted = model["b"](model["a"](x))
        assert pack_linear_layers(model, quantize=quantize) == 2
        assert [type(layer) is PackedLinear for layer in model.values()] == [True, True, False, False]
        near = 2e-2 if quantize == "int8" else 1e-5
        torch.testing.assert_close(model["b"](model["a"](x)), wanted, rtol=0, atol=near)
        lay_out_for_torch(model)
        torch.testing.assert_close(model["b"](model["a"](x)), wanted, rtol=0, atol=near)
        assert (model["b"].in_features, model["b"].out_features) == (96, 64)
        assert model["a"].weight.device.type == "meta"


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [("cuda:0", torch.float32, "device is cuda:0"), ("mps", torch.float16, "mps"), ("cpu", torch.bfloat16, "bfloat16")],
)
def test_it_is_refused_where_it_cannot_be_had(device: str, dtype: Any, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words) as caught:
        int8.check_machine(torch.device(device), dtype)
    assert caught.value.param == "quantize"


def test_it_is_refused_where_torch_has_no_such_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "available", lambda: False)
    with pytest.raises(InvalidSetting, match="leave quantize out"):
        int8.check_machine(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("options", [{"quantize": "int4"}, {**INT8, "dtype": "bfloat16"}])
async def test_the_engine_names_the_setting(checkpoint: Callable[[str], Path], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        async with NativeRig(checkpoint).open(options=options):
            pass
    assert caught.value.param == "quantize"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
async def test_a_model_says_the_same_in_any_company(checkpoint: Callable[[str], Path], name: str) -> None:
    """The self-test at load holds the batch against the text alone; this holds the ids."""
    prompts = [f"Number {i} of some requests" * (1 + i % 3) for i in range(6)]
    async with NativeRig(checkpoint, name).open(options=INT8) as worker:
        assert any("weights of 8 bits" in note for note in worker.metadata.notes)
        alone = [await worker.generate(prompt=prompt, **ASKED) for prompt in prompts]
        together = await asyncio.gather(*(worker.generate(prompt=prompt, **ASKED) for prompt in prompts))
    assert [one.choices[0].token_ids for one in alone] == [one.choices[0].token_ids for one in together]


async def test_none_is_no_quantizing(checkpoint: Callable[[str], Path]) -> None:
    async with NativeRig(checkpoint).open(options={"quantize": "none"}) as worker:
        assert not any("8 bits" in note for note in worker.metadata.notes)
