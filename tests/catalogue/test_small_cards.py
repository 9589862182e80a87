"""Do the kernels fit the card? Here a stand-in for one with less room, and where there is a GPU, that one itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_heads import DEVICE, Made, compare, make

from offrec.catalogue import log_prob, maximum, rank, reduce, reference, top_k, use_backend
from offrec.catalogue.reduction import reduce_with_detached
from offrec.errors import RunError

triton = pytest.importorskip("triton", reason="the kernels need triton")

from offrec.catalogue.triton import (  # noqa: E402
    backward_kernel,
    forward_kernel,
    launch,
    search_kernels,
)
from offrec.catalogue.triton.launch import Blocks  # noqa: E402

pytestmark = pytest.mark.usefixtures("full_float32")
KERNELS = {
    "forward": forward_kernel,
    "backward_table": backward_kernel,
    "largest": search_kernels,
    "not_below": search_kernels,
    "peaks": search_kernels,
}


class Card:
    """Refuses blocks above `room` as Triton does, before anything is computed, and runs the others."""

    def __init__(self, patch: pytest.MonkeyPatch, room: dict[str, int]) -> None:
        self.room = room
        self.refused: list[tuple[str, Blocks]] = []
        self.taken: list[tuple[str, Blocks]] = []
        patch.setattr(launch, "_fitting", {})
        for name in room:
            patch.setattr(KERNELS[name], name, Refusing(self, name, getattr(KERNELS[name], name)))

    def forget(self) -> None:
        self.refused.clear()
        self.taken.clear()


class Refusing:
    def __init__(self, card: Card, name: str, kernel: Any) -> None:
        self.card, self.name, self.kernel = card, name, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            size = Blocks(*(constants[name] for name in ("BM", "BN", "num_warps", "num_stages")))
            needed = size.rows * size.items * size.stages
            if needed > self.card.room[self.name]:
                self.card.refused.append((self.name, size))
                raise triton.OutOfResources(needed, self.card.room[self.name], "shared memory")
            self.card.taken.append((self.name, size))
            self.kernel[grid](*arguments, **constants)

        return launch


def test_ever_smaller_blocks() -> None:
    """Fewer stages, fewer items, fewer rows, down to a tensor core's 16 × 16."""
    sizes = [Blocks(64, 32, 8, 3)]
    while sizes[-1].smaller is not None:
        sizes.append(sizes[-1].smaller)
    assert [(size.rows, size.items, size.stages) for size in sizes] == [
        (64, 32, 3), (64, 32, 2), (64, 32, 1), (64, 16, 1), (32, 16, 1), (16, 16, 1),
    ]  # fmt: skip
    assert {size.warps for size in sizes} == {8}


@pytest.mark.parametrize(("corrections", "room"), [("none", 16 * 16), ("replaced", 16 * 16), ("replaced", 64 * 32)])
def test_values_and_gradients_on_a_small_card(monkeypatch: pytest.MonkeyPatch, corrections: str, room: int) -> None:
    """Three heads; the excluded pairs have to be sorted into the smaller tiles."""
    card = Card(monkeypatch, {"forward": room, "backward_table": room})
    heads = [make((40, 50, width), corrections, seed=seed) for seed, width in enumerate((8, 11, 4))]
    bound = torch.zeros(40, device=DEVICE)
    compare(
        heads,
        lambda pi, q, b: reduce(pi, [(1.0, pi), (-2.0, q), (0.5, b)], below=(b, bound.to(pi.dtype))),
        tolerance=5e-5,
    )
    for name in ("forward", "backward_table"):
        assert name in [refused for refused, _ in card.refused]
        assert name in [taken for taken, _ in card.taken]


