"""Screened lists are the exact k best items, whatever the precision of the pass and the other rows of the batch."""

import pytest
import torch
from torch import Tensor

from offrec.catalogue import Head, rank_last, screened_pass, screening
from offrec.catalogue.head import MASKED
from offrec.catalogue.lists import ItemLists, finish_lists, top_lists
from offrec.catalogue.screened_pass import ScreenedPass
from offrec.catalogue.screening import Passes, Screening

ITEMS, WIDTH, ROWS, K = 2000, 16, 9, 10


def random_head(seed: int = 0, rows: int = ROWS, spread: float = 1.0) -> Head:
    random = torch.Generator().manual_seed(seed)
    table = torch.randn(ITEMS, WIDTH, generator=random)
    return Head(torch.randn(rows, WIDTH, generator=random), table, spread * torch.randn(ITEMS, generator=random))


def ties() -> Head:
    """Every vector occurs three times."""
    head = random_head(1)
    assert head.bias is not None
    number = torch.arange(ITEMS) % (ITEMS // 3)
    return Head(head.state, head.table[number], head.bias[number])


def near_ties() -> Head:
    """The best 300 values are 1e-3 apart on average: less than errors of int8, more than those of float32."""
    head = random_head(2)
    state = 20 * head.state[:1].expand(ROWS, -1).contiguous()
    bias = -(state[0] @ head.table.T)
    bias[torch.randperm(ITEMS, generator=torch.Generator().manual_seed(3))[300:]] -= 50
    return Head(state, head.table, bias + 1e-3 * torch.arange(ITEMS) / 7)


def large_biases() -> Head:
    """Biases of 3,000, with differences far below the resolution of int8 numbers up to 3,000."""
    head = random_head(4)
    assert head.bias is not None
    return Head(head.state, head.table, 3000 + head.bias)


def common_direction() -> Head:
    """All vectors have a large common part, which does not change the order."""
    head = random_head(12)
    return Head(head.state, head.table + 20, head.bias)


def masked_best() -> Head:
    """The best items of each row are masked, lowered or replaced."""
    head = random_head(5)
    best = top_lists(head, 40).items
    head = head.with_corrections(best[:, :10], torch.full((ROWS, 10), -3.0)).mask(best[:, 5:20])
    return rank_last(head, best[:, 20:30])


def replaced() -> Head:
    head = random_head(6)
    items = torch.randint(0, ITEMS + 1, (ROWS, 30), generator=torch.Generator().manual_seed(1)).sort(1).values
    items[:, 1:] = items[:, 1:].masked_fill(items[:, 1:] == items[:, :-1], ITEMS)
    values = 5 * torch.randn(ROWS, 30, generator=torch.Generator().manual_seed(2))
    return Head(head.state, head.table, head.bias, items, values, replaces_base=True)


def few_left() -> Head:
    """All items but four are masked."""
    return random_head(7).mask(torch.arange(ITEMS - 4).expand(ROWS, -1))


def large_values() -> Head:
    """Powers of values up to 400 are too large for float32."""
    head = random_head(14)
    return Head(20 * head.state, head.table, head.bias)


def without_bias() -> Head:
    head = random_head(8)
    return Head(torch.cat([torch.zeros(1, WIDTH), head.state[1:]]), head.table)  # all values of the first row are 0


HEADS = [random_head, ties, near_ties, large_biases, common_direction, masked_best, replaced, few_left, large_values]


def screened_lists(
    head: Head, k: int, used: Screening, allowed: Tensor | None = None, lse: bool = True
) -> ItemLists | None:
    screened = ScreenedPass(head, k, used, head.items, allowed, lse)
    return finish_lists(screened, head) if screened.succeeded else None


def exact_values(head: Head) -> Tensor:
    every = torch.arange(ITEMS).expand(head.n_rows, -1)
    base = head.state.double() @ head.table.double().T
    base = (base if head.bias is None else base + head.bias).float()
    return head.apply_corrections(base, every)


def exact_lists(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, items = z.sort(dim=1, descending=True, stable=True)
    return values[:, :k], items[:, :k]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("make", HEADS)
def test_lists_are_exact(make, int8: bool) -> None:  # type: ignore[no-untyped-def]
    head, used = make(), Screening(make(), int8)
    z = exact_values(head)
    values, items = exact_lists(z, K)
    lists = screened_lists(head, K, used, lse=False)
    assert lists is not None
    assert used.passes == (Passes(int8=1) if int8 else Passes(float32=1))
    unmasked = values > MASKED / 10
    assert torch.equal(lists.items[unmasked], items[unmasked])
    torch.testing.assert_close(lists.values, values, rtol=1e-6, atol=1e-6)
    assert (lists.values[~unmasked] <= MASKED / 10).all()


@pytest.mark.parametrize("make", [*HEADS, without_bias])
def test_logsumexps_are_exact(make) -> None:  # type: ignore[no-untyped-def]
    head = make()
    z, used = exact_values(head), Screening(head, True)
    lists = screened_lists(head, K, used) or top_lists(head, K)
    torch.testing.assert_close(lists.lse, z.double().logsumexp(1), rtol=2e-7, atol=2e-6)
    assert not used.passes.int8, "a sum over int8 products has their errors"


@pytest.mark.parametrize("int8", [False, True])
def test_items_that_are_not_allowed_count_only_in_the_sum(int8: bool) -> None:
    head = masked_best()
    allowed = torch.arange(ITEMS) % 3 == 0
    z = exact_values(head)
    _, items = exact_lists(z.masked_fill(~allowed, MASKED), K)
    for lse in (False, True):
        lists = screened_lists(head, K, Screening(head, int8), allowed, lse)
        assert lists is not None
        assert torch.equal(lists.items, items)
    assert lists is not None
    torch.testing.assert_close(lists.lse, z.double().logsumexp(1), rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("int8", [False, True])
def test_errors_are_within_the_bound_and_the_bound_is_not_vacuous(int8: bool) -> None:
    for make in (random_head, large_biases, near_ties):
        head = make()
        product = Screening(head, int8).product(head, precise=False)
        z = product.buffer(ITEMS)
        product.tile(0, ITEMS, z)
        assert head.bias is not None
        table, bias = head.table.double(), head.bias.double()
        if int8:  # the means are subtracted
            table, bias = table - table.mean(0), bias - bias.mean()
        error = (z.double().T - (head.state.double() @ table.T + bias) / product.unit).abs()
        assert (error <= product.error[:, None]).all()
        assert (error.amax(1) > product.error / 100).all()


def test_lists_do_not_depend_on_the_batch() -> None:
    head = random_head(9, rows=20)
    used = Screening(head, True)
    together = screened_lists(head, K, used, lse=False)
    assert together is not None
    for row in range(20):
        alone = screened_lists(head.slice_rows(row, row + 1), K, used, lse=False)
        assert alone is not None
        assert torch.equal(alone.items[0], together.items[row])
        assert torch.equal(alone.values[0], together.values[row])


@pytest.mark.parametrize("tile", [64, 1 << 16])
def test_tiles_do_not_matter(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smallest tiles, the last one is not full."""
    monkeypatch.setattr(screened_pass, "MAX_TILE", tile)
    head = masked_best()
    _, items = exact_lists(exact_values(head), 30)
    lists = screened_lists(head, 30, Screening(head, True), lse=False)
    assert lists is not None
    assert torch.equal(lists.items, items)


@pytest.mark.parametrize("case", ["all equal", "long list", "not a number", "a weight that is not a number"])
def test_lists_that_cannot_be_screened_are_read_in_float32(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screened_pass, "MAX_REREAD", 100)
    head, k = random_head(10), K
    if case == "all equal":
        head = Head(head.state, torch.ones(ITEMS, WIDTH))
    elif case == "long list":
        k = ITEMS - 1
    elif case == "a weight that is not a number":  # in a part of the table that is not read first
        monkeypatch.setattr(screening, "ROWS_AT_ONCE", 300)
        head.table[ITEMS - 50, 2] = torch.nan
    else:
        head.state[3, 2] = torch.nan
    used = Screening(head, True)
    lists = top_lists(head, k, None, used, lse=False)
    assert used.passes == Passes(repeated=1 if case == "long list" else 2)  # in int8, then in float32
    assert torch.equal(lists.items, top_lists(head, k).items)


def test_a_pass_that_fails_in_int8_is_repeated_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screened_pass, "MAX_REREAD", 20)
    head = near_ties()
    used = Screening(head, True)
    with_sums, without = (top_lists(head, K, None, used, lse) for lse in (True, False))
    assert used.passes == Passes(float32=2, repeated=1)
    assert torch.equal(with_sums.items, without.items)
    assert torch.equal(with_sums.values, without.values)


def test_small_catalogues_and_other_heads_are_not_screened() -> None:
    large = Head(torch.ones(1, 2), torch.ones(screening.MIN_ITEMS, 2))
    assert Screening.supports(large)
    assert not Screening.supports(Head(torch.ones(1, 2), torch.ones(100, 2)))
    assert not Screening.supports(Head(torch.ones(1, 0), torch.ones(screening.MIN_ITEMS, 0)))
    assert not Screening.supports(Head(large.state.double(), large.table.double()))


def test_a_screening_fits_only_the_values_of_its_table() -> None:
    head = random_head(11)
    used = Screening(head)
    assert used.fits(Head(head.state[:1], head.table.clone(), head.bias))
    assert not used.fits(Head(head.state, head.table))
    assert not used.fits(Head(head.state, head.table + 1, head.bias))


@pytest.mark.parametrize("case", ["outlier", "tiny states", "no bias", "constant column", "wide spread of biases"])
def test_int8_lists_are_exact_for_unusual_tables(case: str) -> None:
    head = random_head(13)
    table, bias = head.table, head.bias
    if case == "outlier":
        table[7] *= 30
    elif case == "tiny states":
        head = Head(head.state * 1e-12, table, bias)
    elif case == "no bias":
        head = Head(head.state, table)
    elif case == "constant column":
        table[:, 3] = 5
    else:
        assert bias is not None
        bias[11] = -1e6
    used = Screening(head, True)
    lists = top_lists(head, K, None, used, lse=False)
    values, items = exact_lists(exact_values(head), K)
    assert torch.equal(lists.items, items)
    assert torch.equal(lists.values, values)
    assert used.passes.int8 + used.passes.float32 == 1


def test_a_wide_table_has_no_int8_copy() -> None:
    """Its sums could be larger than the integers that float32 represents."""
    width = screening.MAX_INT8_WIDTH
    for columns, expected in ((width, True), (width + 1, False)):
        assert Screening(Head(torch.ones(1, columns), torch.ones(64, columns)), True).uses_int8 == expected
    assert screening.LARGEST**2 * width + screening.LARGEST_BIAS <= 1 << 24


@pytest.mark.parametrize("int8", [False, True])
def test_no_rows_have_no_lists(int8: bool) -> None:
    head = random_head(15, rows=0)
    lists = top_lists(head, K, None, Screening(head, int8), lse=False)
    assert lists.items.shape == (0, K)
