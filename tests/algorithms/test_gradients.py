"""Which loss term has a gradient to which tensor, for all learners."""

from typing import Any

import pytest
import torch
from small_symbols import BY_SYMBOLS, gradients, symbols

from offrec.algorithms import LEARNERS

PI, Q, OWN_B = {"pi"}, {"q"}, {"b"}
CASES: list[tuple[str, dict[str, Any], dict[str, set[str]]]] = [
    ("sl", {}, {"cross_entropy": PI}),
    ("sl", {"weight": "reward"}, {"cross_entropy": PI}),
    ("dqn", {}, {"critic": Q}),
    ("dqn", {"double": True}, {"critic": Q}),
    ("pg", {"k": 4}, {"actor": PI}),
    ("pg", {"self_normalised": True}, {"actor": PI}),
    ("pg", {"logging": "logged"}, {"actor": PI}),
    ("pg", {"logging": "own"}, {"actor": PI, "logging_cross_entropy": OWN_B}),
    ("sl+dqn", {}, {"cross_entropy": PI, "critic": Q}),
    ("sl+dqn", {"double": True}, {"cross_entropy": PI, "critic": Q}),
    ("sl+pg", {"k": 4}, {"actor": PI, "cross_entropy": PI}),
    ("sl+pg", {"logging": "own"}, {"actor": PI, "cross_entropy": PI, "logging_cross_entropy": OWN_B}),
    ("sdac", {}, {"critic": Q, "actor": PI}),
    ("sdac", {"uniform_prior": False}, {"critic": Q, "actor": PI}),
    ("sc", {"delta": 0.1}, {"critic": Q, "actor": PI, "support": PI}),
    ("sr", {}, {"critic": Q, "actor": PI, "cross_entropy": PI}),
    ("sr", {"adaptive": True}, {"critic": Q, "actor": PI, "cross_entropy": PI, "~kl": set()}),
    ("sr", {"adaptive": True, "kl": "likelihood"}, {"critic": Q, "actor": PI, "cross_entropy": PI, "~kl": set()}),
    ("pc", {}, {"critic": Q, "actor": PI}),
    ("pc", {"baseline": False, "normalised": False}, {"critic": Q, "actor": PI}),
    ("dc", {}, {"critic": Q, "actor": PI}),
    ("re", {}, {"critic": Q, "actor": PI}),
    ("snqn", {}, {"cross_entropy": PI, "critic": Q}),
    ("sa2c", {}, {"cross_entropy": PI, "critic": Q}),
]
SAMPLED = [
    (name, {**options, "expectation": "gumbel", "straight_through": hard}, moved)
    for name, options, moved in CASES
    if name in ("sdac", "sc", "sr", "pc", "dc", "re")
    for hard in (False, True)
]


@pytest.mark.parametrize("unlogged", [0, 2])
@pytest.mark.parametrize(("name", "options", "moved"), CASES + SAMPLED)
def test_each_term_has_gradients_to_the_declared_tensors_only(
    name: str, options: dict[str, Any], moved: dict[str, set[str]], unlogged: int
) -> None:
    x = symbols(unlogged)
    terms = LEARNERS[name].learner(**options).loss(x)
    assert terms.keys() == moved.keys()
    for term, may in moved.items():
        assert terms[term].shape == x.return_to_go.shape
        assert torch.isfinite(terms[term]).all()
        if not may:
            assert not terms[term].requires_grad
            continue
        reached = {name.split(".")[0] for name, gradient in gradients(terms[term].sum(), x).items() if gradient.any()}
        assert reached == may, f"{name}'s term {term}"


def test_every_learner_is_covered() -> None:
    assert {name for name, _, _ in CASES} == set(BY_SYMBOLS)
