"""Every equation calculated by hand, with two or three items."""

import math
from dataclasses import replace
from math import exp, log

import pytest
import torch
from torch import Tensor

from offrec import losses
from offrec.catalogue import Head, Noise
from offrec.losses import Sample


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.double)


def dense(*rows: list[float]) -> Head:
    """A head with these rows as values."""
    z = torch.tensor(rows, dtype=torch.double)
    return Head(z, torch.eye(z.shape[1], dtype=torch.double))


def chances(*rows: list[float]) -> Head:
    """A head whose softmax is these rows; its logits have an arbitrary constant, as those of a network."""
    return dense(*([log(p) + 0.7 for p in row] for row in rows))


def test_batch_mean_leaves_padding_out() -> None:
    assert losses.batch_mean(tensor(1, 3, 99), tensor(0.5, 0.5, 0)).item() == 2.0
    assert losses.batch_mean(tensor(1, 3), None).item() == 2.0


def test_negative_log_likelihood() -> None:
    assert losses.negative_log_likelihood(tensor(-2.5)).item() == 2.5


def test_weighted_likelihood_holds_its_weight() -> None:
    log_pi, weight = tensor(-2.0, -1.0).requires_grad_(), tensor(3.0, 0.5).requires_grad_()
    loss = losses.weighted_likelihood(log_pi, weight)
    assert loss.tolist() == [6.0, 0.5]
    loss.sum().backward()
    assert log_pi.grad.tolist() == [-3.0, -0.5]
    assert weight.grad is None


def test_td_of_a_logged_item() -> None:
    """1 − (0.2 + 0.9 · 2) = −1; at the session's end 1 − 0.2 = 0.8."""
    q = torch.ones(2, 1, dtype=torch.double, requires_grad=True)
    next_value = tensor(2.0, 5.0).requires_grad_()
    errors = losses.td(q, tensor(0.2, 0.2)[:, None], tensor(0.9, 0.0)[:, None], next_value)
    assert errors[:, 0].tolist() == pytest.approx([1.0, 0.64])
    errors.sum().backward()
    assert q.grad[:, 0].tolist() == pytest.approx([-2.0, 1.6])
    assert next_value.grad is None, "targets are held fixed"


def test_td_of_unlogged_items_stays_where_it_is() -> None:
    """Columns: logged 1 − (1 + 0 · 7) = 0, unlogged 2 − (0 + 0.5 · 3) = 0.5 and −1 − 1.5 = −2.5."""
    row = tensor(1.0, 2.0, -1.0)[None]
    errors = losses.td(row, tensor(1.0, 0.0, 0.0)[None], tensor(0.0, 0.5, 0.5)[None], tensor(7.0), tensor(3.0))
    assert errors[0].tolist() == pytest.approx([0.0, 0.25, 6.25])


def test_td_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match="shapes"):
        losses.td(torch.ones(3, 1), torch.ones(3), torch.ones(3, 1), torch.ones(3))
    with pytest.raises(ValueError, match="shapes"):
        losses.td(torch.ones(3, 1), torch.ones(3, 1), torch.ones(3, 1), torch.ones(3, 1))


def test_mix_logged_return() -> None:
    """0.75 · 2 + 0.25 · 6 = 3; 0.75 · −1 + 0.25 · 0 = −0.75."""
    value, return_to_go = tensor(2.0, -1.0), tensor(6.0, 0.0)
    assert losses.mix_logged_return(value, return_to_go, 0.25).tolist() == pytest.approx([3.0, -0.75])
    assert losses.mix_logged_return(value, return_to_go, 0.0) is value, "the paper"
    assert losses.mix_logged_return(value, return_to_go, 1.0).tolist() == return_to_go.tolist()


def test_grounded() -> None:
    errors = torch.stack([tensor(1.0, 2.0, 4.0), tensor(0.0, 1.0, 1.0)])
    assert losses.grounded(errors, 0.5).tolist() == [2.5, 0.5]
    assert losses.grounded(errors[:, :1], 0.5).tolist() == [1.0, 0.0], "without unlogged items: the paper"


