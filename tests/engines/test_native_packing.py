"""Linear layers that are laid out for oneDNN, and for our own products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_library import built

torch = pytest.importorskip("torch")

from drivetrain.engines.native.cpu import int8  # noqa: E402 - these need torch
from drivetrain.engines.native.cpu.float32 import OneDnnProduct, PanelProduct, PlainFloat32, rounded  # noqa: E402
from drivetrain.engines.native.cpu.int8 import FbgemmProduct, Int8PanelProduct, PlainInt8  # noqa: E402
from drivetrain.engines.native.cpu.weight_layout import (  # noqa: E402
    lay_out_for_torch,
    lay_out_in_panels,
    pack_linear_layers,
    sources_of_products,
    takes_panels,
)

Libraries = Callable[[Path], Path]
PLAIN: dict[str, Callable[[Any, Any], Any]] = {"none": PlainFloat32, "int8": PlainInt8.of}
IN_PANELS = {"none": PanelProduct, "int8": Int8PanelProduct}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return {source: built(source, tmp_path_factory.mktemp(source.stem)) for source in sources_of_products()}.__getitem__


needs_int8 = pytest.mark.skipif(not int8.available(), reason="torch has no int8 products for this processor")


@pytest.fixture(params=["none", pytest.param("int8", marks=needs_int8)])
def quantize(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_panels(libraries: Libraries, plain: Any) -> Any:
    return plain.in_panels(libraries(plain.source), torch.empty)


def like(quantize: str, wanted: Any) -> dict[str, Any]:
    """How near a product is to a plain one."""
    return {"rtol": 1e-5, "atol": 1e-5 if quantize == "none" else 1e-4 * float(wanted.abs().max())}


@pytest.mark.parametrize("bias", [False, True])
def test_any_number_of_rows_gives_the_plain_product(bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 96, bias=bias)
    with torch.inference_mode():
        product = OneDnnProduct(linear.weight, linear.bias)
        for num_rows in (*range(1, 70), 96, 97, 255, 300):
            x = torch.randn(1, num_rows, 64)
            torch.testing.assert_close(product(x), linear(x))
        assert product(torch.randn(64)).shape == (96,)


def test_few_numbers_of_rows_reach_the_library() -> None:
    """It keeps a kernel for each."""
    assert all(rounded(n) >= n for n in range(1, 513))
    assert len({rounded(n) for n in range(1, 513)}) == 8 + 14 + 14
    assert all(rounded(n) == n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512))


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (65, 33), (1, 1), (2500, 40), (7, 1000), (576, 49)])
def test_panels_give_the_plain_product(
    libraries: Libraries, quantize: str, inputs: int, outputs: int, bias: bool
) -> None:
    """Of any number of rows; and those of a row are the same to the last bit in any company."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    with torch.inference_mode():
        plain = PLAIN[quantize](linear.weight, linear.bias)
        product = in_panels(libraries, plain)
        x = torch.randn(1, 500, inputs)
        whole, wanted = product(x), plain(x)
        torch.testing.assert_close(whole, wanted, **like(quantize, wanted))
        for num_rows in (0, *range(1, 40), 240, 241, 481):
            assert torch.equal(product(x[:, :num_rows]), whole[:, :num_rows])
            assert torch.equal(product(x[0, 500 - num_rows :]), whole[0, 500 - num_rows :])
        assert torch.equal(product(x[0, 0]), whole[0, 0])
        assert torch.equal(product(x.expand(3, 500, inputs)[:, ::7]), whole.expand(3, 500, outputs)[:, ::7])


@pytest.mark.slow
def test_panels_give_the_product_of_float64(libraries: Libraries) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 2500), torch.randn(70, 2500)
    product = in_panels(libraries, PlainFloat32(weight, None))
    torch.testing.assert_close(product(x).double(), x.double() @ weight.T.double(), rtol=1e-5, atol=2e-4)


@needs_int8
@pytest.mark.slow
@pytest.mark.parametrize("inputs", [64, 640, 4096, 18944])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_numbers_fit(libraries: Libraries, inputs: int, sign: int) -> None:
    """Rows with one number in each block are the same number everywhere when they are mixed."""
    whole, scales = torch.full((50, inputs), sign * int8.WEIGHT_STEPS, dtype=torch.int8), torch.linspace(0.1, 1, 50)
    each = torch.tensor([1.0, 1e-20, 1e20])[:, None]
    x = torch.zeros(3, inputs)
    x[:, :: int8.BLOCK] = each
    wanted = each.double() / int8.BLOCK**0.5 * sign * int8.WEIGHT_STEPS * scales * inputs
    found = in_panels(libraries, PlainInt8(whole, scales, None))(x)
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-6, atol=0)


