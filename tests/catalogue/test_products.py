"""Products of float32 are equal whichever library computes them; a library that fails or is inexact is not used."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from offrec.catalogue import products, screening

needs_onednn = pytest.mark.skipif(not products.has_onednn(), reason="this PyTorch does not contain oneDNN")


@pytest.fixture(autouse=True)
def measure_again() -> Iterator[None]:
    def clear() -> None:
        for function in (products.has_onednn, products.is_onednn_faster, screening.is_int8_faster):
            function.cache_clear()

    clear()
    yield
    clear()


@pytest.mark.parametrize("onednn", [False, pytest.param(True, marks=needs_onednn)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 17, 64])
def test_products_have_the_precision_of_float32(rows: int, onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "is_onednn_faster", lambda width, rows: onednn)
    random = torch.Generator().manual_seed(rows)
    table, state = torch.randn(501, 33, generator=random), torch.randn(rows, 33, generator=random)
    exact = table.double() @ state.double().T
    product = products.multiply(table, state, torch.full((501, rows), torch.nan))
    assert product.shape == (501, rows)
    bound = 34 * 2.0**-24 * (table.double().abs() @ state.double().abs().T)
    assert ((product - exact).abs() <= bound).all()


def test_a_library_that_is_missing_or_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(rows: Tensor, columns: Tensor) -> Tensor:
        raise AttributeError("_linear_pointwise")

    monkeypatch.setattr(products, "multiply_onednn", missing)
    assert not products.has_onednn()
    products.has_onednn.cache_clear()
    monkeypatch.setattr(products, "multiply_onednn", lambda rows, columns: (rows @ columns.T).bfloat16().float() + 1)
    assert not products.has_onednn()
    assert not products.is_onednn_faster(8, 4)


def test_the_faster_library_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "has_onednn", lambda: True)
    for seconds, expected in (([1.0, 2.0], True), ([2.0, 1.0], False), ([1.0, 1.05], False)):
        products.is_onednn_faster.cache_clear()
        times = iter(seconds)
        monkeypatch.setattr(products, "least_time", lambda call, times=times: next(times))
        assert products.is_onednn_faster(8, 4) == expected


def test_measuring_keeps_the_number_of_threads() -> None:
    before, seen = torch.get_num_threads(), list[int]()
    products.least_time(lambda: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("fault", ["missing", "saturates"])
def test_int8_products_that_are_missing_or_inexact_are_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(table: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        if fault == "missing":
            raise RuntimeError("not implemented")
        pairs = table[:, ::2].int() @ columns[::2].int() + table[:, 1::2].int() @ columns[1::2].int()
        return out.copy_(pairs.clamp(-(2**15), 2**15 - 1))

    monkeypatch.setattr(torch, "_int_mm", replaced)
    monkeypatch.setattr(screening, "least_time", lambda call: (call(), 0.0)[1])
    assert not screening.is_int8_faster(8)