PI = [0.5, 0.25, 0.25]
Q = [1.0, 2.0, -2.0]
B = [0.25, 0.5, 0.25]
ENTROPY = 0.5 * log(2) + 0.5 * log(4)
EXPECTED_Q = 0.5 * 1 + 0.25 * 2 - 0.25 * 2
DIVERGENCE = 0.5 * log(2) + 0.25 * log(0.5)  # KL(π‖b)


HEADS = (chances(PI), dense(Q), dense([0.5, -1.0, 3.0]), chances(B))


def test_soft_value() -> None:
    pi, q, b, alpha = chances(PI), dense(Q), chances(B), 0.3
    value = EXPECTED_Q + alpha * ENTROPY
    assert losses.soft_value(pi, q, alpha).item() == pytest.approx(value)
    assert losses.soft_value(pi, q, alpha, "uniform").item() == pytest.approx(value - alpha * log(3))
    assert losses.soft_value(pi, q, alpha, b).item() == pytest.approx(EXPECTED_Q - alpha * DIVERGENCE)


@pytest.mark.parametrize("prior", [None, "uniform", "b"])
def test_two_soft_values_are_those_of_two_calls(prior: str | None) -> None:
    """The second value is detached from all its inputs."""
    pi, q, other, b = (replace(head, table=head.table.clone().requires_grad_()) for head in HEADS)
    given = b if prior == "b" else prior
    value, held = losses.soft_values(pi, q, other, 0.3, given)
    assert held.item() == pytest.approx(losses.soft_value(pi, other, 0.3, given).item())
    alone = losses.soft_value(pi, q, 0.3, given)
    torch.testing.assert_close(value, alone)
    assert not held.requires_grad
    tables = [head.table for head in (pi, q, other, b)]
    found, wanted = (torch.autograd.grad(one.sum(), tables, allow_unused=True) for one in (value, alone))
    assert found[2] is found[3] is None
    for mine, true in zip(found[:2], wanted[:2], strict=True):
        torch.testing.assert_close(mine, true)


def test_a_uniform_prior_is_a_prior() -> None:
    pi, q = chances(PI), dense(Q)
    flat = losses.soft_value(pi, q, 0.3, chances([1 / 3] * 3))
    torch.testing.assert_close(losses.soft_value(pi, q, 0.3, "uniform"), flat)


def test_only_a_uniform_prior_charges_the_logging_policy() -> None:
    """With π = π̂_b, V of DC and of RE is E_b[Q]: a logged return, which contains no cost, is consistent with them."""
    b, alpha = chances(B), 0.3
    expected_q = sum(p * q for p, q in zip(B, Q, strict=True))
    q_re = dense([q + alpha * log(p) for p, q in zip(B, Q, strict=True)])
    divergence = sum(p * log(3 * p) for p in B)
    assert losses.soft_value(b, dense(Q), alpha, b).item() == pytest.approx(expected_q)
    assert losses.soft_value(b, q_re, alpha).item() == pytest.approx(expected_q)
    assert losses.soft_value(b, dense(Q), alpha, "uniform").item() == pytest.approx(expected_q - alpha * divergence)


def test_soft_value_is_largest_at_the_boltzmann_policy() -> None:
    """There V = α log Σ prior exp(Q/α), with Q/α in numerator and denominator."""
    alpha = 0.7
    best = dense([q / alpha for q in Q])
    lse = alpha * log(sum(exp(q / alpha) for q in Q))
    assert losses.soft_value(best, dense(Q), alpha).item() == pytest.approx(lse)
    assert losses.soft_value(dense(Q), dense(Q), alpha).item() < lse
    with_prior = dense([log(b) + q / alpha for b, q in zip(B, Q, strict=True)])
    lse = alpha * log(sum(b * exp(q / alpha) for b, q in zip(B, Q, strict=True)))
    assert losses.soft_value(with_prior, dense(Q), alpha, chances(B)).item() == pytest.approx(lse)


def test_greedy_value_and_double_q() -> None:
    target, online = dense([3.0, 7.0, 5.0]), dense([0.0, 1.0, 2.0])
    assert losses.greedy_value(target).item() == 7.0
    assert losses.greedy_value(target, online).item() == 5.0, "chosen by the critic, valued by its target"


