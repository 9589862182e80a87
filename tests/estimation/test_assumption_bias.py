"""The bias of ratios of parts of lists: by hand, and in a world where ratios of picks promise a gain that is a loss."""

import numpy as np
import pytest

from offrec.estimation.assumption import AssumptionBias, assumption_bias
from offrec.estimation.certify import certify
from offrec.estimation.estimators import estimate_value, session_terms
from offrec.estimation.interval import Interval, bootstrap_interval
from offrec.estimation.list_ratios import with_mean_1
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess

ITEMS, DECOY, GOOD = 10, 0, 1
LISTS = np.array([(i, j) for i in range(ITEMS) for j in range(ITEMS) if i != j])
ATTRACTION = np.array([30.0] + [1.0] * 9)
REWARD = np.array([0.0, 4.0] + [1.0] * 8)
B = np.full(len(LISTS), 1 / len(LISTS))


def plackett_luce(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits) / np.exp(logits).sum()
    return np.asarray(p[LISTS[:, 0]] * p[LISTS[:, 1]] / (1 - p[LISTS[:, 0]]))


def inclusion(lists: np.ndarray) -> np.ndarray:
    return np.bincount(LISTS.ravel(), np.repeat(lists, 2))


def value(lists: np.ndarray) -> float:
    """Expected reward of one list: an item is picked with a_i / (1 + a_i + a_j)."""
    return float(lists @ ((ATTRACTION * REWARD)[LISTS].sum(1) / (1 + ATTRACTION[LISTS].sum(1))))


def simulate(pi: np.ndarray, sessions: int, seed: int) -> Trajectories:
    """Sessions of two uniform lists, with exact ratios of lists and ratios of picks."""
    random, count = np.random.default_rng(seed), 2 * sessions
    shown = random.choice(len(LISTS), count, p=B)
    odds = np.column_stack([ATTRACTION[LISTS[shown]], np.ones(count)])
    place = (random.random((count, 1)) > (odds / odds.sum(1, keepdims=True)).cumsum(1)).sum(1)
    item = LISTS[shown, np.minimum(place, 1)]
    ratio = np.where(place < 2, np.log(inclusion(pi) / inclusion(B))[item], 0.0)
    reward = np.where(place < 2, REWARD[item], 0.0)
    offsets = np.arange(0, count + 1, 2)
    return Trajectories(offsets, reward, np.log(pi)[shown], np.log(B)[shown], log_ratios={"picks": with_mean_1(ratio)})


def logits(decoy: float, good: float) -> np.ndarray:
    values = np.zeros(ITEMS)
    values[[DECOY, GOOD]] = decoy, good
    return values


@pytest.mark.parametrize("seed", [0, 2])
def test_a_loss_that_ratios_of_picks_estimate_as_a_gain_is_not_certified(seed: int) -> None:
    """The policy shows the good item more often, but next to a decoy that is picked instead and pays nothing."""
    pi = plackett_luce(logits(1.0, 0.95))
    assert value(pi) / value(B) - 1 == pytest.approx(-0.025, abs=0.002)
    steps = simulate(pi, 4000, seed)
    assert estimate_value("pick", steps) > steps.returns(1.0).mean()
    (one,) = certify({"one": steps}, estimator="pick", shares=(0.5, 1.0), resamples=100).policies
    assert one.candidates[0].is_trusted
    assert one.certified is None


def test_a_gain_beyond_the_bias_is_certified() -> None:
    """Less decoy and more of the good item."""
    pi = plackett_luce(logits(-1.0, 1.0))
    steps = simulate(pi, 4000, 0)
    (one,) = certify({"one": steps}, estimator="pick", shares=(0.5,), resamples=100).policies
    assert one.certified is not None
    assert one.certified.intervals is not None
    truth = 2 * (value(pi) + value(B)) / 2
    assert one.certified.intervals.value.low < truth < one.certified.intervals.value.high


def test_the_bias_of_one_step_is_worked_by_hand() -> None:
    """Mean (ρ − ρ*)(r − V) with ρ = (1.5, .5), ρ* = (1, 1), r = (1, 0) and V = .75: (.125 + .375) / 2 = .25."""
    steps = Trajectories(
        np.arange(3), np.array([1.0, 0.0]), np.zeros(2), np.zeros(2), log_ratios={"picks": np.log([1.5, 0.5])}
    )
    found = assumption_bias("pick", steps, 1.0)
    assert found.bias == pytest.approx(0.25)
    assert found.standard_error == pytest.approx(0.125 / 2**0.5)  # by session .125 and .375
    assert estimate_value("pick", steps) - estimate_value("self_normalised", steps) == pytest.approx(0.25)


