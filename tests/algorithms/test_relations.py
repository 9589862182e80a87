"""Relations between learners that hold for any numbers."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_symbols import ITEMS, gradients, random_head, symbols, total
from torch import Tensor

from offrec.algorithms import LossTerms, Symbols
from offrec.algorithms.actor_critic import ActorCritic
from offrec.algorithms.deep_q import DeepQ
from offrec.algorithms.dual_constraint import DualConstraint
from offrec.algorithms.policy_constraint import PolicyConstraint
from offrec.algorithms.policy_gradient import PolicyGradient
from offrec.algorithms.reward_extrapolation import RewardExtrapolation
from offrec.algorithms.supervised import Supervised
from offrec.algorithms.supervised_advantage import SupervisedAdvantage
from offrec.algorithms.supervised_deep_q import SupervisedDeepQ
from offrec.algorithms.supervised_negative_q import SupervisedNegativeQ
from offrec.algorithms.supervised_policy_gradient import SupervisedPolicyGradient
from offrec.algorithms.supervised_regularisation import SupervisedRegularisation
from offrec.algorithms.support_constraint import SupportConstraint
from offrec.catalogue import Head, log_prob, logsumexp
from offrec.models.critic import product

EXPECTATIONS: list[dict[str, Any]] = [{}, {"expectation": "gumbel"}, {"uniform_prior": False}]


def assert_same_terms(one: LossTerms, other: LossTerms) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name)


def assert_same_gradients(one: Tensor, other: Tensor, x: Symbols, rtol: float = 1e-7) -> None:
    first, second = gradients(one, x), gradients(other, x)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=rtol, atol=1e-12, msg=name)


@pytest.mark.parametrize("options", EXPECTATIONS)
def test_sc_without_a_bound_is_sdac(options: dict[str, Any]) -> None:
    x = symbols()
    constrained = SupportConstraint(delta=0.0, **options)
    assert_same_terms(constrained.loss(x), ActorCritic(**options).loss(x))
    assert constrained.needs.logging == "none"


def test_sc_that_bars_everything_has_the_gradient_of_sdac() -> None:
    x = symbols()
    barred, free = SupportConstraint(delta=1.0, beta=5.0).loss(x), ActorCritic().loss(x)
    torch.testing.assert_close(barred["support"], torch.full_like(barred["support"], 5.0))
    assert_same_gradients(total(barred, x), total(free, x), x)


def test_sc_pushes_away_from_what_the_log_lacks() -> None:
    """A small step along the gradient of the penalty reduces the mass outside the support, so its sign is right."""
    x = symbols()
    learner = SupportConstraint(delta=0.05, beta=1.0)
    penalty = learner.loss(x)["support"]
    step = torch.autograd.grad(penalty.sum(), x.pi.values)[0]
    moved = replace(x, pi=replace(x.pi, values=x.pi.values - 0.01 * step))
    assert learner.loss(moved)["support"].sum() < penalty.sum()


@pytest.mark.parametrize("options", EXPECTATIONS)
def test_sr_without_weight_is_sdac(options: dict[str, Any]) -> None:
    x = symbols()
    regularised = SupervisedRegularisation(beta=0.0, **options).loss(x)
    assert not regularised.pop("cross_entropy").any()
    assert_same_terms(regularised, ActorCritic(**options).loss(x))


def test_sr_over_beta_becomes_sl() -> None:
    x, beta = symbols(), 1e9
    terms = SupervisedRegularisation(beta=beta).loss(x)
    actor = (terms["actor"] + terms["cross_entropy"]) / beta
    likelihood = Supervised().loss(x)["cross_entropy"]
    torch.testing.assert_close(actor, likelihood, rtol=1e-6, atol=1e-6)
    one, other = gradients(actor.sum(), x), gradients(likelihood.sum(), x)
    torch.testing.assert_close(one["pi.state"], other["pi.state"], rtol=1e-6, atol=1e-6)


def test_sr_takes_beta_from_the_multiplier_where_it_adapts() -> None:
    x = symbols()
    fixed = SupervisedRegularisation(beta=x.multiplier.item()).loss(x)
    adaptive = SupervisedRegularisation(beta=99.0, adaptive=True).loss(x)
    kl = adaptive.pop("~kl")
    assert_same_terms(adaptive, fixed)
    torch.testing.assert_close(kl, x.log_b - log_prob(x.pi, x.logged)[:, 0])


@pytest.mark.parametrize("options", [{}, {"baseline": False, "normalised": False}])
def test_pc_becomes_sl(options: dict[str, Any]) -> None:
    x = symbols()
    actor, likelihood = PolicyConstraint(beta=1e9, **options).loss(x)["actor"], Supervised().loss(x)["cross_entropy"]
    torch.testing.assert_close(actor, likelihood, rtol=1e-6, atol=1e-6)
    assert_same_gradients(actor.sum(), likelihood.sum(), x, rtol=1e-6)


def test_pc_has_the_critic_of_sdac() -> None:
    x = symbols()
    torch.testing.assert_close(PolicyConstraint().loss(x)["critic"], ActorCritic().loss(x)["critic"])


def test_pc_normalised_weights_average_to_one_over_the_batch() -> None:
    x = symbols()
    loss = PolicyConstraint(beta=0.5, baseline=False).loss(x)["actor"]
    weights = loss / Supervised().loss(x)["cross_entropy"]
    assert (x.weight * weights).sum().item() == pytest.approx(1.0)
    plain = (x.q.at(x.logged)[:, 0] / 0.5).exp()
    torch.testing.assert_close(weights / weights[0], plain / plain[0])


@pytest.mark.parametrize("double", [False, True])
def test_sl_dqn_is_sl_and_dqn(double: bool) -> None:
    x = symbols()
    both, q = SupervisedDeepQ(double=double).loss(x), DeepQ(double=double).loss(x)
    assert_same_terms(both, Supervised().loss(x) | q)


@pytest.mark.parametrize("double", [False, True])
def test_snqn_adds_up_the_errors_of_sampled_items(double: bool) -> None:
    """SL+DQN averages them, so SNQN's preset multiplies their mean by their number."""
    x = symbols(unlogged=3, ground_weight=3.0)
    one_by_one = [
        DeepQ(double=double).loss(
            replace(x, ground_weight=1.0, **{n: getattr(x, n)[:, [0, i]] for n in ("actions", "rewards", "discounts")})
        )["critic"]
        for i in (1, 2, 3)
    ]
    logged = replace(x, **{name: getattr(x, name)[:, :1] for name in ("actions", "rewards", "discounts")})
    alone = DeepQ(double=double).loss(logged)["critic"]
    torch.testing.assert_close(SupervisedNegativeQ(double=double).loss(x)["critic"], sum(one_by_one) - 2 * alone)
    assert_same_terms(SupervisedNegativeQ(double=double).loss(logged), SupervisedDeepQ(double=double).loss(logged))