def test_outside_support() -> None:
    """For b = (.25, .5, .25): items 0 and 2 are at most .3 and at most .25; none is at most .2; all are at most 1."""
    pi, b = chances([0.5, 0.2, 0.3]), chances(B)
    found = [losses.outside_support(pi, b, delta).item() for delta in (0.3, 0.25 + 1e-9, 0.2, 1.0)]
    assert found == pytest.approx([0.8, 0.8, 0.0, 1.0])


def test_outside_support_where_probabilities_underflow() -> None:
    pi, b = chances([0.5, 0.5]), dense([0.0, -2000.0])
    assert losses.outside_support(pi, b, 1e-300).item() == pytest.approx(0.5)


def test_outside_support_moves_pi_alone() -> None:
    """d mass / d z_0 = π_0 (1 − mass) for an item outside, −π_1 mass for one inside."""
    pi, b = torch.tensor([[log(0.75), log(0.25)]], requires_grad=True), torch.tensor([[-5.0, 0.0]], requires_grad=True)
    losses.outside_support(Head(pi, torch.eye(2)), Head(b, torch.eye(2)), 0.1).sum().backward()
    assert pi.grad[0].tolist() == pytest.approx([0.75 * 0.25, -0.25 * 0.75])
    assert b.grad is None or not b.grad.any()


def test_forward_kl_in_both_readings() -> None:
    """Under samples from b the mean of log b − log π is KL(b‖π); that of −log π is larger by the entropy of b."""
    b, pi = [0.5, 0.5], [0.25, 0.75]
    log_b, log_pi = tensor(*map(log, b)), tensor(*map(log, pi))
    kl = 0.5 * log(2) + 0.5 * log(2 / 3)
    assert (tensor(*b) * losses.forward_kl(log_pi, log_b)).sum().item() == pytest.approx(kl)
    assert (tensor(*b) * losses.forward_kl(log_pi)).sum().item() == pytest.approx(kl + log(2)), "plus b's entropy"


def test_dual_step() -> None:
    assert losses.dual_step(tensor(0.5), tensor(1.4), bound=1.0, rate=0.1).item() == pytest.approx(0.54)
    assert losses.dual_step(tensor(0.5), tensor(0.4), bound=1.0, rate=0.1).item() == pytest.approx(0.44)
    assert losses.dual_step(tensor(0.01), tensor(0.0), bound=1.0, rate=0.1).item() == 0.0


def test_exponential_weight() -> None:
    q, value = tensor(1.0, 2.0, 9.0).requires_grad_(), tensor(1.0, 1.0, 1.0)
    weight = losses.exponential_weight(q, beta=2.0, cap=20.0)
    assert weight.tolist() == pytest.approx([exp(0.5), exp(1.0), 20.0])
    assert not weight.requires_grad
    assert losses.exponential_weight(q, 2.0, 20.0, value).tolist() == pytest.approx([1.0, exp(0.5), 20.0])
    assert losses.exponential_weight(tensor(1e6), 1e-3, 20.0).item() == pytest.approx(20.0), "no overflow on the way"


def test_importance_weight() -> None:
    log_pi = tensor(log(0.4), log(0.9), log(0.1)).requires_grad_()
    weight = losses.importance_weight(log_pi, tensor(log(0.2), log(0.01), log(0.2)), cap=10.0)
    assert weight.tolist() == pytest.approx([2.0, 10.0, 0.5])
    assert not weight.requires_grad


def test_normalised_weights_have_mean_one() -> None:
    weights, share = tensor(1.0, 3.0, 99.0), tensor(0.5, 0.5, 0.0)
    assert losses.divide_by_mean(weights, share).tolist() == pytest.approx([0.5, 1.5, 49.5])
    assert losses.divide_by_mean(weights[:2], None).tolist() == pytest.approx([0.5, 1.5])
    assert losses.divide_by_mean(tensor(0.0, 0.0), None).tolist() == [0.0, 0.0]


