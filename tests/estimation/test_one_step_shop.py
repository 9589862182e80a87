"""One-step logs of a shop with exact propensities: each of two policies is estimated from the log of the other."""

from pathlib import Path

import numpy as np
import pytest
import torch

import offrec
from offrec.catalogue import Head
from offrec.data.vocabulary import Vocabulary
from offrec.policy import Policy
from offrec.shop import Shop, write_log
from offrec.shop.exploration import Exploration
from offrec.shop.log import ServedPolicy
from offrec.shop.solve import build_mdp
from offrec.types import Batch

SHOP = Shop.open("tiny", 3, max_steps=1)
MDP = build_mdp(SHOP.world, 3)
REWARD = MDP.reward[0]  # exact expectation for a new visitor
LOGITS = ((REWARD - REWARD.mean()) / REWARD.std()).float()
SESSIONS = 4000


class Softmax(Policy):
    """The same probabilities for every visitor."""

    name, stochastic = "softmax", True

    def __init__(self) -> None:
        super().__init__(Vocabulary(np.arange(6)), 2, torch.device("cpu"))

    def head(self, batch: Batch) -> Head:
        return Head(torch.zeros(len(batch), 0), torch.zeros(6, 0), LOGITS)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A is the shop's logging policy, B a softmax."""
    folder = tmp_path_factory.mktemp("one-step")
    write_log(SHOP, SESSIONS, folder / "a", seed=11)
    write_log(SHOP, SESSIONS, folder / "b", seed=12, served=ServedPolicy(Softmax(), Exploration("sample")))
    return folder


def test_the_log_of_a_estimates_b(logs: Path, tmp_path: Path) -> None:
    dataset = offrec.prepare(logs / "a/full.parquet", out=tmp_path / "data", format="decisions")
    result = offrec.estimate(Softmax(), dataset)
    ((_, assessment),) = result.policies[0].assessments.items()
    truth = float(LOGITS.double().softmax(0) @ REWARD)
    assert assessment.verdict == "trust", assessment.reasons
    assert assessment.interval.low < truth < assessment.interval.high
    assert not result.logged.low < truth < result.logged.high, "the policies must differ"


def test_the_log_of_b_estimates_a(logs: Path) -> None:
    result = offrec.estimate_table(logs / "b/full.parquet", ["logging_propensity"])
    assessment = result.policies[0].assessments["self_normalised"]
    truth = float(MDP.logging()[0] @ REWARD)
    assert assessment.verdict == "trust", assessment.reasons
    assert assessment.interval.low < truth < assessment.interval.high
    assert not result.logged.low < truth < result.logged.high, "the policies must differ"
