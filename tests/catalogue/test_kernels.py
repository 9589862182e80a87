"""The Triton kernels against the dense reference in float64, under Triton's interpreter without a GPU."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
import torch
from kernel_heads import CORRECTIONS, DEVICE, SHAPES, TestHead, compare, make
from torch import Tensor

from offrec.catalogue import (
    Head,
    Noise,
    gumbel_softmax,
    log_prob,
    logsumexp,
    maximum,
    reduce,
    reference,
    top_k,
    use_backend,
)
from offrec.catalogue.reduction import reduce_with_detached

pytest.importorskip("triton", reason="the kernels need triton")

pytestmark = pytest.mark.usefixtures("full_float32")


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_log_probabilities_equal_the_reference(shape: tuple[int, int, int], corrections: str) -> None:
    actions = torch.randint(0, shape[1], (shape[0], 3), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    compare([make(shape, corrections)], lambda head: [log_prob(head, actions), logsumexp(head)])


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", SHAPES[1::2], ids=str)
def test_expectations_over_three_heads_equal_the_reference(shape: tuple[int, int, int], corrections: str) -> None:
    """E_π[z − 2q + ½b] and π's mass where b is low; all heads differ in width and corrections."""
    rows, items, width = shape
    pi, q = make(shape, corrections), make((rows, items, width + 3), "added", seed=1)
    b, bound = make((rows, items, 4), corrections, bias=False, seed=2), torch.zeros(rows, device=DEVICE)
    compare(
        [pi, q, b],
        lambda pi, q, b: reduce(pi, [(1.0, pi), (-2.0, q), (0.5, b)], below=(b, bound.to(pi.dtype))),
        tolerance=5e-5,
    )


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", [(1, 200, 5), (130, 150, 20)], ids=str)
def test_detached_sums_equal_the_reference(shape: tuple[int, int, int], corrections: str) -> None:
    """Four heads in one pass: E_π[q − z + b] with gradients; E_π[q̄ − z + b] and b's logsumexp without."""
    rows, items, width = shape
    pi, q = make(shape, corrections), make((rows, items, width), "added", seed=1)
    b, stay = make((rows, items, 7), corrections, seed=2), make((rows, items, width), "added", seed=3)
    if corrections != "none":  # as in training, all heads correct the same items
        share = pi.head.items
        q, b, stay = (TestHead(replace(one.head, items=share), one.leaves) for one in (q, b, stay))

    def all_sums(pi: Head, q: Head, b: Head, stay: Head) -> Sequence[Tensor]:
        sums, detached = reduce_with_detached(
            pi, [(1.0, q), (-0.5, pi), (0.5, b)], [(1.0, stay), (-0.5, pi), (0.5, b)], normalised=b
        )
        assert not detached.mean.requires_grad
        assert not detached.lse.requires_grad
        return [sums.mean, sums.lse, detached.mean, detached.lse]

    compare([pi, q, b, stay], all_sums, tolerance=5e-5)