def test_sa2c_is_snqn_during_its_warm_up() -> None:
    x = symbols(updates=torch.tensor(9))
    during, after = SupervisedAdvantage(warmup=10).loss(x), SupervisedAdvantage(warmup=9).loss(x)
    assert_same_terms(during, SupervisedNegativeQ().loss(x))
    assert not torch.allclose(after["cross_entropy"], during["cross_entropy"])


def test_sa2c_does_not_depend_on_the_unit_of_rewards_if_normalised() -> None:
    x = symbols()
    larger = replace(x, q=x.q.scale(7.0))
    one, other = (SupervisedAdvantage(warmup=0).loss(given)["cross_entropy"] for given in (x, larger))
    torch.testing.assert_close(one, other)
    one, other = (SupervisedAdvantage(warmup=0, normalised=False).loss(g)["cross_entropy"] for g in (x, larger))
    torch.testing.assert_close(7.0 * one, other)


def test_sl_pg_is_sl_and_pg() -> None:
    x = symbols()
    both = total(SupervisedPolicyGradient(k=3, weight=0.5).loss(x), x)
    parts = total(Supervised().loss(x), x) + 0.5 * total(PolicyGradient(k=3).loss(x), x)
    torch.testing.assert_close(both, parts)
    assert_same_gradients(both, parts, x)