def test_top_k_factor() -> None:
    log_pi = tensor(log(0.25), log(0.5)).requires_grad_()
    assert losses.top_k_factor(log_pi, 1).tolist() == [1.0, 1.0]
    factor = losses.top_k_factor(log_pi, 3)
    assert factor.tolist() == pytest.approx([3 * 0.75**2, 3 * 0.5**2])
    assert not factor.requires_grad
    assert losses.top_k_factor(tensor(0.0), 1).item() == 1.0, "0⁰"


@pytest.mark.parametrize("k", [1, 2, 5, 16])
@pytest.mark.parametrize("pi", [0.001, 0.2, 0.7])
def test_top_k_factor_is_the_derivative_of_being_among_k_draws(k: int, pi: float) -> None:
    def missed(p: float) -> float:
        return (1 - p) ** k

    h = 1e-5
    difference = (missed(pi - h) - missed(pi + h)) / (2 * h)
    assert losses.top_k_factor(tensor(log(pi)), k).item() == pytest.approx(difference, rel=1e-6)


def test_extrapolated_reward() -> None:
    log_b = tensor(log(0.5), log(0.1)).requires_grad_()
    shifted = losses.extrapolated_reward(tensor(1.0, 0.2), log_b, 0.3)
    assert shifted.tolist() == pytest.approx([1 - 0.3 * log(2), 0.2 - 0.3 * log(10)])
    assert not shifted.requires_grad


ROWS = 20_000


def many(head: Head) -> Head:
    return Head(head.state.expand(ROWS, -1).contiguous(), head.table)


def test_advantage_is_relative_to_the_mean_of_all_items() -> None:
    """3 − (3 + 1 + 2) / 3 = 1 and 0 − (0 + 4 + 2) / 3 = −2."""
    q = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 2.0]], requires_grad=True)
    found = losses.advantage(q)
    assert found.tolist() == [1.0, -2.0]
    assert not found.requires_grad


def test_smooth_importance_is_a_power_of_the_clipped_ratio() -> None:
    """√4 = 2; √10 for a ratio of 100; √.1 for a ratio of .001."""
    log_b = torch.zeros(3)
    log_pi = torch.tensor([4.0, 100.0, 0.001]).log()
    found = losses.smooth_importance(log_pi, log_b, 0.5)
    torch.testing.assert_close(found, torch.tensor([2.0, math.sqrt(10.0), math.sqrt(0.1)]))


@pytest.mark.parametrize("prior", [None, "uniform", "b"])
def test_straight_through_samples_converge_to_the_exact_value(prior: str | None) -> None:
    """A sample has the value of one item from π; the mean of 20,000 is within four standard errors."""
    pi, q, b = many(chances(PI)), many(dense(Q)), many(chances(B))
    given = b if prior == "b" else prior
    sample = Sample(Noise(torch.tensor(5)), temperature=0.8, hard=True)
    drawn, exact = (losses.soft_value(pi, q, 0.3, given, s) for s in (sample, None))
    assert drawn.unique().numel() > 1
    error = drawn.std().item() / math.sqrt(ROWS)
    assert drawn.mean().item() == pytest.approx(exact[0].item(), abs=4 * error)


def test_soft_samples_and_gradients_converge_as_the_temperature_falls() -> None:
    """Means of 20,000 samples: values and gradients are within 3 % at temperature 0.05, and worse at 1."""

    def at(sample: Sample | None) -> tuple[Tensor, Tensor]:
        z = chances(PI).state.clone().requires_grad_()
        pi = Head(z.expand(ROWS, -1), torch.eye(3, dtype=torch.double))
        value = losses.soft_value(pi, many(dense(Q)), 0.3, None, sample).mean()
        value.backward()
        return value.detach(), z.grad[0]

    value, gradient = at(None)
    errors = {}
    for temperature in (1.0, 0.05):
        soft_value, soft_gradient = at(Sample(Noise(torch.tensor(3)), temperature))
        errors[temperature] = (soft_value - value).abs().item(), (soft_gradient - gradient).norm().item()
    assert errors[0.05][0] < 0.03 * value.abs().item() < errors[1.0][0]
    assert errors[0.05][1] < 0.06 * gradient.norm().item() < errors[1.0][1]
