"""Verdicts: their diagnostics by hand, every limit, and what is withheld."""

import json
from dataclasses import replace

import numpy as np
import pytest

from offrec.estimation.estimators import ESTIMATORS, session_terms
from offrec.estimation.support import calibrate_q, compute_support, effective_sessions, excess_over_log
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import LIMITS, TEXTS, VERDICTS, Assessment, Limit, assess

WEIGHTINGS = {estimator.weighting for estimator in ESTIMATORS.values()} - {"lists"}


@pytest.fixture
def by_hand() -> Trajectories:
    """A session with the weights 2 and 1, one with the weight ½, and one without decisions."""
    return Trajectories(
        offsets=np.array([0, 2, 3, 3]),
        reward=np.array([1.0, 3.0, 4.0]),
        log_pi=np.log([0.4, 0.2, 0.1]),
        log_b=np.log([0.2, 0.4, 0.2]),
        q=np.array([1.5, 2.0, 3.0]),
        v=np.array([2.0, 1.0, 1.0]),
        rare_mass=np.array([0.1, 0.2, 0.3]),
    )


def sessions(n: int, ratio: float = 1.0, seed: int = 0) -> Trajectories:
    """n sessions of one decision; half of them have the weight `ratio`, the others 2 − ratio."""
    random = np.random.default_rng(seed)
    weight = np.where(np.arange(n) % 2 == 0, ratio, 2 - ratio)
    reward = random.normal(1, 0.1, n)
    zeros = np.zeros(n)
    model = {"q": reward, "v": np.ones(n), "rare_mass": zeros, "state": np.zeros(n, np.int64)}
    return Trajectories(np.arange(n + 1), reward, np.log(weight), zeros, **model, reward_by_behaviour={"view": reward})


def reasons(assessment: Assessment) -> dict[str, float]:
    """code → value of everything beyond a limit."""
    return {reason.code: reason.value for reason in assessment.reasons}


def test_effective_sessions_by_hand(by_hand: Trajectories) -> None:
    """Step 0: 3.5² / (4 + ¼ + 1); step 1: 2.5² / (1 + ¼ + 1). Their shares are 2.5 / 3.5 and ½ · 1 / 2.5."""
    overall, by_step = effective_sessions(session_terms("importance", by_hand), gamma=0.5)
    first, second = 3.5**2 / 5.25, 2.5**2 / 2.25
    np.testing.assert_allclose(by_step, [first, second])
    share = (2.5 / 3.5, 0.5 * 1 / 2.5)
    assert overall == pytest.approx(sum(share) / (share[0] / first + share[1] / second))


def test_support_by_hand(by_hand: Trajectories) -> None:
    support = compute_support("capped", by_hand, gamma=0.5, cap=1.5)
    assert support.largest_weight == pytest.approx(2)
    assert support.mean_weight == pytest.approx((1 + 0.5 + 1) / 3)  # of the last weights
    assert support.mean_weight_error == pytest.approx(np.std([1, 0.5, 1]) / 3**0.5)
    assert support.capped_share == pytest.approx(1 / 3)
    assert support.cut_weight == pytest.approx(0.5 / (2 + 0.5 * 1 + 0.5))
    assert support.rare_share == pytest.approx(0.2)
    ratio = np.array([2, 0.5, 0.5])
    assert support.divergence == pytest.approx((ratio * np.log(ratio) - ratio + 1).mean())
    assert support.overlap == pytest.approx((1 + 0.5 + 0.5) / 3)
    same = compute_support("importance", replace(by_hand, log_pi=by_hand.log_b), gamma=1.0, cap=np.inf)
    diagnostics = (same.effective_sessions, same.mean_weight, same.divergence, same.cut_weight)
    assert diagnostics == pytest.approx((3, 1, 0, 0))


