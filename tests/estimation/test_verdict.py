"""Verdicts: what they rest on, by hand; every limit; what is withheld."""

import json
from dataclasses import replace

import numpy as np
import pytest

from offrec.estimation.estimators import ESTIMATORS, terms
from offrec.estimation.support import above, effective, fit, support
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import LIMITS, VERDICTS, Assessment, Limit, assess


@pytest.fixture
def by_hand() -> Trajectories:
    """Weights 2 and 1, ½, and none."""
    return Trajectories(
        offsets=np.array([0, 2, 3, 3]),
        reward=np.array([1.0, 3.0, 4.0]),
        log_pi=np.log([0.4, 0.2, 0.1]),
        log_b=np.log([0.2, 0.4, 0.2]),
        q=np.array([1.5, 2.0, 3.0]),
        v=np.array([2.0, 1.0, 1.0]),
        rare=np.array([0.1, 0.2, 0.3]),
    )


def sessions(n: int, ratio: float = 1.0, seed: int = 0) -> Trajectories:
    """n sessions of one decision; half of them in favour of the policy by `ratio`, the others so that the mean is 1."""
    random = np.random.default_rng(seed)
    weight = np.where(np.arange(n) % 2 == 0, ratio, 2 - ratio)
    reward = random.normal(1, 0.1, n)
    nothing = np.zeros(n)
    model = {"q": reward, "v": np.ones(n), "rare": nothing}
    return Trajectories(np.arange(n + 1), reward, np.log(weight), nothing, **model, by={"view": reward})


def test_effective_sessions_by_hand(by_hand: Trajectories) -> None:
    """Step 0: 3.5² / (4 + ¼ + 1); step 1: 2.5² / (1 + ¼ + 1). Shares there: 2.5 / 3.5 and, discounted, ½ · 1 / 2.5."""
    overall, by_step = effective(terms("importance", by_hand), gamma=0.5)
    first, second = 3.5**2 / 5.25, 2.5**2 / 2.25
    np.testing.assert_allclose(by_step, [first, second])
    matters = (2.5 / 3.5, 0.5 * 1 / 2.5)
    assert overall == pytest.approx(sum(matters) / (matters[0] / first + matters[1] / second))


def test_support_by_hand(by_hand: Trajectories) -> None:
    found = support("capped", by_hand, gamma=0.5, cap=1.5)
    assert found.largest_weight == pytest.approx(2)
    assert found.mass == pytest.approx((1 + 0.5 + 1) / 3)  # last weights
    assert found.mass_error == pytest.approx(np.std([1, 0.5, 1]) / 3**0.5)
    assert found.capped == pytest.approx(1 / 3)
    assert found.cut == pytest.approx(0.5 / (2 + 0.5 * 1 + 0.5))
    assert found.rare == pytest.approx(0.2)
    ratio = np.array([2, 0.5, 0.5])
    assert found.divergence == pytest.approx((ratio * np.log(ratio) - ratio + 1).mean())
    assert found.overlap == pytest.approx((1 + 0.5 + 0.5) / 3)
    same = replace(by_hand, log_pi=by_hand.log_b)
    found = support("importance", same, gamma=1.0, cap=np.inf)
    assert (found.effective, found.mass, found.divergence, found.cut) == pytest.approx((3, 1, 0, 0))


def test_fit_by_hand(by_hand: Trajectories) -> None:
    """Residuals 0, 1, 1 at Q of 1.5, 2, 3, each a group of its own."""
    found = fit(by_hand, gamma=0.5)
    assert found is not None
    assert (found.calibration, found.drift) == pytest.approx((2 / 3 / (6.5 / 3), 2 / 3 / (6.5 / 3)))
    off = replace(by_hand, q=np.array([2.5, 3.0, 2.0]))  # −1, 0, 2
    found = fit(off, gamma=0.5)
    assert found is not None
    assert (found.calibration, found.drift) == pytest.approx((1 / 2.5, (1 / 3) / 2.5))
    assert fit(replace(by_hand, q=None), 0.5) is None


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.measure)
def test_limits_are_in_order(limit: Limit) -> None:
    marks = [limit.trust, limit.caution, limit.shown]
    assert marks == sorted(marks, reverse=limit.at_least)
    assert [limit.level(mark) for mark in marks] == sorted(limit.level(mark) for mark in marks)
    assert limit.words.format(value=0.5)


@pytest.mark.parametrize("name", ["importance", "self_normalised", "doubly_robust", "weighted_doubly_robust"])
def test_the_log_itself_is_trusted(name: str) -> None:
    found = assess(name, sessions(400), resamples=100)
    assert found.verdict == "trust"
    assert "400 sessions are worth 400" in found.reason
    assert not found.withheld


