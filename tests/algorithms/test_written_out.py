"""The terms of every learner, compared with its equations computed densely, with and without unlogged items."""

import math
from typing import Any

import pytest
import torch
from small_symbols import BY_SYMBOLS, ITEMS, symbols
from torch import Tensor

from offrec.algorithms import LEARNERS, Symbols
from offrec.catalogue.reference import logits

ALPHA, BETA = 0.3, 0.6
UNIFORM = -math.log(ITEMS)


class Dense:
    """The symbols as matrices [B, A] and vectors [B]."""

    def __init__(self, x: Symbols) -> None:
        self.x = x
        self.q, self.next_q, self.target_q, self.next_online_q = map(
            logits, (x.q, x.next_q, x.target_q, x.next_online_q)
        )
        self.log_pi, self.next_log_pi, self.log_b, self.next_log_b = (
            logits(head).log_softmax(1) for head in (x.pi, x.next_pi, x.b, x.next_b)
        )

    def logged(self, matrix: Tensor) -> Tensor:
        return matrix.gather(1, self.x.logged)[:, 0]

    def critic(self, next_value: Tensor, value_if_ignored: Tensor, extra: Tensor | None = None) -> Tensor:
        """Squared errors of the logged item plus .8 times the mean of the unlogged ones'."""
        x = self.x
        rewards = x.rewards if extra is None else x.rewards + extra.gather(1, x.actions)
        target = rewards[:, 0] + x.discounts[:, 0] * (0.7 * next_value + 0.3 * x.next_return_to_go)
        error = (self.logged(self.q) - target) ** 2
        for column in range(1, x.actions.shape[1]):
            target = rewards[:, column] + 0.9 * value_if_ignored
            one = (self.q.gather(1, x.actions)[:, column] - target) ** 2
            error = error + 0.8 * one / (x.actions.shape[1] - 1)
        return error


def value(log_pi: Tensor, q: Tensor, log_prior: Tensor | float) -> Tensor:
    return (log_pi.exp() * (q - ALPHA * (log_pi - log_prior))).sum(1)


def advantage_weight(d: Dense, options: dict[str, Any]) -> Tensor | float:
    """SA2C's weights; the symbols say that there were 5 updates."""
    if options.get("warmup", 1000) > 5:
        return 1.0
    others = d.q.gather(1, d.x.actions)[:, 1:]
    n = others.shape[1]
    weight = d.logged(d.q) - (d.logged(d.q) + others.sum(1)) / (n + 1)
    weight = weight if options.get("negative") else weight.clamp(min=0.0)
    weight = weight * ((d.logged(d.log_pi) - d.x.log_b).exp().clamp(0.1, 10.0)) ** options.get("smooth", 0.0)
    if options.get("normalised", True):
        weight = weight / (d.x.weight * weight).sum().clamp(min=1e-300)
    return weight


def written_out(name: str, x: Symbols, options: dict[str, Any]) -> dict[str, Tensor]:
    d = Dense(x)
    likelihood = -d.logged(d.log_pi)
    chosen = d.next_online_q.argmax(1, keepdim=True)
    best = d.next_q.gather(1, chosen)[:, 0] if options.get("double") else d.next_q.amax(1)
    chosen = d.q.argmax(1, keepdim=True)
    best_here = d.target_q.gather(1, chosen)[:, 0] if options.get("double") else d.target_q.amax(1)
    deep_q = d.critic(best, best_here)
    pi, b = d.logged(d.log_pi).exp(), x.log_b.exp()
    gradient = -(pi / b).clamp(max=10.0) * 4 * (1 - pi) ** 3 * x.return_to_go * d.logged(d.log_pi)
    prior = UNIFORM if options.get("uniform_prior", True) else 0.0
    sdac = {
        "critic": 0.5 * d.critic(value(d.next_log_pi, d.next_q, prior), value(d.log_pi, d.target_q, UNIFORM)),
        "actor": -value(d.log_pi, d.q, prior) / ALPHA,
    }
    outside = (d.log_pi.exp() * (d.log_b.exp() <= 0.1)).sum(1)
    advantage = d.logged(d.q) - value(d.log_pi, d.q, prior)
    weight = (advantage / BETA).exp().clamp(max=20.0)
    return {
        "sl": {"cross_entropy": likelihood},
        "dqn": {"critic": deep_q},
        "pg": {"actor": gradient},
        "sl+dqn": {"cross_entropy": likelihood, "critic": deep_q},
        "sl+pg": {"actor": gradient, "cross_entropy": likelihood},
        "sdac": sdac,
        "sc": sdac | {"support": BETA * outside},
        "sr": sdac | {"cross_entropy": BETA * likelihood},
        "pc": {"critic": sdac["critic"], "actor": weight / (x.weight * weight).sum() * likelihood},
        "dc": {
            "critic": 0.5
            * d.critic(value(d.next_log_pi, d.next_q, d.next_log_b), value(d.log_pi, d.target_q, d.log_b)),
            "actor": -value(d.log_pi, d.q, d.log_b) / ALPHA,
        },
        "snqn": {"cross_entropy": likelihood, "critic": deep_q},
        "sa2c": {"cross_entropy": advantage_weight(d, options) * likelihood, "critic": deep_q},
        "re": {
            "critic": 0.5
            * d.critic(value(d.next_log_pi, d.next_q, 0.0), value(d.log_pi, d.target_q, 0.0), ALPHA * d.log_b),
            "actor": -value(d.log_pi, d.q, 0.0) / ALPHA,
        },
    }[name]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("sl", {}),
    ("dqn", {}),
    ("dqn", {"double": True}),
    ("pg", {"k": 4}),
    ("sl+dqn", {}),
    ("sl+dqn", {"double": True}),
    ("sl+pg", {"k": 4}),
    ("sdac", {"alpha": ALPHA}),
    ("sdac", {"alpha": ALPHA, "uniform_prior": False}),
    ("sc", {"alpha": ALPHA, "beta": BETA, "delta": 0.1}),
    ("sr", {"alpha": ALPHA, "beta": BETA}),
    ("pc", {"alpha": ALPHA, "beta": BETA}),
    ("pc", {"alpha": ALPHA, "beta": BETA, "uniform_prior": False}),
    ("dc", {"alpha": ALPHA}),
    ("re", {"alpha": ALPHA}),
    ("snqn", {}),
    ("snqn", {"double": True}),
    ("sa2c", {}),
    ("sa2c", {"warmup": 5}),
    ("sa2c", {"warmup": 5, "smooth": 0.5, "normalised": False, "negative": True, "double": True}),
]


@pytest.mark.parametrize("unlogged", [0, 2])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_terms(name: str, options: dict[str, Any], unlogged: int) -> None:
    x = symbols(unlogged)
    found, expected = LEARNERS[name].learner(**options).loss(x), written_out(name, x, options)
    assert found.keys() == expected.keys()
    for term in expected:
        torch.testing.assert_close(found[term], expected[term], msg=f"{name}'s {term}")


def test_every_learner_is_written_out() -> None:
    assert {name for name, _ in CASES} == set(BY_SYMBOLS)