def test_the_bias_includes_how_long_sessions_last() -> None:
    """Two lists, b = (.5, .5), rewards (1, 0), sessions continue with (.8, .5); ρ* = (1.2, .8), but ρ = (1.1, .9).

    The value with ρ is .55 / .335 = 1.642 and sessions have 1 / .335 = 2.985 decisions. The bias is
    2.985 · [.5 · (−.1)(1 + (.8 − 1) · 1.642) + .5 · .1 · (.5 − 1) · 1.642] = −.223; without approximations it is −.233.
    """
    random, sessions = np.random.default_rng(0), 40_000
    first = random.random((sessions, 40)) < 0.5
    stays = random.random((sessions, 40)) < np.where(first, 0.8, 0.5)
    lengths = np.minimum(stays.cumprod(1).sum(1) + 1, 40)
    shown = first[np.arange(40) < lengths[:, None]]
    ratios = {"picks": np.log(np.where(shown, 1.1, 0.9))}
    exact = np.log(np.where(shown, 1.2, 0.8))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    steps = Trajectories(offsets, shown * 1.0, exact, np.zeros(len(shown)), log_ratios=ratios)
    found = assumption_bias("pick", steps, 1.0)
    assert abs(found.bias + 0.223) < 4 * found.standard_error < 0.03
    assert assumption_bias("self_normalised", steps, 1.0) == AssumptionBias()
    one, plain = assess("pick", steps, resamples=20, breakdown=False), session_terms("pick", steps)
    assert found.widen(bootstrap_interval(plain, resamples=20)) == one.interval
    assert one.interval.low < 1.875 < one.interval.high  # the value of the policy
    assert bootstrap_interval(plain, resamples=20).high < 1.875


def test_intervals_by_behaviour_and_per_decision_include_the_bias() -> None:
    """One decision per session: the parts add up, and the value per decision is the value per session."""
    steps = simulate(plackett_luce(logits(1.0, 0.95)), 500, 0)
    steps = Trajectories(
        np.arange(1001), steps.reward, steps.log_pi, steps.log_b, log_ratios=steps.log_ratios,
        reward_by_behaviour={"view": 0.25 * steps.reward, "buy": 0.75 * steps.reward},
    )  # fmt: skip
    one = assess("pick", steps, resamples=50)
    parts = one.by_behaviour
    assert parts["view"].low + parts["buy"].low == pytest.approx(one.interval.low)
    assert one.per_decision is not None
    assert one.per_decision.low == pytest.approx(one.interval.low)
    assert one.interval.low < bootstrap_interval(session_terms("pick", steps), resamples=50).low


def test_intervals_are_extended_by_what_may_lie_beyond_them() -> None:
    """A bias of 3 ± 1: the lower end moves by 5, the upper end stays."""
    widened = AssumptionBias(3.0, 1.0).widen(Interval(10.0, 8.0, 12.0, 1.0))
    assert (widened.low, widened.high) == (3.0, 12.0)
    widened = AssumptionBias(-1.0, 1.0).widen(Interval(10.0, 8.0, 12.0, 1.0))
    assert (widened.low, widened.high) == (7.0, 15.0)


def test_the_bias_of_two_sessions_by_hand() -> None:
    """Two sessions of two lists whose list ratios are 1, with the weights of picks 2, 1 and ½, ½."""
    steps = Trajectories(
        offsets=np.array([0, 2, 4]),
        reward=np.array([1.0, 3.0, 0.0, 4.0]),
        log_pi=np.zeros(4),
        log_b=np.zeros(4),
        log_ratios={"picks": np.log([2.0, 0.5, 0.5, 1.0])},
        state=np.zeros(4, np.int64),
    )
    decisions = (1 + 1) / 1 + (2 + 0.5) / 1.25  # weights before each list, divided by their means
    first, second = (2 * 1 + 0.5 * 0) / 1.25, (1 * 3 + 0.5 * 4) / 0.75
    value = (second + second + first) / decisions
    surplus = np.array([(2 - 1) * 1 + (0.5 - 1) * (3 - value), (0.5 - 1) * 0])
    bias = assumption_bias("pick", steps, 1.0)
    scale = decisions / 4
    assert (bias.bias, bias.standard_error) == pytest.approx((scale * surplus.mean(), scale * surplus.std() / 2**0.5))
    second = (1.25 * 0.5 * 3 + 1.25 * 1 * 4) / (1.25 * 1.5 / 2)  # the weights of the first lists, averaged
    value = (2 * second + first) / decisions
    surplus[0] = (2 - 1) * 1 + (0.5 - 1) * (3 - value)
    # Without averages, the second lists have the weights 1 and ½ instead of 1.25 · ½ and 1.25.
    classes = second / 2 - (1 * 3 + 0.5 * 4) / 1.5
    assert assumption_bias("state_marginal_pick", steps, 1.0).bias == pytest.approx(scale * surplus.mean() + classes)
    assert assumption_bias("state_marginal", steps, 1.0) == AssumptionBias(0.0, 0.0)  # all ratios of lists are 1
