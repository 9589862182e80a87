"""State-marginal weights: by hand, relations to full products, and equality with loops over sessions in plain numpy."""

from dataclasses import replace

import numpy as np
import pytest

from offrec.errors import InputError
from offrec.estimation import state_classes
from offrec.estimation.assumption import assumption_bias
from offrec.estimation.estimators import ESTIMATORS, contributions, estimate_value, session_terms, terms_of
from offrec.estimation.interval import bootstrap_interval, resampled_sums
from offrec.estimation.options import EstimateOptions, available_estimators
from offrec.estimation.outside import _estimators
from offrec.estimation.state_classes import classify_states, merge_small_classes
from offrec.estimation.state_weights import Splice
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess

Array = np.ndarray


def random_trajectories(seed: int, classes: int = 3, sessions: int = 40) -> Trajectories:
    random = np.random.default_rng(seed)
    lengths = random.poisson(3, sessions)
    offsets, n = np.concatenate([[0], np.cumsum(lengths)]), int(lengths.sum())
    q, v, reward = random.normal(size=(3, n))
    log_pi, log_b = np.log(random.uniform(0.1, 1, (2, n)))
    return Trajectories(offsets, reward, log_pi, log_b, q=q, v=v, state=random.integers(0, classes, n))


def spliced(name: str, steps: Trajectories, last: int, counts: Array, gamma: float = 0.9) -> float:
    """Estimate with L = `last` if session i occurs counts[i] times."""
    terms = terms_of(replace(ESTIMATORS[name], last_ratios=last), steps, gamma, None)
    value: Array = resampled_sums(terms)(counts[None])[0]
    return float(value[0])


def by_loops(steps: Trajectories, increment: Array, base: Array, last: int, counts: Array, gamma: float) -> float:
    """Estimate as `spliced` does, one session at a time."""
    assert steps.state is not None
    assert steps.log_pi is not None
    assert steps.log_b is not None
    ratio, horizon = np.exp(steps.log_pi - steps.log_b), int(steps.lengths.max())
    weight, mean = np.ones((len(steps), horizon)), np.ones((len(steps), horizon))
    total = float((counts * base).sum() / counts.sum())
    for t in range(horizon):
        running = [i for i in range(len(steps)) if steps.lengths[i] > t]
        if t:
            weight[:, t] = weight[:, t - 1]  # sessions that have ended
            for i in running:
                own = steps.state[steps.offsets[i] + t]
                alike = [j for j in running if steps.state[steps.offsets[j] + t] == own]
                often = sum(counts[j] for j in alike)
                mean[i, t] = sum(counts[j] * weight[j, t - 1] for j in alike) / often if often else 0.0
        earned = 0.0
        for i in running:
            first, here = max(0, t - last + 1), steps.offsets[i] + t
            weight[i, t] = mean[i, first] * np.prod(ratio[here - (t - first) : here + 1])
            earned += counts[i] * weight[i, t] * gamma**t * increment[here]
        total += earned / float((counts * weight[:, t]).sum())
    return total


def test_weights_by_hand() -> None:
    """Two sessions of two lists are in the same class at step 1, so that both have the mean of 2 and ½ there."""
    steps = Trajectories(
        offsets=np.array([0, 2, 4, 5]),
        reward=np.array([1.0, 3.0, 4.0, 2.0, 5.0]),
        log_pi=np.log([0.4, 0.3, 0.1, 0.2, 0.3]),
        log_b=np.log([0.2, 0.6, 0.2, 0.1, 0.2]),
        state=np.array([7, 1, 7, 1, 7]),
    )
    mean = (2 + 0.5) / 2
    terms = session_terms("state_marginal", steps, gamma=0.5)
    np.testing.assert_allclose(terms.weight, [2, mean * 0.5, 0.5, mean * 2, 1.5])
    first, second = (2 + 0.5 + 1.5) / 3, (mean * 0.5 + mean * 2 + 1.5) / 3  # the last session keeps its weight
    expected = [
        2 * 1 / first + 0.5 * mean * 0.5 * 3 / second,
        0.5 * 4 / first + 0.5 * mean * 2 * 2 / second,
        1.5 * 5 / first,
    ]
    np.testing.assert_allclose(contributions(terms), expected)
    apart = replace(steps, state=np.array([7, 1, 7, 2, 7]))
    np.testing.assert_allclose(session_terms("state_marginal", apart).weight, [2, 1, 0.5, 1, 1.5])