def test_few_sessions_and_thin_support() -> None:
    assert assess("importance", sessions(100), resamples=100).verdict == "caution"
    few = assess("importance", sessions(30), resamples=100)
    assert few.verdict == "do not trust"
    assert "there are 30 sessions" in few.reason
    assert not few.withheld
    assert assess("importance", sessions(9), resamples=100).withheld


def changed(steps: Trajectories, weight: float, times: int) -> Trajectories:
    """The first `times` sessions weigh so much, the rest nothing."""
    log_pi = np.full(len(steps), -np.inf)
    log_pi[:times] = np.log(weight)
    return replace(steps, log_pi=log_pi)


def test_one_heavy_session() -> None:
    found = assess("importance", changed(sessions(400), 400.0, 1), resamples=100)
    assert found.verdict == "do not trust"
    assert found.withheld
    assert "worth 1 of the policy's own sessions" in found.reason
    assert "one session brings 100% of the estimate's variance" in found.reason


def spread(n: int, mean: float, deviation: float) -> Trajectories:
    """n sessions of one decision whose weights have this mean and deviation."""
    weight = mean + deviation * np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    return replace(sessions(n), log_pi=np.log(weight))


def test_weights_that_do_not_add_up() -> None:
    low = assess("importance", changed(sessions(1000), 1.0, 700), resamples=100)
    assert low.verdict == "do not trust"
    assert "the weights add up to 0.70 of what they should" in low.reason
    assert f"too little, by {0.3 / (0.7 * 0.3 / 1000) ** 0.5:.1f} standard errors" in low.reason
    high = assess("importance", changed(sessions(1000), 3.0, 900), resamples=100)
    assert high.verdict == "do not trust"
    assert "the weights add up to 2.70 times what they should" in high.reason


@pytest.mark.parametrize(
    ("mean", "deviation", "verdict"),
    [
        (1.03, 0.8, "trust"),  # 1.2 standard errors above
        (1.03, 0.32, "caution"),  # 3
        (1.05, 0.32, "do not trust"),  # 5
        (0.97, 0.4, "trust"),  # 2.4 below
        (0.97, 0.24, "caution"),  # 4
        (0.97, 0.16, "do not trust"),  # 6
        (1.015, 0.01, "trust"),  # 47, and slight
    ],
)
def test_standard_errors_of_what_weights_add_up_to(mean: float, deviation: float, verdict: str) -> None:
    assert assess("importance", spread(1024, mean, deviation), resamples=100).verdict == verdict


def test_what_is_cut_off_and_rare_items_and_estimated_propensities() -> None:
    steps = sessions(1000, ratio=1.5)
    assert assess("importance", steps, resamples=100).verdict == "trust"
    cut = assess("capped", steps, cap=1.25, resamples=100)
    assert (cut.verdict, cut.cap) == ("do not trust", 1.25)
    assert "12% of the weight was cut off" in cut.reason
    rare = assess("importance", replace(steps, rare=np.full(1000, 0.1)), resamples=100)
    assert (rare.verdict, "10% of its choices" in rare.reason) == ("caution", True)
    assert assess("importance", steps, propensity_error=0.05, resamples=100).verdict == "caution"
    assert assess("importance", steps, propensity_error=0.01, resamples=100).verdict == "trust"


def test_marginal_weights_are_never_trusted() -> None:
    steps = replace(sessions(400), log_marginal=np.zeros(400))
    found = assess("marginal", steps, resamples=100)
    assert (found.verdict, "items of a cluster to be alike" in found.reason) == ("caution", True)


def test_the_direct_method_is_judged_by_its_model() -> None:
    steps = replace(sessions(400), log_pi=None)  # top-k play has no probabilities
    alone = assess("direct", steps)
    assert (alone.verdict, alone.support.effective) == ("caution", None)
    assert "knows nothing of how far Q itself may be off" in alone.reason
    again = np.array([0.9, 1.1, 1.0])
    found = assess("direct", steps, refits=again, counted=True)
    assert (found.verdict, found.interval.error) == ("trust", pytest.approx(0.1))  # all sessions start alike
    unlike = replace(steps, start=np.arange(400) % 2 * 2.0)
    beside = assess("direct", unlike, refits=again).interval
    assert (beside.estimate, beside.error) == pytest.approx((1.0, np.hypot(0.1, 1 / 399**0.5)))
    off = replace(steps, q=steps.reward - 0.25)
    assert assess("direct", off, refits=again).verdict == "do not trust"
    assert "all in one direction" in assess("direct", off, refits=again).reason
    blind = assess("direct", replace(steps, rare=None, q=None), refits=again)
    assert blind.verdict == "caution"
    assert "how well Q fits the log is not known" in blind.reason
    assert "how much of what the policy does the log shows is not known" in blind.reason
    assert assess("direct", replace(steps, rare=np.full(400, 0.9)), refits=again).withheld