def test_picked_items_on_a_small_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16, whose picked items are added inside of the kernel."""
    card = Card(monkeypatch, {"backward_table": 32 * 16})
    actions = torch.tensor([0, 15, 16, 31, 99], device=DEVICE).repeat(14).reshape(70, 1)
    compare([make((70, 100, 16), dtype=torch.bfloat16)], lambda head: [log_prob(head, actions)], tolerance=0.01)
    assert card.taken == [("backward_table", Blocks(32, 16, 4, 1))]


@pytest.mark.parametrize("corrections", ["none", "replaced"])
def test_decisions_on_a_small_card(monkeypatch: pytest.MonkeyPatch, corrections: str) -> None:
    card = Card(monkeypatch, {"largest": 32 * 16, "not_below": 64 * 32, "peaks": 16 * 16})
    head = make((40, 150, 8), corrections).head.detach()
    target = torch.randint(0, 150, (40,), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    with use_backend("kernels"):
        values, items = maximum(head)
        best, order = top_k(head, 12)
        position = rank(head, target)
    wanted = reference.top_k(head, 12)
    assert torch.equal(items, wanted[1][:, 0])
    torch.testing.assert_close(values, wanted[0][:, 0])
    assert torch.equal(order, wanted[1])
    torch.testing.assert_close(best, wanted[0])
    assert torch.equal(position, reference.rank(head, target))
    assert {name: size.tile for name, size in card.taken} == {
        "largest": (32, 16), "not_below": (64, 32), "peaks": (16, 16),
    }  # fmt: skip


def everything(made: Made) -> None:
    with use_backend("kernels"):
        reduce(made.head, [(1.0, made.head)]).mean.sum().backward()
        top_k(made.head.detach(), 3)


def test_what_fits_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each kernel by itself: one that needs less keeps its larger blocks."""
    card = Card(monkeypatch, {"forward": 64 * 16, "backward_table": 1 << 30, "peaks": 64 * 64})
    made = make((20, 30, 8), "added")
    everything(made)
    first = list(card.taken)
    assert {name for name, _ in card.refused} == {"forward", "peaks"}
    assert dict(first)["forward"] == Blocks(64, 16, 4, 1)
    assert dict(first)["backward_table"] == launch.BACKWARD[4, "one"][64]
    card.forget()
    everything(made)
    assert card.refused == []
    assert card.taken == first


@pytest.mark.parametrize("kernel", ["forward", "backward_table", "peaks"])
def test_a_card_that_is_too_small_says_what_to_do(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    Card(monkeypatch, {kernel: 255})
    made = make((9, 40, 8), "added")
    with pytest.raises(RunError) as caught:
        everything(made)
    assert str(caught.value).replace("cuda:0", "cuda") == (
        f"The catalogue's kernels do not fit the device {DEVICE}: the smallest blocks take 256 of its shared memory "
        "and it has 255; set catalogue=tiled."
    )


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 128, 256])
def test_four_heads_fit_the_card(width: int, dtype: torch.dtype) -> None:
    """TF32: the largest there is, with a backward pass and without."""
    torch.set_float32_matmul_precision("high")
    made = [make((300, 3000, width), "replaced", seed=seed, dtype=dtype) for seed in range(4)]
    pi, q, b, stay = (one.head for one in made)
    with use_backend("kernels"):
        for learns in (False, True):
            with torch.set_grad_enabled(learns):
                sums, detached = reduce_with_detached(pi, [(1.0, q), (-0.5, b)], [(1.0, stay)], normalised=b)
    sums.mean.sum().backward()
    with torch.no_grad():
        exact = [one.double().head for one in made]
        true = reference.reduce(exact[0], [(1.0, exact[1]), (-0.5, exact[2])])[1]
        true_detached, true_lse = reference.reduce(exact[0], [(1.0, exact[3])])[1], reference.logsumexp(exact[2])
    for mine, its in ((sums.mean, true), (detached.mean, true_detached), (detached.lse, true_lse)):
        assert (mine - its).abs().max() < 0.1 * width**0.5
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in made[0].leaves)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_every_block_size_fits_the_card(width: int, heads: int, dtype: torch.dtype) -> None:
    """TF32, corrections, noise off and on: what is compiled must also launch."""
    torch.set_float32_matmul_precision("high")
    made = [make((300, 3000, width), "replaced", seed=seed, dtype=dtype) for seed in range(heads)]
    with use_backend("kernels"):
        sums = reduce(made[0].head, [(1.0 - i, one.head) for i, one in enumerate(made)])
        (sums.mean + sums.lse).sum().backward()
        if heads == 1 and dtype == torch.float32:
            head = made[0].head.detach()
            items = top_k(head, 20)[1]
            assert torch.equal(items, reference.top_k(made[0].double().head, 20)[1])
            assert torch.equal(maximum(head)[1], items[:, 0])
            position = rank(head, items[:, 3])  # what rounding alone could have ordered counts as a tie
            assert position.min() == 4
            assert (position > 4).float().mean() < 0.02
    with torch.no_grad():
        truth = [one.double().head for one in made]
        true = reference.reduce(truth[0], [(1.0 - i, head) for i, head in enumerate(truth)], None)
    assert (sums.lse - true[0]).abs().max() < 0.05 * width**0.5
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for one in made[:1] for leaf in one.leaves)