@pytest.mark.parametrize("corrections", CORRECTIONS)
@pytest.mark.parametrize("shape", [(1, 200, 5), (130, 150, 20), (33, 300, 64)], ids=str)
def test_a_separate_pass_for_the_gradient_of_the_state_equals_the_reference(
    shape: tuple[int, int, int], corrections: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E_π[z − 2q + ½b], π's mass where b is low, and the logsumexp; only π has gradients."""
    from offrec.catalogue.triton import backward, launch  # need triton

    monkeypatch.setattr(launch, "SEPARATE_WIDTH", launch.padded_width(shape[2]))
    calls = []
    launched = backward.backward_kernel.backward_rows
    monkeypatch.setattr(backward.backward_kernel, "backward_rows", _Counted(launched, calls))
    rows, items, width = shape
    pi, q = make(shape, corrections), make((rows, items, width), "added", seed=1).head.detach()
    b, bound = make((rows, items, 4), corrections, bias=False, seed=2).head.detach(), torch.zeros(rows, device=DEVICE)

    def sums(pi: Head) -> Sequence[Tensor]:
        others = [(-2.0, _as(pi.dtype, q)), (0.5, _as(pi.dtype, b))]
        reduced = reduce(pi, [(1.0, pi), *others], below=(others[1][1], bound.to(pi.dtype)))
        return [reduced.lse, reduced.mean, reduced.mass]

    compare([pi], sums, tolerance=5e-5)
    assert calls == ["backward_rows"]


class _Counted:
    """A kernel whose launches are counted."""

    def __init__(self, kernel: Any, calls: list[str]) -> None:
        self.kernel, self.calls = kernel, calls

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.calls.append("backward_rows")
        return self.kernel[grid]


def _as(dtype: torch.dtype, head: Head) -> Head:
    floats = {name: getattr(head, name) for name in ("state", "table", "bias", "values")}
    return replace(head, **{name: part.to(dtype) for name, part in floats.items() if part is not None})


@pytest.mark.parametrize(
    ("tiles", "warps", "programs"), [(285, 8, 95), (570, 4, 190), (100, 8, 100), (132, 8, 132), (133, 8, 67), (1, 4, 1)]
)
def test_programs_compute_equally_many_tiles(
    tiles: int, warps: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 132 multiprocessors; more programs would not end earlier, because the busiest one has as many tiles."""
    from offrec.catalogue.triton import launch  # needs triton

    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    assert launch.resident_programs(tiles, launch.Blocks(64, 128, warps, 1), torch.device("cpu")) == programs


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (31, 5), (1000, 20), (9000, 64)])
def test_column_sums(rows: int, width: int) -> None:
    from offrec.catalogue.triton.column_sums import column_sums  # needs triton

    table = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    torch.testing.assert_close(column_sums(table), table.double().sum(0).float(), atol=1e-4, rtol=1e-5)


def test_the_policy_itself_may_be_normalised() -> None:
    head = make((9, 40, 8), "replaced").head
    with use_backend("kernels"):
        sums, detached = reduce_with_detached(head, [], [(2.0, head)], normalised=head)
    torch.testing.assert_close(detached.lse, sums.lse.detach())
    torch.testing.assert_close(detached.mean, 2 * reference.reduce(head, [(1.0, head)])[1].detach())
    assert not sums.mean.any()


def test_a_coefficient_may_be_a_tensor() -> None:
    two = torch.tensor(2.0, device=DEVICE)
    compare([make((9, 40, 8)), make((9, 40, 8), seed=1)], lambda pi, q: [reduce(pi, [(two.to(pi.dtype), q)]).mean])


@pytest.mark.parametrize("corrections", ["none", "replaced"])
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_equals_the_reference(corrections: str, hard: bool) -> None:
    noise = Noise(torch.tensor(2**40 + 17, device=DEVICE))
    compare(
        [make((20, 150, 8), corrections), make((20, 150, 16), seed=1)],
        lambda pi, q: [gumbel_softmax(pi, [(1.0, pi), (-3.0, q)], temperature=0.7, noise=noise, hard=hard)],
        tolerance=1e-4,
    )


def test_every_item_of_a_row_may_be_corrected() -> None:
    made = make((4, 5, 3))
    everything = torch.arange(5, device=DEVICE).repeat(4, 1)
    values = torch.randn(4, 5, generator=torch.Generator().manual_seed(4)).to(DEVICE).requires_grad_()
    head = replace(made.head, items=everything, values=values, replaces_base=True)
    compare([TestHead(head, [*made.leaves, values])], lambda head: [reduce(head, [(1.0, head)]).mean, logsumexp(head)])


def test_large_scores_do_not_overflow() -> None:
    head = Head(torch.tensor([[1.0]], device=DEVICE), torch.tensor([[1000.0], [-1000.0], [999.0]], device=DEVICE))
    with use_backend("kernels"):
        assert logsumexp(head).item() == pytest.approx(1000 + torch.tensor(-1.0).exp().log1p().item())


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
@pytest.mark.parametrize("shape", [(64, 500, 32), (20, 300, 64), (256, 5000, 64)], ids=str)
def test_errors_are_no_larger_than_those_of_dense_pytorch(shape: tuple[int, int, int], kind: str) -> None:
    """Compare root mean square errors against float64, with the same operands; a maximum would be too noisy."""
    if kind == "tf32" and DEVICE.type == "cpu":
        pytest.skip("TF32 needs a GPU")
    if DEVICE.type == "cpu" and shape[1] > 1000:
        pytest.skip("too slow under the interpreter")
    torch.set_float32_matmul_precision("high")
    made = make(shape, bias=False, dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
    actions = torch.randint(0, shape[1], (shape[0], 1), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def run(one: TestHead, by: str) -> list[Tensor]:
        for leaf in one.leaves:
            leaf.grad = None
        if by == "dense":
            z = one.head.state @ one.head.table.T
            loss = torch.nn.functional.cross_entropy(z.float(), actions[:, 0], reduction="none")
        else:
            with use_backend(by):
                loss = -log_prob(one.head, actions)[:, 0]
        loss.mean().backward()
        return [loss.detach().double(), *(leaf.grad.double() for leaf in one.leaves if leaf.grad is not None)]

    true, ours, dense = run(made.double(), "reference"), run(made, "kernels"), run(made, "dense")
    # The interpreter truncates bfloat16 instead of rounding it; tensor cores truncate a TF32 table.
    slack = 2.0 if DEVICE.type == "cpu" else 1.15 if kind == "tf32" else 1.02
    for mine, plain, size in zip(ours, dense, true, strict=True):
        error, allowed = ((part - size).square().mean().sqrt() for part in (mine, plain))
        assert error <= slack * allowed + 1e-6 * size.square().mean().sqrt()


@pytest.mark.parametrize("picks", [1, 2, 3])
def test_gradients_of_picked_items_in_few_tiles(picks: int) -> None:
    """With bfloat16, the kernel adds the gradients of picked items, only in tiles that contain one.

    Here they are the first and last items of tiles, picked by rows of several blocks; all other tiles contain none.
    """
    made = make((150, 400, 16), dtype=torch.bfloat16)
    actions = torch.tensor([0, 63, 64, 191, 399], device=DEVICE).repeat(30 * picks).reshape(150, picks)
    compare([made], lambda head: [log_prob(head, actions)], tolerance=0.01)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # by the interpreter; the sums are discarded
@pytest.mark.parametrize("gap", [35.0, 200.0])
@pytest.mark.parametrize("programs", [1, 6])
@pytest.mark.parametrize("where", ["later tiles", "first tile", "corrected item"])
def test_scores_far_above_others(monkeypatch: pytest.MonkeyPatch, where: str, programs: int, gap: float) -> None:
    """A program weights scores relative to its first tile; with a gap of 200, such weights would over- or underflow.

    With a gap of 35, they would not, and the sums of programs with different gaps are added.
    """
    from offrec.catalogue.triton import launch  # needs triton

    monkeypatch.setattr(launch, "PROGRAMS", programs)  # 1: one program for all tiles
    pi, q, b = (make((70, 500, 8), "replaced" if where == "corrected item" else "none", seed=seed) for seed in range(3))
    high = {"later tiles": slice(300, None), "first tile": slice(0, 9), "corrected item": slice(0, 1)}[where]
    for one in (pi, b):
        assert one.head.bias is not None
        one.head.bias.data[high] += gap
    if where == "corrected item":  # item 0 has a usual score in all rows, though the first tile contains its bias
        items = torch.full((70, 7), 500, device=DEVICE)
        items[:, 0] = 0
        pi, q, b = (TestHead(replace(one.head, items=items), one.leaves) for one in (pi, q, b))

    def all_sums(pi: Head, q: Head, b: Head) -> Sequence[Tensor]:
        sums, detached = reduce_with_detached(pi, [(1.0, q), (-0.5, pi)], [(1.0, b)], normalised=b)
        below = reduce(pi, [(1.0, q)], below=(q, bound.to(pi.dtype)))
        return [sums.mean, sums.lse, detached.mean, detached.lse, below.mean, below.mass]

    bound = torch.linspace(-1.0, 1.0, 70, device=DEVICE)
    compare([pi, q, b], all_sums, tolerance=5e-5)


def test_unsupported_heads_are_refused() -> None:
    head = make((3, 9, 4)).head
    with use_backend("kernels"):
        with pytest.raises(ValueError, match="float32 or bfloat16"):
            logsumexp(Head(head.state.double(), head.table.double()))
        with pytest.raises(ValueError, match="widths"):
            logsumexp(Head(torch.zeros(2, 300, device=DEVICE), torch.zeros(4, 300, device=DEVICE)))


def test_values_are_equal_with_and_without_a_backward_pass() -> None:
    made = make((9, 40, 8), "replaced")
    with use_backend("kernels"):
        with_grad = reduce(made.head, [(1.0, made.head)])
        with torch.no_grad():
            without_grad = reduce(made.head, [(1.0, made.head)])
    torch.testing.assert_close(with_grad.mean.detach(), without_grad.mean)
    assert not without_grad.mean.requires_grad


def test_heads_that_differ_only_in_their_bias_are_different() -> None:
    made = make((9, 40, 8))
    other = replace(made.head, bias=torch.linspace(-1, 1, 40).to(DEVICE))
    with use_backend("kernels"):
        mean = reduce(made.head, [(1.0, other)]).mean.detach()
    torch.testing.assert_close(mean, reference.reduce(made.head, [(1.0, other)], None)[1].detach())


def test_a_head_without_rows() -> None:
    head = Head(torch.zeros(0, 4, device=DEVICE), torch.ones(7, 4, device=DEVICE))
    with use_backend("kernels"):
        assert logsumexp(head).shape == (0,)
        assert maximum(head)[1].shape == (0,)
        assert top_k(head, 3)[1].shape == (0, 3)


@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_of_leaf_tables_are_computed_on_the_main_stream(monkeypatch: pytest.MonkeyPatch, leaf: bool) -> None:
    """On a side stream, the accumulation would have to wait for it at once, and PyTorch would warn."""
    from offrec.catalogue.triton import reduction  # needs triton

    numbers = []

    class RecordedStreams:
        def __init__(self, device: torch.device) -> None: ...

        def __call__(self, number: int) -> nullcontext[None]:
            numbers.append(number)
            return nullcontext()

        def join(self, retain: object = None) -> None: ...

    monkeypatch.setattr(reduction, "SideStreams", RecordedStreams)
    made = make((9, 40, 8), "added")
    head = made.head if leaf else replace(made.head, table=2 * made.head.table, bias=2 * made.head.bias)
    with use_backend("kernels"):
        logsumexp(head).sum().backward()
    assert numbers == ([] if leaf else [reduction.TABLE_STREAM])
    assert all(part.grad is not None for part in made.leaves)


def _tensors(part: Any) -> Iterator[Tensor]:
    """Yield all tensors inside an object."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, dict | list | tuple):
        for one in part.values() if isinstance(part, dict) else part:
            yield from _tensors(one)
    elif is_dataclass(part):
        yield from _tensors(vars(part))


@pytest.mark.parametrize("case", ["picked", "below", "noise"])
def test_tensors_that_the_table_gradients_read_are_recorded_on_their_stream(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Before any of them is read: another stream owns their memory and could reuse it."""
    from offrec.catalogue.triton.backward import TableGradients  # needs triton

    seen: list[TableGradients] = []
    real = TableGradients.compute
    monkeypatch.setattr(TableGradients, "compute", lambda work, wanted: seen.append(work) or real(work, wanted))
    pi, b = (make((9, 40, 8), "added", seed=seed).head for seed in (0, 1))
    with use_backend("kernels"):
        if case == "picked":
            output = log_prob(pi, torch.zeros(9, 3, dtype=torch.long, device=DEVICE))
        elif case == "below":
            below = reduce(pi, [(1.0, b)], below=(b, torch.zeros(9, device=DEVICE)))
            output = below.lse + below.mean + below.mass
        else:
            noise = Noise(torch.tensor(17, device=DEVICE))
            output = gumbel_softmax(pi, [(1.0, b)], temperature=0.7, noise=noise)
        output.sum().backward()
    (work,) = seen
    # Forward passes may add to the shared pairs; the backward pass reads a copy of them.
    wanted = {id(tensor) for tensor in _tensors(replace(work, slots=replace(work.slots, pairs={})))}
    recorded: dict[int, object] = {}
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: recorded.update({id(tensor): stream}))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "current")
    read: list[set[int]] = []
    monkeypatch.setattr(TableGradients, "_of_head", lambda work, which: read.append(set(recorded)) or [None, None])
    real(work, [True])
    assert read == [wanted]
    assert set(recorded.values()) == {"current"}
    assert all(list(_tensors(getattr(work, name))) for name in ("parts", "slots", "lse", "factors", "given"))
    assert work.slots.backward_pairs
    assert list(_tensors(work.picked if case == "picked" else work.extras))