@pytest.mark.slow
def test_numbers_that_are_none_stay_in_their_row(libraries: Libraries, quantize: str) -> None:
    product = in_panels(libraries, PLAIN[quantize](torch.randn(70, 50), torch.randn(70)))
    x = torch.randn(30, 50)
    x[11] = 0
    wanted = product(x)
    x[7, 3], x[9, 4], x[10, 5] = float("nan"), float("inf"), float("-inf")
    found = product(x)
    assert found[7].isnan().all()
    assert not found[[7, 9, 10]].isfinite().any()
    others = [row for row in range(30) if row not in {7, 9, 10}]
    assert torch.equal(found[others], wanted[others])
    assert torch.equal(found[11], product.plain.bias)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [torch.zeros(3, 64), torch.zeros(3, 64, dtype=torch.float64), torch.zeros(3, 128)])
def test_other_rows_are_refused(libraries: Libraries, quantize: str, wrong: Any) -> None:
    product = in_panels(libraries, PLAIN[quantize](torch.randn(64, 32), None))
    with pytest.raises(TypeError, match="rows of 32 numbers in float32"):
        product(wrong)


def test_weights_stay_as_they_came_until_they_are_laid_out(quantize: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96), torch.nn.Linear(96, 80))
    model.device = torch.device("cpu")
    x = torch.randn(1, 9, 128)
    with torch.inference_mode():
        wanted = model(x)
        weight = model[0].weight.detach()
        assert pack_linear_layers(model, quantize=quantize) == 2
        if quantize == "none":
            assert model[0].product.weight.data_ptr() == weight.data_ptr()
            assert torch.equal(model(x), wanted)
        wanted = model(x)
        lay_out_for_torch(model)
        of_torch = OneDnnProduct if quantize == "none" else FbgemmProduct
        assert all(isinstance(layer.product, of_torch) for layer in model)
        torch.testing.assert_close(model(x), wanted, **like(quantize, wanted * 10))


@pytest.mark.slow
def test_a_model_is_laid_out_anew_layer_by_layer(libraries: Libraries, quantize: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96), torch.nn.Linear(96, 80), torch.nn.Linear(80, 2))
    model.device = torch.device("cpu")
    x = torch.randn(1, 9, 128)
    with torch.inference_mode():
        assert pack_linear_layers(model, quantize=quantize) == 2
        wanted = model(x)
        near = like(quantize, wanted * 10)
        assert takes_panels(model)
        for number, _ in enumerate(lay_out_in_panels(model, libraries)):
            assert isinstance(model[number].product, IN_PANELS[quantize])
            torch.testing.assert_close(model(x), wanted, **near)
        assert not takes_panels(model)
        assert list(lay_out_in_panels(model, libraries)) == []
        lay_out_for_torch(model)
        assert takes_panels(model)
        torch.testing.assert_close(model(x), wanted, **near)
        list(lay_out_in_panels(model, libraries))
        assert not takes_panels(model)
        torch.testing.assert_close(model(x), wanted, **near)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [64, 65, 31])
@pytest.mark.parametrize("inputs", [50, 65])
def test_the_weight_comes_back_as_it_was(libraries: Libraries, quantize: str, outputs: int, inputs: int) -> None:
    linear = torch.nn.Linear(inputs, outputs).requires_grad_(False)
    plain = PLAIN[quantize](linear.weight, linear.bias)
    for laid_out in (in_panels(libraries, plain), plain.for_torch()):
        again = laid_out.plain
        assert torch.equal(again.bias, linear.bias)
        if quantize == "none":
            assert torch.equal(again.weight, linear.weight)
        else:
            assert torch.equal(again.whole, plain.whole)
            torch.testing.assert_close(again.scales, plain.scales, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_a_weight_that_lies_the_other_way_round_is_laid_out_too(libraries: Libraries, quantize: str) -> None:
    """As that of a `Conv1D`."""
    weight, x = torch.randn(50, 70), torch.randn(9, 50)
    found = in_panels(libraries, PLAIN[quantize](weight.T, None))(x)
    assert torch.equal(found, in_panels(libraries, PLAIN[quantize](weight.T.contiguous(), None))(x))


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_laid_out_too(libraries: Libraries, quantize: str, value: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96).requires_grad_(False))
    model.device = torch.device("cpu")
    model[0].weight[3, 4] = value
    pack_linear_layers(model, quantize=quantize)
    list(lay_out_in_panels(model, libraries))
    assert isinstance(model[0].product, IN_PANELS[quantize])


@pytest.mark.slow
def test_what_is_not_the_same_is_not_taken(
    libraries: Libraries, quantize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96))
    model.device = torch.device("cpu")
    pack_linear_layers(model, quantize=quantize)
    before = model[0].product
    monkeypatch.setattr(IN_PANELS[quantize], "__call__", lambda self, x: x.new_zeros(*x.shape[:-1], 96))
    with pytest.raises(ValueError, match="not what torch says"):
        list(lay_out_in_panels(model, libraries))
    assert model[0].product is before