def test_pg_on_policy_is_reinforce() -> None:
    x = symbols()
    log_pi = log_prob(x.pi, x.logged)[:, 0]
    on_policy = replace(x, log_b=log_pi.detach().clone().requires_grad_())
    terms = PolicyGradient(k=1, cap=1.0).loss(on_policy)
    reinforce = -x.return_to_go * log_pi
    torch.testing.assert_close(terms["actor"], reinforce)
    assert_same_gradients(terms["actor"].sum(), reinforce.sum(), on_policy)


def test_pg_with_a_head_of_its_own_uses_it() -> None:
    x = symbols()
    own = PolicyGradient(logging="own").loss(x)
    fitted = PolicyGradient().loss(replace(x, log_b=log_prob(x.b, x.logged)[:, 0]))
    torch.testing.assert_close(own["actor"], fitted["actor"])
    torch.testing.assert_close(own["logging_cross_entropy"], Supervised().loss(replace(x, pi=x.b))["cross_entropy"])


def uniform() -> Head:
    head = random_head()
    return replace(head, state=torch.zeros_like(head.state), bias=None, items=None, values=None)


def test_dc_with_a_uniform_prior_is_sdac_with_the_prior_kept() -> None:
    x = symbols(b=uniform(), next_b=uniform())
    assert_same_terms(DualConstraint(alpha=0.3).loss(x), ActorCritic(alpha=0.3, uniform_prior=True).loss(x))


def test_dc_with_a_uniform_prior_is_sdac_with_a_lower_reward() -> None:
    """Reward r − discount · α log|A| without the prior; the actor's objective differs by the constant log|A|."""
    alpha = 0.3
    x = symbols(unlogged=0, b=uniform(), next_b=uniform(), returns=0.0)  # logged returns hold no entropy to shift
    lower = replace(x, rewards=x.rewards - x.discounts * alpha * math.log(ITEMS))
    dual, plain = DualConstraint(alpha=alpha).loss(x), ActorCritic(alpha=alpha, uniform_prior=False).loss(lower)
    torch.testing.assert_close(dual["critic"], plain["critic"])
    torch.testing.assert_close(dual["actor"], plain["actor"] + math.log(ITEMS))


@pytest.mark.parametrize("options", [{}, {"expectation": "gumbel", "gumbel_temperature": 0.5}])
def test_re_is_equivalent_to_dc(options: dict[str, Any]) -> None:
    """With Q_RE = Q_DC + α log π̂_b, also for the target network, terms and actor gradients are equal."""
    alpha, x = 0.4, symbols()

    def raised(q: Head, b: Head) -> Head:
        shift = product(q, b.scale(alpha))  # + α z_b; the constant −α lse_b is one more correction of every item
        everything = torch.arange(ITEMS).expand(q.n_rows, -1)
        return shift.with_corrections(everything, (-alpha * logsumexp(b))[:, None].expand(-1, ITEMS))

    other = replace(x, q=raised(x.q, x.b), next_q=raised(x.next_q, x.next_b), target_q=raised(x.target_q, x.b))
    dual = DualConstraint(alpha=alpha, **options).loss(x)
    extrapolated = RewardExtrapolation(alpha=alpha, **options).loss(other)
    assert_same_terms(dual, extrapolated)
    parts = [x.pi.state, x.pi.table, x.pi.bias, x.pi.values]
    for one, two in zip(
        torch.autograd.grad(dual["actor"].sum(), parts), torch.autograd.grad(extrapolated["actor"].sum(), parts),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, two)