def test_a_networks_guesses_are_never_trusted() -> None:
    """However well Q fits the log: what it says of other choices nothing in the log can show."""
    steps, again = sessions(400), np.array([0.99, 1.0, 1.01])
    found = assess("direct", steps, refits=again)
    assert (found.verdict, found.support.overlap) == ("caution", pytest.approx(1.0))
    assert "a network's guess" in found.reason
    assert assess("direct", steps, refits=again, counted=True).verdict == "trust"


@pytest.mark.parametrize(("log_ratio", "verdict"), [(-0.3, "caution"), (-0.4, "do not trust")])  # .74, .67
def test_a_policy_that_leaves_the_log_is_not_believed(log_ratio: float, verdict: str) -> None:
    steps = replace(sessions(400), log_pi=np.full(400, log_ratio))
    found = assess("direct", steps, refits=np.array([0.99, 1.0, 1.01]))
    assert found.verdict == verdict
    assert f"it makes {np.exp(log_ratio):.0%} of the choices that the log makes" in found.reason
    assert "choices that the log makes" not in assess("importance", steps, resamples=50).reason


@pytest.mark.parametrize(("promise", "verdict"), [(1.05, "caution"), (1.2, "do not trust"), (0.2, "caution")])
def test_a_promise_of_much_more_than_the_log_paid_is_not_believed(promise: float, verdict: str) -> None:
    steps = replace(sessions(400), reward=np.ones(400), q=np.ones(400), log_pi=None, start=np.full(400, promise))
    found = assess("direct", steps, refits=promise + np.array([-0.01, 0.0, 0.01]))
    assert (found.verdict, found.withheld) == (verdict, False)
    assert (f"promises {promise - 1:.0%} more than the log paid" in found.reason) == (promise > 1)


def test_how_far_above_the_log_by_hand(by_hand: Trajectories) -> None:
    """Sessions earned 1 + ½ · 3, 4 and 0: 6.5 / 3 on average."""
    assert above(by_hand, 0.5, 3.0) == pytest.approx((3 - 6.5 / 3) / (6.5 / 3))
    losses = replace(by_hand, reward=-by_hand.reward)
    assert above(losses, 0.5, 0.0) == pytest.approx(1.0)
    nothing = replace(by_hand, reward=np.zeros(3))
    assert [above(nothing, 1.0, promise) for promise in (0.0, 1.0, -1.0)] == [0.0, np.inf, -np.inf]


def test_values_by_behaviour_and_a_decision() -> None:
    steps = sessions(300, ratio=1.2)
    steps = replace(steps, by={"view": 0.25 * steps.reward, "buy": 0.75 * steps.reward})
    found = assess("self_normalised", steps, resamples=100)
    assert found.per_step is not None
    assert found.per_step.estimate == pytest.approx(found.interval.estimate)  # one decision a session
    assert found.by["buy"].estimate == pytest.approx(0.75 * found.interval.estimate)
    assert assess("doubly_robust", steps, resamples=100).by == {}
    assert assess("self_normalised", steps, resamples=100, parts=False).per_step is None


def test_what_is_withheld_is_shown_when_asked_for() -> None:
    found = assess("importance", changed(sessions(400), 400.0, 1), resamples=100)
    hidden, shown = found.as_json(), found.as_json(by_name=True)
    assert hidden["estimate"] is hidden["low"] is hidden["by"] is hidden["per_step"] is None
    assert shown["estimate"] == found.interval.estimate
    assert hidden["verdict"] == shown["verdict"] == "do not trust"
    assert json.loads(json.dumps(hidden, allow_nan=False))["withheld"]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_has_a_verdict(name: str) -> None:
    steps = replace(sessions(250, ratio=1.3), log_marginal=np.zeros(250))
    found = assess(name, steps, resamples=50)
    assert isinstance(found, Assessment)
    assert found.verdict in VERDICTS
    assert found.reason


def test_a_policy_that_does_nothing_the_log_shows() -> None:
    steps = replace(sessions(400), log_pi=np.full(400, -np.inf))
    for name in ("importance", "self_normalised", "weighted_doubly_robust"):
        found = assess(name, steps, resamples=50)
        assert (found.verdict, found.withheld) == ("do not trust", True)
        assert "worth 0 of the policy's own sessions" in found.reason


def test_where_two_sessions_carry_all_the_figure_is_not_believed() -> None:
    steps = sessions(2000)
    rare = np.zeros(2000)
    rare[:2] = 1.0
    found = assess("importance", replace(steps, reward=rare, by={}), parts=False)
    assert found.interval.high == np.inf
    assert found.verdict == "do not trust"
    assert "no end" in found.reason
