"""The tiled functions on a GPU agree with float64 on the CPU."""

from dataclasses import replace

import pytest
import torch

from offrec.catalogue import Head, log_prob, rank, reference, top_k

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("replaces_base", [False, True])
def test_the_gpu_agrees_with_float64_on_the_cpu(replaces_base: bool) -> None:
    torch.manual_seed(0)
    rows, items, width = 300, 20_011, 48
    head = Head(
        torch.randn(rows, width, dtype=torch.double),
        torch.randn(items, width, dtype=torch.double) / 4,
        torch.randn(items, dtype=torch.double),
        torch.randint(0, items + 1, (rows, 9)),
        torch.randn(rows, 9, dtype=torch.double) * 5,
        replaces_base=replaces_base,
    )
    assert head.bias is not None
    assert head.items is not None
    assert head.values is not None
    on_gpu = Head(
        head.state.float().cuda(),
        head.table.float().cuda(),
        head.bias.float().cuda(),
        head.items.cuda(),
        head.values.float().cuda(),
        replaces_base=replaces_base,
    )
    leaves = [
        part.requires_grad_() for part in (on_gpu.state, on_gpu.table, on_gpu.bias, on_gpu.values) if part is not None
    ]
    twins = [part.requires_grad_() for part in (head.state, head.table, head.bias, head.values)]
    target = torch.randint(0, items, (rows,))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        ours = log_prob(on_gpu, target[:, None].cuda())
        exact = reference.log_prob(head, target[:, None])
        torch.testing.assert_close(ours.double().cpu(), exact, rtol=1e-5, atol=1e-4)
        gradients = torch.autograd.grad(ours.sum(), leaves)
        expected = torch.autograd.grad(exact.sum(), twins)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one.double().cpu(), other, rtol=1e-3, atol=1e-4)
        whole = replace(head, state=head.state.detach(), values=head.values.detach())
        assert (rank(on_gpu, target.cuda()).cpu() - reference.rank(whole, target)).abs().max() <= 1
        same = top_k(on_gpu, 10)[1].cpu() == reference.top_k(whole, 10)[1]
        assert same.double().mean() > 0.99
    finally:
        torch.set_float32_matmul_precision(before)
