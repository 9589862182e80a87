"""In the tiny world, over every state and item: gradient descent on the learners' own losses reaches the dynamic
programme's answer. Heads are tables: one row of the state table for each state.
"""

from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from offrec.algorithms import Learner, Symbols
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.deep_q import DeepQ
from offrec.algorithms.dual_constraint import DualConstraint
from offrec.algorithms.policy_constraint import PolicyConstraint
from offrec.algorithms.reward_extrapolation import RewardExtrapolation
from offrec.algorithms.supervised_regularisation import SupervisedRegularisation
from offrec.catalogue import Head, use_backend
from offrec.shop.solve import TabularMDP, build_mdp
from offrec.shop.worlds import WORLDS

GAMMA, CLOSE = 0.9, 1e-3  # CLOSE: the largest total variation between policies, over states; relative error of values
STEPS = 500


@cache
def tiny() -> TabularMDP:
    return build_mdp(WORLDS["tiny"], seed=0)


class Tables:
    """Actor and critic as tables [A, S], and the symbols of all (state, item) pairs."""

    def __init__(self) -> None:
        world = tiny()
        states, items = world.shape
        self.z, self.q = (torch.zeros(items, states, dtype=torch.double, requires_grad=True) for _ in range(2))
        state = torch.arange(states).repeat_interleave(items)
        self.here, self.there = (one_hot(s, states).double() for s in (state, world.following.reshape(-1)))
        log_b = world.logging().log().T.contiguous()
        self.fixed = {
            "b": Head(self.here, log_b),
            "next_b": Head(self.there, log_b),
            "actions": torch.arange(items).repeat(states)[:, None],
            "rewards": world.reward.reshape(-1, 1),
            "discounts": GAMMA * world.stay.reshape(-1, 1),
            "return_to_go": torch.zeros(states * items, dtype=torch.double),
        }

    def symbols(self, weight: Tensor) -> Symbols:
        target, fixed = self.q.detach().clone(), self.z.detach()
        return Symbols(
            pi=Head(self.here, self.z),
            q=Head(self.here, self.q),
            next_pi=Head(self.there, fixed),
            next_q=Head(self.there, target),
            weight=weight,
            **self.fixed,
        )


def learned(learner: Learner, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """π and Q, [S, A] each. A critic step of size 1 on ½ error² is a full backup; the actor is trained by Adam."""
    tables = Tables()
    states, items = tiny().shape
    weight = torch.full((states, items), 1.0, dtype=torch.double) if weight is None else weight
    actor = torch.optim.Adam([tables.z], lr=0.2)
    critic = torch.optim.SGD([tables.q], lr=0.5 if isinstance(learner, DeepQ) else 1.0)
    slower = torch.optim.lr_scheduler.ExponentialLR(actor, 0.01 ** (1 / STEPS))
    with use_backend("reference"):
        for _ in range(STEPS):
            terms = learner.loss(tables.symbols(weight.reshape(-1) / weight.sum()))
            actor.zero_grad()
            critic.zero_grad()
            loss = terms["critic"].sum()
            for name in terms.keys() - {"critic"}:
                loss = loss + (weight.reshape(-1) * terms[name]).sum()
            loss.backward()
            critic.step()
            actor.step()
            slower.step()
    return tables.z.detach().T.softmax(1), tables.q.detach().T


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum(1).max()) / 2


@pytest.mark.parametrize("kept", [True, False])
def test_sdac_reaches_the_soft_optimal_policy(kept: bool) -> None:
    alpha = 0.3
    exact = tiny().soft_optimal(alpha, GAMMA, "kept" if kept else "dropped")
    policy, q = learned(ActorCritic(alpha=alpha, uniform_prior=kept))
    assert distance(policy, exact.policy) < CLOSE
    torch.testing.assert_close(q, exact.q, rtol=CLOSE, atol=CLOSE)
    assert distance(policy, tiny().optimal(GAMMA).policy) > 0.1, "the test would tell another policy apart"


def test_dc_and_re_reach_the_same_prior_weighted_policy() -> None:
    alpha, log_b = 0.3, tiny().logging().log()
    exact = tiny().soft_optimal(alpha, GAMMA, tiny().logging())
    policy, q = learned(DualConstraint(alpha=alpha))
    assert distance(policy, exact.policy) < CLOSE
    assert distance(policy, (log_b + q / alpha).softmax(1)) < CLOSE
    torch.testing.assert_close(q, exact.q, rtol=CLOSE, atol=CLOSE)
    policy, q = learned(RewardExtrapolation(alpha=alpha))
    assert distance(policy, exact.policy) < CLOSE
    assert distance(policy, (q / alpha).softmax(1)) < CLOSE
    torch.testing.assert_close(q, exact.q + alpha * log_b, rtol=CLOSE, atol=CLOSE)
    assert distance(exact.policy, tiny().soft_optimal(alpha, GAMMA).policy) > 0.1, "the prior matters here"


@pytest.mark.parametrize("learner", [DualConstraint, RewardExtrapolation])
def test_dc_and_re_become_the_logging_policy(learner: type[Learner]) -> None:
    policy, _ = learned(learner(alpha=1e5))
    assert distance(policy, tiny().logging()) < CLOSE


def test_dqn_reaches_the_optimal_values() -> None:
    _, q = learned(DeepQ())
    torch.testing.assert_close(q, tiny().optimal(GAMMA).q, rtol=CLOSE, atol=CLOSE)


def test_pc_is_the_logging_policy_tilted_by_its_critic() -> None:
    """If rows have the frequencies of the log, weighted imitation gives π ∝ π_b exp(Q/β) in each state."""
    b, beta = tiny().logging(), 0.5
    learner = PolicyConstraint(alpha=0.3, beta=beta, cap=1e30, baseline=False, normalised=False)
    policy, q = learned(learner, b)
    assert distance(policy, (b.log() + q / beta).softmax(1)) < CLOSE


def test_sr_is_between_sdac_and_the_logging_policy() -> None:
    """The stationary point satisfies π (log π − Q/α − mean) = β (π_b − π) for each item."""
    alpha, beta, b = 0.3, 0.5, tiny().logging()
    policy, q = learned(SupervisedRegularisation(alpha=alpha, beta=beta), b)
    f = policy.log() - q / alpha
    left = policy * (f - (policy * f).sum(1, keepdim=True))
    torch.testing.assert_close(left, beta * (b - policy), rtol=0.0, atol=CLOSE)