@pytest.mark.parametrize("last", [1, 2, 3, 99])
@pytest.mark.parametrize("name", ["state_marginal", "state_marginal_doubly_robust"])
def test_estimates_of_resamples_equal_loops_over_sessions(name: str, last: int) -> None:
    steps, random = random_trajectories(0), np.random.default_rng(1)
    base, increment = np.zeros(len(steps)), steps.reward
    if name == "state_marginal_doubly_robust":
        assert steps.q is not None
        assert steps.v is not None
        assert steps.start_values is not None
        following = [steps.v[d + 1] if d + 1 not in steps.offsets else 0.0 for d in range(steps.decisions)]
        base, increment = steps.start_values, steps.reward + 0.9 * np.array(following) - steps.q
    for counts in (np.ones(len(steps)), np.bincount(random.integers(40, size=40), minlength=40).astype(float)):
        expected = by_loops(steps, increment, base, last, counts, 0.9)
        assert spliced(name, steps, last, counts) == pytest.approx(expected)


@pytest.mark.parametrize("last", [2, 3])
def test_influences_are_derivatives_by_the_share_of_a_session(last: int) -> None:
    """`test_interval.py` compares those of L = 1."""
    steps, small = random_trajectories(3), 1e-6
    estimator = replace(ESTIMATORS["state_marginal"], last_ratios=last)
    for cap in (None, 2.0):
        sums = resampled_sums(terms_of(estimator, steps, 0.9, cap))
        counts = np.bincount(np.random.default_rng(4).integers(40, size=40), minlength=40).astype(float)[None]
        influence = sums(counts)[1][0]
        for session in range(0, 40, 5):
            toward = np.eye(40)[session] * 40 - counts[0]
            ahead, back = (sums(counts + sign * small * toward)[0][0] for sign in (1, -1))
            assert influence[session] == pytest.approx((ahead - back) / (2 * small), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "product"),
    [("state_marginal", "self_normalised"), ("state_marginal_doubly_robust", "weighted_doubly_robust")],
)
def test_without_anything_to_average_weights_are_full_products(name: str, product: str) -> None:
    """L is the length of the longest session, or each session has its own class."""
    steps = random_trajectories(5)
    full = bootstrap_interval(session_terms(product, steps, 0.9), resamples=50)
    whole = terms_of(replace(ESTIMATORS[name], last_ratios=int(steps.lengths.max())), steps, 0.9, None)
    own = session_terms(name, replace(steps, state=steps.session), 0.9)
    for terms in (whole, own):
        one = bootstrap_interval(terms, resamples=50)
        assert (one.estimate, one.standard_error) == pytest.approx((full.estimate, full.standard_error))
    again = bootstrap_interval(whole, resamples=50)
    assert (again.low, again.high) == pytest.approx((full.low, full.high))
    assert session_terms(name, steps, 0.9).weight != pytest.approx(session_terms(product, steps, 0.9).weight)


def two_lists(log_ratio: Array, goes_on: Array, reward: Array, state: Array) -> Trajectories:
    """Sessions of two lists, or of one if they do not go on; rewards and states are those of the second list."""
    lengths = 1 + goes_on.astype(int)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n = int(offsets[-1])
    columns = {"reward": np.zeros(n), "log_pi": np.zeros(n), "state": np.zeros(n, np.int64)}
    columns["log_pi"][offsets[:-1]] = log_ratio
    second = offsets[:-1][goes_on] + 1
    columns["reward"][second], columns["state"][second] = reward[goes_on], state[goes_on]
    return Trajectories(offsets, log_b=np.zeros(n), **columns)


