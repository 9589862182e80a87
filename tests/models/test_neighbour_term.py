"""The neighbour term: the mixed head compared with the dense formula, the loss, and what training may read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec import losses
from offrec.catalogue import Head, log_prob, reference
from offrec.console import Console
from offrec.data.neighbours import NeighbourCounts, count_neighbours
from offrec.models.neighbours import STEPS, NeighbourTerm, merge
from offrec.runs.train import train
from offrec.types import Sessions

ITEMS, WIDTH = 12, 4


@pytest.fixture
def counts() -> NeighbourCounts:
    random = np.random.default_rng(0)
    items = random.integers(0, ITEMS - 2, size=200).astype(np.int32)  # the last two items have no neighbours
    return count_neighbours(Sessions(items, np.zeros(200, np.uint8), np.arange(0, 201, 5)), ITEMS, 6, STEPS)


@pytest.fixture
def term(counts: NeighbourCounts) -> NeighbourTerm:
    torch.manual_seed(0)
    built = NeighbourTerm(ITEMS, WIDTH, 6, counts)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built


RECENT = torch.tensor([[3, 1, 3, 5, 2, 7, 4], [12, 12, 12, 12, 12, 12, 12], [0, 12, 12, 12, 12, 12, 12],
                       [11, 10, 12, 12, 12, 12, 12]])  # fmt: skip


def head(kind: str) -> Head:
    generator = torch.Generator().manual_seed(1)
    state, table = (torch.randn(n, WIDTH, generator=generator) for n in (len(RECENT), ITEMS))
    bias, values = torch.randn(ITEMS, generator=generator), torch.randn(RECENT.shape, generator=generator)
    if kind == "plain":
        return Head(state, table, bias)
    return Head(state, table, bias, RECENT, values, replaces_base=kind == "instead")


def dense_mass(term: NeighbourTerm, state: torch.Tensor) -> torch.Tensor:
    """[B, A] Σ_j σ(w_j) share(a | item j steps back), one number at a time."""
    mass = torch.zeros(len(RECENT), ITEMS, dtype=torch.double)
    for row, recent in enumerate(RECENT.tolist()):
        for step, item in enumerate(recent[:STEPS]):
            if term.totals[item] > 0:
                weight = term.by_recency[step] + term.by_state[step] @ state[row]
                weight = term.scale * (weight + term.by_total * term.totals[item].log1p())
                weight = weight.double().sigmoid()
                for neighbour, share in zip(term.items[item].tolist(), term.shares[item].tolist(), strict=True):
                    if neighbour < ITEMS:
                        mass[row, neighbour] += weight.item() * share
    return mass


@pytest.mark.parametrize("kind", ["plain", "bonus", "instead"])
def test_the_mixed_head_equals_the_formula(term: NeighbourTerm, kind: str) -> None:
    before = head(kind)
    with torch.no_grad():
        mixed = reference.logits(term.mix(before, RECENT))
        z = reference.logits(before).double()
        expected = (z.exp() + z.exp().sum(1, keepdim=True) * dense_mass(term, before.state)).log()
    torch.testing.assert_close(mixed, expected.float(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_history_without_neighbours_changes_nothing(term: NeighbourTerm) -> None:
    before, mixed = reference.logits(head("bonus")), reference.logits(term.mix(head("bonus"), RECENT))
    torch.testing.assert_close(mixed[[1, 3]], before[[1, 3]])  # an empty history; items without neighbours
    assert (mixed[[0, 2]] > before[[0, 2]] + 1e-3).any(1).all()


@torch.no_grad()
def test_the_loss_is_the_likelihood_of_the_mixed_head(term: NeighbourTerm) -> None:
    """If the event's own session were not excluded, training would maximise what `mix` ranks by."""
    before, action = head("instead"), torch.tensor([[1], [4], [2], [0]])
    recent = RECENT[:, :STEPS]
    totals = term.totals[recent]
    shares = torch.zeros(recent.shape)
    for row, step in np.ndindex(*recent.shape):
        match = term.items[recent[row, step]] == action[row]
        shares[row, step] = term.shares[recent[row, step]][match].sum()
    term.own_shares, term.own_totals = shares, totals
    kept = term.shares.sum(1)  # only the largest neighbours are stored
    term.shares /= kept.clamp(min=1e-9)[:, None]
    term.own_shares = shares / kept[recent].clamp(min=1e-9)
    logged, total = term.logged_and_total(before.state, torch.arange(len(RECENT)))
    log_pi = losses.add_mass(log_prob(before, action)[:, 0], logged, total)
    torch.testing.assert_close(log_pi, log_prob(term.mix(before, RECENT), action)[:, 0], rtol=1e-4, atol=1e-4)


def test_every_weight_receives_a_gradient(term: NeighbourTerm) -> None:
    state = torch.randn(200, WIDTH, requires_grad=True)
    logged, total = term.logged_and_total(state, torch.arange(200))
    (logged - total).clamp(min=-20).sum().backward()
    for tensor in (state, *term.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()


def test_merge_adds_up_equal_items() -> None:
    items, mass = merge(torch.tensor([[3, 1, 3, 9], [2, 2, 2, 2]]), torch.tensor([[0.1, 0.2, 0.3, 0.0], [1.0] * 4]), 9)
    torch.testing.assert_close(items, torch.tensor([[1, 3, 9, 9], [2, 9, 9, 9]]))
    torch.testing.assert_close(mass, torch.tensor([[0.2, 0.4, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]))


def test_neighbours_are_on_in_strong_and_off_in_paper_and_other_learners(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0, 1, 2], [2, 1, 0], [1, 2], [0, 1], [1, 0]])
    settings = {"training.epochs": 1, "network.width": 4, "diagnostics": "some"}
    has_term = {}
    for name, preset in (("sl", "strong"), ("sl", "paper"), ("pc", "strong")):
        out = tmp_path / f"{name}-{preset}"
        policy = train(dataset, out, algorithm=name, preset=preset, settings=settings, console=Console(quiet=True))
        has_term[name, preset] = policy.agent.neighbours is not None
    assert has_term == {("sl", "strong"): True, ("sl", "paper"): False, ("pc", "strong"): False}


def test_validation_and_test_sessions_are_not_counted(make_dataset: Any, tmp_path: Path) -> None:
    train_part = [[0, 1, 2], [2, 1, 0], [1, 2], [0, 1]]
    settings = {"training.epochs": 1, "network.width": 4}
    tables = []
    for number, other in enumerate(([3, 2], [3, 0, 3])):
        dataset = make_dataset(tmp_path, [*train_part, other, other], items=4)
        policy = train(dataset, tmp_path / f"run-{number}", settings=settings, console=Console(quiet=True))
        assert policy.agent.neighbours is not None
        tables.append(policy.agent.neighbours.items)
    assert torch.equal(*tables)


def test_add_mass_by_hand() -> None:
    log_pi, mass, total = (torch.tensor([number]).log() for number in (0.5, 0.25, 2.0))
    torch.testing.assert_close(losses.add_mass(log_pi, mass, total).exp(), torch.tensor([0.75 / 3]))