def test_q_calibration_by_hand(by_hand: Trajectories) -> None:
    """The residuals are 0, 1, 1 for Q of 1.5, 2, 3; each decision is a group of its own."""
    calibration = calibrate_q(by_hand, gamma=0.5)
    assert calibration is not None
    assert (calibration.error, calibration.bias) == pytest.approx((2 / 3 / (6.5 / 3), 2 / 3 / (6.5 / 3)))
    calibration = calibrate_q(replace(by_hand, q=np.array([2.5, 3.0, 2.0])), gamma=0.5)  # residuals −1, 0, 2
    assert calibration is not None
    assert (calibration.error, calibration.bias) == pytest.approx((1 / 2.5, (1 / 3) / 2.5))
    assert calibrate_q(replace(by_hand, q=None), 0.5) is None


def test_excess_over_the_log_by_hand(by_hand: Trajectories) -> None:
    """The sessions earned 1 + ½ · 3, 4 and 0: 6.5 / 3 on average."""
    assert excess_over_log(by_hand, 0.5, 3.0) == pytest.approx((3 - 6.5 / 3) / (6.5 / 3))
    negative = replace(by_hand, reward=-by_hand.reward)
    assert excess_over_log(negative, 0.5, 0.0) == pytest.approx(1.0)
    zero = replace(by_hand, reward=np.zeros(3))
    assert [excess_over_log(zero, 1.0, estimate) for estimate in (0.0, 1.0, -1.0)] == [0.0, np.inf, -np.inf]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.code)
def test_the_thresholds_of_a_limit_are_ordered(limit: Limit) -> None:
    thresholds = [limit.trust, limit.caution, limit.show]
    assert thresholds == sorted(thresholds, reverse=limit.at_least)
    assert [limit.level(value) for value in thresholds] == sorted(limit.level(value) for value in thresholds)
    assert format(0.5, limit.unit)


def test_every_code_has_one_text() -> None:
    assert len(TEXTS) == len(LIMITS) == len(set(TEXTS.values()))


@pytest.mark.parametrize("name", ["importance", "self_normalised", "doubly_robust", "weighted_doubly_robust"])
def test_the_logging_policy_itself_is_trusted(name: str) -> None:
    assessment = assess(name, sessions(400), resamples=100)
    assert (assessment.verdict, assessment.reasons, assessment.is_withheld) == ("trust", (), False)
    assert assessment.support.effective_sessions == pytest.approx(400)


def test_few_sessions_are_not_trusted() -> None:
    assert assess("importance", sessions(100), resamples=100).verdict == "caution"
    few = assess("importance", sessions(30), resamples=100)
    assert (few.verdict, few.is_withheld) == ("do not trust", False)
    assert reasons(few)["sessions"] == 30
    assert assess("importance", sessions(9), resamples=100).is_withheld


def with_heavy_sessions(trajectories: Trajectories, weight: float, count: int) -> Trajectories:
    """The first `count` sessions have this weight, all others have the weight 0."""
    log_pi = np.full(len(trajectories), -np.inf)
    log_pi[:count] = np.log(weight)
    return replace(trajectories, log_pi=log_pi)


def test_an_estimate_from_one_heavy_session_is_withheld() -> None:
    assessment = assess("importance", with_heavy_sessions(sessions(400), 400.0, 1), resamples=100)
    assert (assessment.verdict, assessment.is_withheld) == ("do not trust", True)
    assert reasons(assessment)["effective_sessions"] == pytest.approx(1)
    assert reasons(assessment)["largest_session"] == pytest.approx(1, abs=0.01)


def test_a_mean_weight_far_from_1_is_not_trusted() -> None:
    low = assess("importance", with_heavy_sessions(sessions(1000), 1.0, 700), resamples=100)
    assert low.verdict == "do not trust"
    assert reasons(low)["mean_weight_low"] == pytest.approx(0.7)
    assert reasons(low)["significantly_low"] == pytest.approx(0.3 / (0.7 * 0.3 / 1000) ** 0.5)
    high = assess("importance", with_heavy_sessions(sessions(1000), 3.0, 900), resamples=100)
    assert high.verdict == "do not trust"
    assert reasons(high)["mean_weight_high"] == pytest.approx(2.7)


