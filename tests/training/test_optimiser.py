"""Row-wise state calculated by hand, exact Adam for other parameters, and exact resume of both."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offrec.console import Console
from offrec.errors import Interrupted
from offrec.evaluation import evaluate
from offrec.runs.train import train
from offrec.training import checkpoint, optimiser
from offrec.training.optimiser import Optimiser, state_bytes
from offrec.training.update import Update

QUIET = Console(quiet=True)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(7, 4))
        self.other = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)

    def random_gradients(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        for parameter in (self.table, self.other):
            parameter.grad = torch.randn(parameter.shape, generator=random)


def test_full_is_adam() -> None:
    ours, theirs = Two(), Two()
    one = Optimiser(ours, 0.01, [ours.table])
    two = torch.optim.Adam([theirs.table, theirs.other], lr=0.01)
    for seed in range(5):
        ours.random_gradients(seed)
        theirs.random_gradients(seed)
        if seed == 3:
            one.rate = two.param_groups[0]["lr"] = 0.001
        one.step()
        two.step()
    torch.testing.assert_close(ours.table, theirs.table)
    torch.testing.assert_close(ours.other, theirs.other)


def test_full_equals_the_fused_adam_of_torch_bit_for_bit() -> None:
    ours, theirs = Two(), Two()
    one = Optimiser(ours, 0.01, [ours.table])
    two = torch.optim.Adam([theirs.table, theirs.other], lr=0.01, betas=optimiser.BETAS, eps=1e-8, fused=True)
    for seed in range(5):
        ours.random_gradients(seed)
        theirs.random_gradients(seed)
        if seed in (1, 2):  # without a gradient a parameter, its moments and its count stay
            ours.other.grad = theirs.other.grad = None
        one.step()
        two.step()
    assert torch.equal(ours.table, theirs.table)
    assert torch.equal(ours.other, theirs.other)
    assert [float(one.tensors()[f"optimiser.{index}.step"]) for index in (0, 1)] == [5.0, 3.0]


def test_row_wise_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of a row with gradients (3, 4) and (0, 2), in chunks of one row."""
    monkeypatch.setattr(optimiser, "CHUNK", 2)
    module = nn.Module()
    module.table = nn.Parameter(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    made = Optimiser(module, 0.1, [module.table], "rowwise")
    module.table.grad = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    made.step()
    scale = (25 / 2) ** 0.5  # √ of the row's mean square, both moments unbiased
    expected = torch.tensor([1 - 0.1 * 3 / scale, 1 - 0.1 * 4 / scale])
    torch.testing.assert_close(module.table[0], expected)
    assert module.table[1].tolist() == [2.0, 2.0], "a row without a gradient stays"
    module.table.grad = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    made.step()
    first = torch.tensor([0.9 * 0.3, 0.9 * 0.4 + 0.1 * 2]) / (1 - 0.9**2)
    second = (0.999 * 0.001 * 12.5 + 0.001 * 2) / (1 - 0.999**2)
    torch.testing.assert_close(module.table[0], expected - 0.1 * first / second**0.5, rtol=3e-3, atol=0)  # bfloat16
    assert made.rowwise.first[0].dtype == torch.bfloat16
    assert made.rowwise.second[0].shape == (2,)


def test_only_tables_have_row_wise_state() -> None:
    whole, theirs = Two(), Two()
    one = Optimiser(whole, 0.01, [whole.table], "rowwise")
    two = torch.optim.Adam([theirs.other], lr=0.01)
    for seed in range(3):
        whole.random_gradients(seed)
        theirs.random_gradients(seed)
        one.step()
        two.step()
    torch.testing.assert_close(whole.other, theirs.other)
    for state in ("full", "rowwise"):
        module = Two()
        made = Optimiser(module, 0.01, [module.table], state)  # type: ignore[arg-type]
        module.random_gradients(0)
        made.step()
        held = {name: tensor.nbytes for name, tensor in made.tensors().items() if tensor.ndim}
        assert sum(held.values()) == state_bytes(module, [module.table], state)  # type: ignore[arg-type]
    one.zero_grad()
    assert whole.table.grad is None
    assert whole.other.grad is None


def test_learns_what_follows_with_row_wise_tables(tmp_path: Path, make_dataset: Any) -> None:
    """A log in which the next item is certain."""
    sessions = [[(start + step) % 12 for step in range(5)] for start in range(12)] * 6
    dataset = make_dataset(tmp_path, sessions, splits=(48, 12, 12), score_first=False)
    settings = {
        "network.width": 16,
        "network.history": 8,
        "network.dropout": 0.0,
        "training.batch_size": 60,
        "training.epochs": 60,
        "training.patience": 60,
        "training.decay": 1.0,
        "training.learning_rate": 0.02,
        "training.table_state": "rowwise",
    }
    policy = train(dataset, tmp_path / "run", device="cpu", settings=settings, console=QUIET)
    assert evaluate(policy, dataset, "test", (1,)).metrics["all"]["HR@1"] == 1.0
    stored = checkpoint.load(tmp_path / "run/last.safetensors")[0]
    assert stored["optimiser.rowwise.0.first"].shape == stored["module.actor.items_in"].shape


def test_resume_with_row_wise_tables_is_exact(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [[(7 * n + 3 * t) % 20 for t in range(2 + n % 9)] for n in range(60)]
    dataset = make_dataset(tmp_path, sessions, splits=(50, 5, 5), items=20)
    settings = {"network.width": 8, "training.batch_size": 16, "training.epochs": 2, "training.table_state": "rowwise"}

    def trained(out: str, resume: bool = False) -> dict[str, torch.Tensor]:
        train(dataset, tmp_path / out, device="cpu", settings=settings, resume=resume, console=Console(quiet=True))
        return checkpoint.load(tmp_path / out / "last.safetensors")[0]

    whole, real, done = trained("whole"), Update.__call__, 0

    def update(self: Update, size: Any) -> None:
        nonlocal done
        done += 1
        if done == 9:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, size)

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", update)
        with pytest.raises(Interrupted):
            trained("halves")
    halves = trained("halves", resume=True)
    assert whole.keys() == halves.keys()
    assert all(torch.equal(tensor, halves[name]) for name, tensor in whole.items())
