"""Products of float32 are equal whichever library computes them; a library that fails or is inexact is not used."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from offrec.catalogue import products, screening

needs_onednn = pytest.mark.skipif(not products.has_onednn(), reason="needs AVX-512 and oneDNN")


@pytest.fixture(autouse=True)
def measure_again() -> Iterator[None]:
    def clear() -> None:
        for function in (products.has_onednn, screening.is_int8_faster, screening.has_fast_int8):
            function.cache_clear()

    clear()
    yield
    clear()


@pytest.fixture(params=["MKL", pytest.param("oneDNN", marks=needs_onednn)])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "MKL":
        monkeypatch.setattr(products, "has_onednn", lambda: False)
    return str(request.param)


def check(product: Tensor, first: Tensor, second: Tensor, bias: Tensor | None = None) -> None:
    """Compare a product with float64; the bound is that of sums of float32 in any order."""
    exact, sizes = first.double() @ second.double(), first.double().abs() @ second.double().abs()
    if bias is not None:
        exact, sizes = exact + bias, sizes + bias.abs()
    assert ((product - exact).abs() <= (first.shape[1] + 2) * 2.0**-24 * sizes).all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64])
def test_products_of_a_table_with_few_states_have_the_precision_of_float32(rows: int) -> None:
    random = torch.Generator().manual_seed(rows)
    table, state = torch.randn(501, 33, generator=random), torch.randn(rows, 33, generator=random)
    product = products.table_by_states(table, state, torch.full((501, rows), torch.nan))
    assert product.shape == (501, rows)
    check(product, table, state.T)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [5, 130])
def test_products_of_training_have_the_precision_of_float32(rows: int) -> None:
    random = torch.Generator().manual_seed(rows)
    table, state = torch.randn(301, 40, generator=random), torch.randn(rows, 40, generator=random)
    bias, weight = torch.randn(301, generator=random), torch.rand(rows, 301, generator=random)
    check(products.rows_by_columns(state, table), state, table.T)
    check(products.rows_by_columns(state, table, bias, torch.full((rows, 301), torch.nan)), state, table.T, bias)
    check(products.weighted_rows(weight, table), weight, table)
    total = torch.ones(rows, 40)
    products.add_weighted_rows(total, weight, table)
    torch.testing.assert_close(total, 1 + weight @ table, rtol=1e-5, atol=1e-4)
    out = torch.full((301, 40), torch.nan)
    products.weighted_states(weight, state, out)
    check(out, weight.T, state)
    narrow = torch.empty(301, 40, dtype=torch.bfloat16)
    products.weighted_states(weight, state, narrow)
    assert torch.equal(narrow, out.bfloat16())


@needs_onednn
def test_onednn_computes_only_large_float32_products_without_gradients() -> None:
    large = torch.ones(32, 32)
    assert products.uses_onednn(large, large)
    assert not products.uses_onednn(large[:4], large)
    assert not products.uses_onednn(large.double(), large.double())
    assert not products.uses_onednn(large, large.clone().requires_grad_())
    with torch.no_grad():
        assert products.uses_onednn(large, large.clone().requires_grad_())


def test_a_library_that_is_missing_or_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
        raise AttributeError("_linear_pointwise")

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(products, "_onednn", missing)
    assert not products.has_onednn()
    products.has_onednn.cache_clear()
    monkeypatch.setattr(products, "_onednn", lambda rows, columns, bias: rows @ columns.T + 1)
    assert not products.has_onednn()


def test_measuring_keeps_the_number_of_threads() -> None:
    before, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    try:
        products.least_time(lambda: seen.append(torch.get_num_threads()))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_time_of_int8_products_is_measured_once_for_all_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def least_time(call: Callable[[], object]) -> float:
        call()
        calls.append(call)
        return float(len(calls))  # int8 is measured first, so it is faster

    monkeypatch.setattr(screening, "least_time", least_time)
    monkeypatch.setattr(screening, "_is_int8_exact", lambda width: width != 24)
    assert [screening.is_int8_faster(width) for width in (8, 16, 24, 64)] == [True, True, False, True]
    assert len(calls) == 2


@pytest.mark.parametrize("fault", ["missing", "saturates"])
def test_int8_products_that_are_missing_or_inexact_are_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(table: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        if fault == "missing":
            raise RuntimeError("not implemented")
        pairs = table[:, ::2].int() @ columns[::2].int() + table[:, 1::2].int() @ columns[1::2].int()
        return out.copy_(pairs.clamp(-(2**15), 2**15 - 1))

    monkeypatch.setattr(torch, "_int_mm", replaced)
    monkeypatch.setattr(screening, "least_time", lambda call: 0.0)
    assert not screening.is_int8_faster(8)
    assert not screening.has_fast_int8()