def test_a_policy_gets_credit_for_keeping_visitors() -> None:
    """Half of the lists of the log keep the visitor, who then pays 1. The policy shows them with probability .9."""
    keeps = np.arange(200) % 2 == 0
    log_ratio = np.log(np.where(keeps, 0.9, 0.1) / 0.5)
    steps = two_lists(log_ratio, keeps, np.ones(200), np.zeros(200, np.int64))
    assert estimate_value("state_marginal", steps) == pytest.approx(0.9)


def test_classes_that_hide_the_state_give_no_credit_for_reaching_it() -> None:
    """The first list leads to a good state, in which the visitor pays 1, or to a bad one."""
    good = np.arange(200) % 2 == 0
    log_ratio = np.log(np.where(good, 0.9, 0.1) / 0.5)
    everyone = np.ones(200, bool)
    known = two_lists(log_ratio, everyone, good.astype(float), good.astype(np.int64))
    assert estimate_value("state_marginal", known) == pytest.approx(0.9)
    assert estimate_value("self_normalised", known) == pytest.approx(0.9)
    hidden = two_lists(log_ratio, everyone, good.astype(float), np.zeros(200, np.int64))
    assert estimate_value("state_marginal", hidden) == pytest.approx(0.5)  # what the log earned
    one, exact = (assess("state_marginal", steps, resamples=50) for steps in (hidden, known))
    assert one.assumption_bias.bias == pytest.approx(0.5 - 0.9)  # the product of both ratios shows it
    assert one.interval.low < 0.5 < 0.9 < one.interval.high
    assert one.verdict == "do not trust"
    assert exact.assumption_bias.bias == pytest.approx(0.0)


def test_averages_vary_less_than_products() -> None:
    """Eight lists with the ratios ½ or 1½ that change nothing: the state-marginal weight is the last ratio."""
    random = np.random.default_rng(0)
    ratio = random.choice([0.5, 1.5], 8 * 500)
    reward = random.normal(1, 0.1, 8 * 500)
    offsets, state = np.arange(0, 8 * 500 + 1, 8), np.zeros(8 * 500, np.int64)
    steps = Trajectories(offsets, reward, np.log(ratio), np.zeros(8 * 500), rare_mass=state * 0.0, state=state)
    spliced_one, full = (assess(name, steps, resamples=50) for name in ("state_marginal", "self_normalised"))
    # Each ratio has the second moment 1.25.
    assert spliced_one.support.effective_sessions == pytest.approx(500 / 1.25, rel=0.05)
    assert full.support.effective_sessions == pytest.approx(500 / np.mean(1.25 ** np.arange(1, 9)), rel=0.3)
    assert spliced_one.interval.standard_error < full.interval.standard_error
    assert (spliced_one.verdict, [reason.code for reason in spliced_one.reasons]) == ("caution", ["states"])


def test_weights_of_many_ratios_are_finite() -> None:
    steps = random_trajectories(7)
    splice = Splice(steps.offsets, steps.session, 2, np.full(steps.decisions, 200.0))
    assert np.isfinite(splice.weights()).all()
    never = replace(splice, log_ratio=np.full(steps.decisions, -np.inf))
    assert not never.weights().any()


def test_sessions_without_decisions() -> None:
    none = np.zeros(0)
    steps = Trajectories(np.zeros(3, np.int64), none, none, none, state=np.zeros(0, np.int64))
    assert bootstrap_interval(session_terms("state_marginal", steps)).estimate == 0.0
    assert len(classify_states(np.zeros(3, np.int64), np.zeros(0, np.int64), none)) == 0


def test_estimates_without_classes_are_refused() -> None:
    with pytest.raises(InputError, match="state_marginal needs the classes of the states, which are missing"):
        estimate_value("state_marginal", replace(random_trajectories(0), state=None))
    with pytest.raises(InputError, match=r"state has shape \(2,\)"):
        replace(random_trajectories(0), state=np.zeros(2, np.int64))