@pytest.mark.parametrize(
    ("mean", "deviation", "verdict"),
    [
        (1.03, 0.8, "trust"),  # 1.2 standard errors above 1
        (1.03, 0.32, "caution"),  # 3
        (1.05, 0.32, "do not trust"),  # 5
        (0.97, 0.4, "trust"),  # 2.4 below 1
        (0.97, 0.24, "caution"),  # 4
        (0.97, 0.16, "do not trust"),  # 6
        (1.015, 0.01, "trust"),  # 47, but within the tolerance
    ],
)
def test_the_significance_of_the_mean_weight_has_limits(mean: float, deviation: float, verdict: str) -> None:
    weight = mean + deviation * np.where(np.arange(1024) % 2 == 0, 1.0, -1.0)
    trajectories = replace(sessions(1024), log_pi=np.log(weight))
    assert assess("importance", trajectories, resamples=100).verdict == verdict


def test_cut_weights_rare_items_and_estimated_propensities_lower_the_verdict() -> None:
    trajectories = sessions(1000, ratio=1.5)
    assert assess("importance", trajectories, resamples=100).verdict == "trust"
    cut = assess("capped", trajectories, cap=1.25, resamples=100)
    assert (cut.verdict, cut.cap) == ("do not trust", 1.25)
    assert reasons(cut)["cut_weight"] == pytest.approx(0.125)
    rare = assess("importance", replace(trajectories, rare_mass=np.full(1000, 0.1)), resamples=100)
    assert (rare.verdict, reasons(rare)) == ("caution", {"rare_items": pytest.approx(0.1)})
    estimated = assess("importance", trajectories, propensity_error=0.05, resamples=100)
    assert (estimated.verdict, reasons(estimated)) == ("caution", {"propensity_error": 0.05})
    assert assess("importance", trajectories, propensity_error=0.01, resamples=100).verdict == "trust"


def test_marginal_estimates_are_never_trusted() -> None:
    zeros = {name: np.zeros(400) for name in WEIGHTINGS}
    trajectories = replace(sessions(400), log_ratios=zeros, controls=zeros)
    assessment = assess("marginal", trajectories, resamples=100)
    assert (assessment.verdict, reasons(assessment)) == ("caution", {"clusters": 1.0})


def test_the_direct_method_is_assessed_by_its_model() -> None:
    trajectories = replace(sessions(400), log_pi=None)  # top-k lists have no probabilities
    without_refits = assess("direct", trajectories)
    assert (without_refits.verdict, without_refits.support.effective_sessions) == ("caution", None)
    assert "no_refits" in reasons(without_refits)
    refits = np.array([0.9, 1.1, 1.0])
    tabular = assess("direct", trajectories, refits=refits, is_tabular=True)
    assert (tabular.verdict, tabular.interval.standard_error) == (
        "trust",
        pytest.approx(0.1),
    )  # all sessions start alike
    varied = assess("direct", replace(trajectories, start_value=np.arange(400) % 2 * 2.0), refits=refits).interval
    assert (varied.estimate, varied.standard_error) == pytest.approx((1.0, np.hypot(0.1, 1 / 399**0.5)))
    biased = assess("direct", replace(trajectories, q=trajectories.reward - 0.25), refits=refits)
    assert (biased.verdict, "q_bias" in reasons(biased)) == ("do not trust", True)
    unknown = assess("direct", replace(trajectories, rare_mass=None, q=None), refits=refits)
    assert unknown.verdict == "caution"
    assert {"q_unchecked", "support_unknown"} <= set(reasons(unknown))
    assert assess("direct", replace(trajectories, rare_mass=np.full(400, 0.9)), refits=refits).is_withheld


def test_the_direct_method_with_a_network_is_never_trusted() -> None:
    """However well Q fits the log, it extrapolates to choices outside the log."""
    trajectories, refits = sessions(400), np.array([0.99, 1.0, 1.01])
    assessment = assess("direct", trajectories, refits=refits)
    assert (assessment.verdict, assessment.support.overlap) == ("caution", pytest.approx(1.0))
    assert "extrapolation" in reasons(assessment)
    assert assess("direct", trajectories, refits=refits, is_tabular=True).verdict == "trust"


