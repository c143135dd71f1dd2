"""Linear layers that are laid out for oneDNN."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from drivetrain.engines.native.cpu.weight_layout import OneDnnProduct, rounded  # noqa: E402 - it needs torch


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
