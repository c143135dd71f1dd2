"""Linear layers that are laid out for oneDNN, and for our own products."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from own_library import built

torch = pytest.importorskip("torch")

from drivetrain.engines.native.cpu import panels  # noqa: E402 - these need torch
from drivetrain.engines.native.cpu.panels import PanelProduct  # noqa: E402
from drivetrain.engines.native.cpu.weight_layout import (  # noqa: E402
    OneDnnProduct,
    PlainProduct,
    lay_out_for_onednn,
    lay_out_in_panels,
    pack_linear_layers,
    rounded,
    takes_panels,
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(panels.SOURCE, tmp_path_factory.mktemp("product"))


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
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (65, 33), (1, 1), (2500, 40), (7, 1000)])
def test_panels_give_the_product_of_float64(library: Path, inputs: int, outputs: int, bias: bool) -> None:
    """Of any number of rows; and those of a row are the same to the last bit in any company."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    with torch.inference_mode():
        product = PanelProduct(library, linear.weight, linear.bias)
        x = torch.randn(1, 500, inputs)
        whole = product(x)
        torch.testing.assert_close(whole.double(), copy.deepcopy(linear).double()(x.double()), rtol=1e-5, atol=1e-5)
        for num_rows in (0, *range(1, 40), 240, 241, 481):
            assert torch.equal(product(x[:, :num_rows]), whole[:, :num_rows])
            assert torch.equal(product(x[0, 500 - num_rows :]), whole[0, 500 - num_rows :])
        assert torch.equal(product(x[0, 0]), whole[0, 0])
        assert torch.equal(product(x.expand(3, 500, inputs)[:, ::7]), whole.expand(3, 500, outputs)[:, ::7])


@pytest.mark.slow
def test_numbers_that_are_none_stay_in_their_row(library: Path) -> None:
    product = PanelProduct(library, torch.randn(70, 50), None)
    x = torch.randn(30, 50)
    wanted = product(x)
    x[7, 3], x[9, 4] = float("nan"), float("inf")
    found = product(x)
    assert found[7].isnan().all()
    assert not found[9].isfinite().any()
    others = [row for row in range(30) if row not in {7, 9}]
    assert torch.equal(found[others], wanted[others])


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [torch.zeros(3, 64), torch.zeros(3, 64, dtype=torch.float64), torch.zeros(3, 128)])
def test_other_rows_are_refused(library: Path, wrong: Any) -> None:
    product = PanelProduct(library, torch.randn(64, 32), None)
    with pytest.raises(TypeError, match="rows of 32 numbers in float32"):
        product(wrong)


def test_weights_stay_as_they_came_until_they_are_laid_out() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96), torch.nn.Linear(96, 80))
    model.device = torch.device("cpu")
    x = torch.randn(1, 9, 128)
    with torch.inference_mode():
        wanted = model(x)
        weight = model[0].weight.detach()
        assert pack_linear_layers(model) == 2
        assert model[0].product.weight.data_ptr() == weight.data_ptr()
        assert torch.equal(model(x), wanted)
        lay_out_for_onednn(model)
        assert all(isinstance(layer.product, OneDnnProduct) for layer in model)
        torch.testing.assert_close(model(x), wanted)


@pytest.mark.slow
def test_a_model_is_laid_out_anew_layer_by_layer(library: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96), torch.nn.Linear(96, 80), torch.nn.Linear(80, 2))
    model.device = torch.device("cpu")
    x = torch.randn(1, 9, 128)
    with torch.inference_mode():
        wanted = model(x)
        assert pack_linear_layers(model) == 2
        assert takes_panels(model)
        for number, _ in enumerate(lay_out_in_panels(model, library)):
            assert isinstance(model[number].product, PanelProduct)
            torch.testing.assert_close(model(x), wanted)
        assert not takes_panels(model)
        assert list(lay_out_in_panels(model, library)) == []
        lay_out_for_onednn(model)
        assert takes_panels(model)
        torch.testing.assert_close(model(x), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [64, 65, 31])
def test_the_weight_comes_back_as_it_was(library: Path, outputs: int) -> None:
    linear = torch.nn.Linear(50, outputs).requires_grad_(False)
    product = PanelProduct(library, linear.weight, linear.bias)
    assert torch.equal(product.weight, linear.weight)
    assert torch.equal(product.bias, linear.bias)


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_laid_out_too(library: Path, value: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96).requires_grad_(False))
    model.device = torch.device("cpu")
    model[0].weight[3, 4] = value
    pack_linear_layers(model)
    list(lay_out_in_panels(model, library))
    assert isinstance(model[0].product, PanelProduct)


@pytest.mark.slow
def test_what_is_not_the_same_is_not_taken(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 96))
    model.device = torch.device("cpu")
    pack_linear_layers(model)
    monkeypatch.setattr(PanelProduct, "__call__", lambda self, x: x.new_zeros(*x.shape[:-1], 96))
    with pytest.raises(ValueError, match="not what torch says"):
        list(lay_out_in_panels(model, library))
    assert isinstance(model[0].product, PlainProduct)