@pytest.mark.parametrize(("log_ratio", "verdict"), [(-0.3, "caution"), (-0.4, "do not trust")])  # .74, .67
def test_a_small_overlap_lowers_the_verdict_of_the_direct_method(log_ratio: float, verdict: str) -> None:
    trajectories = replace(sessions(400), log_pi=np.full(400, log_ratio))
    assessment = assess("direct", trajectories, refits=np.array([0.99, 1.0, 1.01]))
    assert assessment.verdict == verdict
    assert reasons(assessment)["overlap"] == pytest.approx(np.exp(log_ratio))
    assert "overlap" not in reasons(assess("importance", trajectories, resamples=50))


@pytest.mark.parametrize(("estimate", "verdict"), [(1.05, "caution"), (1.2, "do not trust"), (0.2, "caution")])
def test_a_direct_estimate_far_above_the_log_is_not_trusted(estimate: float, verdict: str) -> None:
    ones = np.ones(400)
    trajectories = replace(sessions(400), reward=ones, q=ones, log_pi=None, start_value=estimate * ones)
    assessment = assess("direct", trajectories, refits=estimate + np.array([-0.01, 0.0, 0.01]))
    assert (assessment.verdict, assessment.is_withheld) == (verdict, False)
    assert ("above_log" in reasons(assessment)) == (estimate > 1)


def test_values_by_behaviour_and_per_decision() -> None:
    trajectories = sessions(300, ratio=1.2)
    parts = {"view": 0.25 * trajectories.reward, "buy": 0.75 * trajectories.reward}
    trajectories = replace(trajectories, reward_by_behaviour=parts)
    assessment = assess("self_normalised", trajectories, resamples=100)
    assert assessment.per_decision is not None
    assert assessment.per_decision.estimate == pytest.approx(assessment.interval.estimate)  # one decision per session
    assert assessment.by_behaviour["buy"].estimate == pytest.approx(0.75 * assessment.interval.estimate)
    assert assess("doubly_robust", trajectories, resamples=100).by_behaviour == {}
    assert assess("self_normalised", trajectories, resamples=100, breakdown=False).per_decision is None


def test_the_numbers_of_a_withheld_estimate_are_none_unless_they_are_requested() -> None:
    assessment = assess("importance", with_heavy_sessions(sessions(400), 400.0, 1), resamples=100)
    hidden, shown = assessment.as_json(), assessment.as_json(always_show=True)
    assert hidden["estimate"] is hidden["low"] is hidden["by_behaviour"] is hidden["per_decision"] is None
    assert shown["estimate"] == assessment.interval.estimate
    assert hidden["verdict"] == shown["verdict"] == "do not trust"
    assert json.loads(json.dumps(hidden, allow_nan=False))["withheld"]
    assert [reason["code"] for reason in hidden["reasons"]] == [reason.code for reason in assessment.reasons]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_reasons_of_every_estimator_explain_its_verdict(name: str) -> None:
    zeros = {name: np.zeros(250) for name in WEIGHTINGS}
    trajectories = replace(sessions(250, ratio=1.3), log_ratios=zeros, controls=zeros)
    assessment = assess(name, trajectories, resamples=50)
    severities = [VERDICTS.index(reason.verdict) for reason in assessment.reasons]
    assert severities == sorted(severities, reverse=True)
    assert VERDICTS.index(assessment.verdict) == max(severities, default=0)
    assert set(reasons(assessment)) <= set(TEXTS)


def test_a_policy_whose_lists_are_not_in_the_log_is_withheld() -> None:
    trajectories = replace(sessions(400), log_pi=np.full(400, -np.inf))
    for name in ("importance", "self_normalised", "weighted_doubly_robust"):
        assessment = assess(name, trajectories, resamples=50)
        assert (assessment.verdict, assessment.is_withheld) == ("do not trust", True)
        assert reasons(assessment)["effective_sessions"] == 0


def test_an_unbounded_interval_is_not_trusted() -> None:
    reward = np.zeros(2000)
    reward[:2] = 1.0
    trajectories = replace(sessions(2000), reward=reward, reward_by_behaviour={})
    assessment = assess("importance", trajectories, breakdown=False)
    assert (assessment.interval.high, assessment.verdict) == (np.inf, "do not trust")
    assert "unbounded" in reasons(assessment)
