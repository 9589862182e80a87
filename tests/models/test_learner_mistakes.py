"""Mistakes that the author of a learner can make, each refused with its reason."""

from dataclasses import dataclass

import pytest
from small_agents import ITEMS, OPTIONS, batch

from offrec.algorithms import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob
from offrec.models.agent import Agent


@dataclass(frozen=True)
class Mistaken:
    mistake: str = "none"
    needs = Needs()
    needs_reward = False

    def loss(self, x: Symbols) -> LossTerms:
        log_pi = log_prob(x.pi, x.logged)  # [B, 1]
        if self.mistake == "undeclared":
            return {"cross_entropy": -x.q.at(x.logged)[:, 0]}
        return {"cross_entropy": {"column": -log_pi, "mean": -log_pi.mean(), "none": -log_pi[:, 0]}[self.mistake]}


@pytest.mark.parametrize("mistake", ["column", "mean"])
def test_a_loss_term_has_one_value_per_row(mistake: str) -> None:
    rows = batch()
    with pytest.raises(ValueError, match=rf"'cross_entropy' has shape .*expected \({len(rows)},\)"):
        Agent(ITEMS, Mistaken(mistake), OPTIONS).loss(rows)
    assert Agent(ITEMS, Mistaken(), OPTIONS).loss(rows)["cross_entropy"].shape == (len(rows),)


def test_a_symbol_that_was_not_declared_names_the_remedy() -> None:
    with pytest.raises(AttributeError, match="needs"):
        Agent(ITEMS, Mistaken("undeclared"), OPTIONS).loss(batch())


@pytest.mark.parametrize("needs", [Needs(ranks="critic"), Needs(ranks="critic", critic="shared"), Needs(actor=False)])
def test_what_ranks_must_exist(needs: Needs) -> None:
    learner = Mistaken()
    object.__setattr__(learner, "needs", needs)
    with pytest.raises(ValueError, match="ranks="):
        Agent(ITEMS, learner, OPTIONS)