def test_classes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions earn 10 in one of two cases from item 2 on, in one of three from item 0 on, and never from item 1 on."""
    monkeypatch.setattr(state_classes, "MIN_SESSIONS", 1)
    offsets = np.array([0, 5, 6, 9, 9])
    item = np.array([0, -1, 1, -1, -1, 0, 2, 0, 2])
    reward = np.array([0.0, 0, 0, 0, 0, 0, 0, 10, 0])
    state = classify_states(offsets, item, reward)
    group, reaction = state // 4, state % 4
    # last list picked: 2; the one before: 1
    np.testing.assert_array_equal(reaction, [0, 2, 1, 2, 1, 0, 0, 2, 3])
    np.testing.assert_array_equal(group == 0, [True, False, False, False, False, True, True, False, False])
    assert group[1] == group[2] == group[8]  # after item 0; the ignored list leaves the last pick as it is
    assert group[3] == group[4] < group[1] < group[7]  # after item 1, item 0 and item 2


def test_classes_of_a_log_without_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_classes, "MIN_SESSIONS", 1)
    ignored, reward = np.full(3, -1), np.zeros(3)
    assert classify_states(np.array([0, 2, 2, 3]), ignored, reward).tolist() == [0, 0, 0]


def test_small_classes_of_a_step_are_merged() -> None:
    state, step = np.array([3, 3, 4, 5, 3, 4]), np.array([0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(merge_small_classes(state, step, 2), [3, 3, -1, -1, -1, -1])


@pytest.mark.parametrize(
    ("sessions", "merged"),
    [
        ((60, 37, 3), (1, 2)),  # 3 are too few, so the next smallest class is merged too
        ((37, 60, 3), (0, 2)),
        ((60, 37, 12, 8), (2, 3)),  # 20 together
        ((60, 37, 12, 7), (1, 2, 3)),  # 19 together
        ((21, 20, 0, 1), (1, 3)),
        ((60, 0, 19), (0, 2)),  # one class remains
        ((10, 5), (0, 1)),  # too few in all
        ((5,), (0,)),
        ((60, 20), ()),
    ],
)
def test_merged_classes_have_enough_sessions(sessions: tuple[int, ...], merged: tuple[int, ...]) -> None:
    """At step 1; at step 0 all classes are large."""
    state = np.concatenate([np.repeat(np.arange(4), 20), np.repeat(np.arange(len(sessions)), sessions)])
    step = np.repeat([0, 1], [80, sum(sessions)])
    expected = np.where((step == 1) & np.isin(state, merged), -1, state)
    np.testing.assert_array_equal(merge_small_classes(state, step, 20), expected)


def test_merged_classes_equal_those_of_loops() -> None:
    random = np.random.default_rng(13)
    for _ in range(50):
        step, state = random.integers(0, 8, 300), np.minimum(random.geometric(0.3, 300), 12)
        expected = state.copy()
        for number in range(8):
            count = {one: int(((step == number) & (state == one)).sum()) for one in state[step == number].tolist()}
            total = 0
            for one in sorted(count, key=lambda name: (count[name], name)):
                if count[one] < 10 or 0 < total < 10:
                    total += count[one]
                    expected[(step == number) & (state == one)] = -1
        np.testing.assert_array_equal(merge_small_classes(state, step, 10), expected)


def test_the_error_of_the_bias_of_classes_is_that_of_resamples() -> None:
    steps, everyone = random_trajectories(11, sessions=600), np.random.default_rng(0)
    counts = np.stack([np.bincount(everyone.integers(600, size=600), minlength=600) for _ in range(300)]).astype(float)
    one, two = (replace(ESTIMATORS["state_marginal"], last_ratios=last) for last in (1, 2))
    values = [resampled_sums(terms_of(each, steps, 1.0, None))(counts)[0] for each in (one, two)]
    bias = assumption_bias("state_marginal", steps, 1.0)
    assert bias.standard_error == pytest.approx(float((values[0] - values[1]).std()), rel=0.3)


def test_logs_without_classes_have_no_state_marginal_estimates() -> None:
    steps = random_trajectories(0)
    assert "state_marginal" in available_estimators(steps)
    assert "state_marginal" not in available_estimators(replace(steps, state=None))
    assert "state_marginal" not in _estimators(EstimateOptions(estimators=("all",)))  # of a table
    with pytest.raises(InputError, match="--estimator state_marginal needs more than the probabilities of a table"):
        _estimators(EstimateOptions(estimators=("state_marginal",)))
