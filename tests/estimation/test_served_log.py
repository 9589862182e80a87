"""Estimates on a log with exact propensities: lists of two sampled by a known policy, with a reward worked exactly."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_policies import Fixed

import offrec
from offrec.commands.estimate import Estimate
from offrec.commands.estimate_output import print_result
from offrec.errors import InputError
from offrec.estimation.collect import rare_beyond_logging
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.estimators import ESTIMATORS
from offrec.estimation.options import EstimateOptions
from offrec.estimation.seen_sessions import count_seen_sessions
from small_datasets import write_dataset

ITEMS, LISTS, SESSIONS = 6, 3, 1200
SERVED = [1.0, 0.5, 0.0, 0.0, -0.5, -1.0]
DOUBLY_ROBUST = [name for name in ESTIMATORS if name.endswith("_doubly_robust")]
PICKS = [0.1, 0.3, 0.5, 0.2, 0.6, 0.9]  # probability that a visitor buys the item when it is first on the list


def list_probability(logits: list[float], items: tuple[int, ...]) -> float:
    """The probability of an ordered list that is sampled without replacement."""
    weights, probability = np.exp(logits), 1.0
    for place, item in enumerate(items):
        probability *= weights[item] / (weights.sum() - weights[list(items[:place])].sum())
    return float(probability)


def true_reward(logits: list[float]) -> float:
    """The exact reward per session: visitors look at the first item only and never leave early."""
    pairs = permutations(range(ITEMS), 2)
    return LISTS * sum(list_probability(logits, pair) * PICKS[pair[0]] for pair in pairs)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A log that the policy with the logits SERVED has served."""
    random, pairs = np.random.default_rng(0), list(permutations(range(ITEMS), 2))
    chances = [list_probability(SERVED, pair) for pair in pairs]
    sessions, decisions = [], []
    for _ in range(SESSIONS):
        picked: list[int] = []
        lists = []
        for number in random.choice(len(pairs), LISTS, p=np.array(chances) / sum(chances)):
            first = pairs[number][0]
            is_picked = random.random() < PICKS[first]
            lists.append((len(picked), pairs[number], chances[number], len(picked) if is_picked else None))
            picked += [first] if is_picked else []
        sessions.append(picked)
        decisions.append(lists)
    words = [["buy"] * len(session) for session in sessions]
    folder = tmp_path_factory.mktemp("served")
    return write_dataset(folder, sessions, words, (800, 200, 200), items=ITEMS, decisions=decisions)


def later_policy(dataset: Any, logits: list[float]) -> Fixed:
    """A policy that was trained on another dataset."""
    policy = Fixed(dataset, logits)
    policy.data_hash = "another"
    return policy


def test_the_policy_that_served_the_log_is_trusted_and_close_to_the_truth(served: Any) -> None:
    result = estimate(later_policy(served, SERVED), served)
    assert (result.split, result.sessions) == ("all", SESSIONS)
    assert result.sessions_note.startswith("All sessions are used: no policy was trained on this dataset")
    ((name, assessment),) = result.policies[0].assessments.items()
    assert name == "self_normalised"
    assert assessment.verdict == "trust", assessment.reasons
    assert assessment.support.rare_share == pytest.approx(0.0, abs=1e-6)
    assert assessment.support.effective_sessions == pytest.approx(SESSIONS, rel=1e-4)
    assert abs(assessment.interval.estimate - true_reward(SERVED)) < 3 * assessment.interval.standard_error
    assert assessment.interval.standard_error < 0.03 * true_reward(SERVED)


def test_another_policy_is_estimated_by_weights(served: Any) -> None:
    logits = [0.8, 0.5, 0.2, 0.0, -0.3, -0.6]
    assessment = estimate(later_policy(served, logits), served).policies[0].assessments["self_normalised"]
    assert true_reward(logits) > 1.05 * true_reward(SERVED)
    assert abs(assessment.interval.estimate - true_reward(logits)) < 3 * assessment.interval.standard_error


def test_ratios_of_picks_leave_more_effective_sessions(served: Any) -> None:
    """Visitors look at the first item only, so ratios of prefixes are exact and those of picks are nearly right."""
    logits = [0.6, 0.5, 0.2, 0.1, -0.1, -0.5]
    options = EstimateOptions(estimators=("self_normalised", "pick", "cascade", "order_free"))
    server = later_policy(served, SERVED)
    found = estimate(later_policy(served, logits), served, options, served=server).policies[0].assessments
    effective = {name: one.support.effective_sessions for name, one in found.items()}
    assert effective["pick"] > effective["cascade"] > effective["self_normalised"]
    assert effective["order_free"] == pytest.approx(effective["self_normalised"], rel=0.2)
    for name in ("self_normalised", "cascade"):
        interval = found[name].interval
        assert abs(interval.estimate - true_reward(logits)) < 3 * interval.standard_error
    assert found["pick"].assumption_bias.standard_error > 0
    default = estimate(later_policy(served, logits), served, served=server).policies[0].assessments
    assert list(default) == ["pick"]


def test_clusters_and_doubly_robust_forms_are_close_to_the_truth(served: Any) -> None:
    """Six clusters of one item: ratios of clusters are those of lists, and of picks. Q is fitted to 800 sessions."""
    logits = [0.6, 0.5, 0.2, 0.1, -0.1, -0.5]
    names = (
        *("self_normalised", "marginal", "pick", "marginal_pick", "state_marginal", "state_marginal_pick"),
        *DOUBLY_ROBUST,
    )
    options = EstimateOptions(estimators=names, values=ValueOptions(updates=60))
    result = estimate(later_policy(served, logits), served, options, served=later_policy(served, SERVED))
    found = result.policies[0].assessments
    assert result.notes[-1] == "Item clusters: 6, learned from the training sessions."
    assert result.sessions == 200
    estimates = {name: one.interval.estimate for name, one in found.items()}
    assert estimates["marginal"] == pytest.approx(estimates["self_normalised"], rel=1e-6)
    assert estimates["marginal_pick"] == pytest.approx(estimates["pick"], rel=1e-6)
    assert estimates["marginal_doubly_robust"] == pytest.approx(estimates["weighted_doubly_robust"], rel=1e-6)
    assert {"states"} <= {reason.code for reason in found["state_marginal_pick"].reasons}
    for name in (*DOUBLY_ROBUST, "state_marginal", "state_marginal_pick"):
        interval = found[name].interval
        assert abs(interval.estimate - true_reward(logits)) < 4 * interval.standard_error, name
        others = [one for other, one in estimates.items() if other not in DOUBLY_ROBUST and other != name]
        assert interval.estimate not in others
    assert "clusters" in [reason.code for reason in found["marginal"].reasons]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("marginal", "needs probabilities of clusters, but the log has those of whole lists only; add --served RUN"),
        ("marginal_pick", "needs probabilities of pick clusters, but .*; add --served RUN, the policy that served"),
        ("pick_doubly_robust", "needs probabilities of picks, but the log has those of whole lists only; add --served"),
    ],
)
def test_parts_of_lists_need_the_policy_that_served_the_log(served: Any, name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^--estimator {name} {message}"):
        estimate(later_policy(served, SERVED), served, EstimateOptions(estimators=(name,)))


def test_parts_of_lists_need_served_lists(tmp_path: Path) -> None:
    picks = write_dataset(tmp_path, [[0], [1], [0], [1]], splits=(2, 1, 1), items=2)
    with pytest.raises(InputError, match="--estimator pick needs served lists, but the log has only picks; use anoth"):
        estimate(Fixed(picks, [0.0, 0.0]), picks, EstimateOptions(estimators=("pick",)))


@pytest.mark.parametrize(("name", "uses_states"), [("self_normalised", False), ("state_marginal", True), ("", False)])
def test_states_are_classified_only_if_an_estimator_needs_them(served: Any, name: str, uses_states: bool) -> None:
    options = EstimateOptions(estimators=(name,) if name else ())
    (one,) = estimate(later_policy(served, SERVED), served, options).policies
    assert (one.trajectories.state is not None) == uses_states


def test_blends_of_ratios_of_picks_approach_the_log(served: Any) -> None:
    server, options = later_policy(served, SERVED), EstimateOptions(blend=0.01)
    (one,) = estimate(later_policy(served, [1.0, 1, 1, 1, 1, 1]), served, options, served=server).policies
    assert one.assessments["pick"].interval.estimate == pytest.approx(true_reward(SERVED), rel=0.06)
    assert one.assessments["pick"].support.effective_sessions == pytest.approx(SESSIONS, rel=0.01)


def test_each_policy_is_certified_with_its_own_estimator(served: Any) -> None:
    """A policy that shows its top k has no ratios of picks."""
    server, best = later_policy(served, SERVED), later_policy(served, SERVED)
    best.stochastic = False
    options = EstimateOptions(certify=True, shares=(0.1,))
    result = estimate({"sampled": server, "best": best}, served, options, served=server)
    assert result.certification is not None
    estimators = {one.name: one.estimator for one in result.certification.policies}
    assert estimators == {"sampled": "pick", "best": "self_normalised"}


def test_another_policy_than_the_one_that_served_the_log_is_refused(served: Any) -> None:
    policy = later_policy(served, SERVED)
    with pytest.raises(InputError, match=r"logged propensities differ from those of .* at temperature 2"):
        estimate(policy, served, EstimateOptions(served_temperature=2.0), served=policy)


def test_the_policy_that_served_the_log_may_lack_newer_items(tmp_path: Path) -> None:
    """The log has another item, with index 0. The policy shows the other two with equal probability."""
    items = [number % 2 for number in range(300)]
    words, splits = [["buy"]] * 300, (200, 50, 50)
    earlier = write_dataset(tmp_path, [[item] for item in items], words, splits, ids=[100, 101])
    decisions = [[(0, (item + 1,), 0.5, 0)] for item in items]
    sessions = [[item + 1] for item in items]
    log = write_dataset(tmp_path, sessions, words, splits, items=3, ids=[99, 100, 101], decisions=decisions)
    server, policy = later_policy(earlier, [0.0, 0.0]), later_policy(earlier, [0.5, 0.0])
    assert server.n_items < log.n_items
    options = EstimateOptions(estimators=("order_free",))
    (one,) = estimate(policy, log, options, served=server).policies
    assert one.assessments["order_free"].interval.estimate == pytest.approx(1.0)


def test_only_test_sessions_are_used_if_the_policy_was_trained_on_the_log(served: Any) -> None:
    result = estimate({"mine": Fixed(served, SERVED)}, served)
    assert (result.split, result.sessions) == ("test", 200)
    assert result.sessions_note == "mine was trained on this dataset, so only its test sessions are used."
    with pytest.raises(InputError, match="--split all needs sessions that nothing was fitted to, but mine was trained"):
        estimate({"mine": Fixed(served, SERVED)}, served, EstimateOptions(split="all"))


def test_only_test_sessions_are_used_if_q_is_fitted(served: Any) -> None:
    policy = later_policy(served, SERVED)
    with pytest.raises(InputError, match="but Q or the propensities are fitted to some; use --split test"):
        estimate(policy, served, EstimateOptions(split="all", estimators=("direct",)))


def test_rare_lists_count_beyond_what_the_logging_policy_shows() -> None:
    """Lists of two: rare below 1e-8. The third list is rare and shown three times as often; 1/8 of π is not logged."""
    log_b = np.log([0.5, 0.5, 1e-9, 1e-9])
    log_pi = np.log([0.25, 0.25, 3e-9, 0.0 + 1e-300])
    ratios = np.array([0.5, 0.5, 3.0, 0.0])
    missing = 1 - ratios.mean()
    expected = np.array([0.0, 0.0, 2.0, 0.0]) + max(0.0, missing)
    np.testing.assert_allclose(rare_beyond_logging(log_pi, log_b, np.full(4, 2)), expected, atol=1e-12)
    half = rare_beyond_logging(log_b + np.log(0.5), log_b, np.full(4, 2))
    assert half.mean() == pytest.approx(0.5)  # half of the policy's lists are not in the log
    assert rare_beyond_logging(log_b, log_b, np.full(4, 2)).tolist() == [0.0] * 4


def test_sessions_are_recognised_by_their_start(tmp_path: Path) -> None:
    rows = [f"{n},{item},{1000 + 10 * n + place}" for n in range(40) for place, item in enumerate("abc")]
    lines = ["session,item,time", *rows]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    (tmp_path / "first.csv").write_text("\n".join(lines[: 1 + 3 * 20]))
    whole = offrec.prepare(tmp_path / "log.csv", out=tmp_path / "whole", split="time")
    first = offrec.prepare(tmp_path / "first.csv", out=tmp_path / "first", split="time")
    assert count_seen_sessions(whole, "all", first) == 18  # of 20, two are test sessions of the first log
    assert count_seen_sessions(whole, "test", first) == 0
    assert count_seen_sessions(first, "train", whole) == 16


def test_shares_of_a_better_policy_are_certified_and_hold(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`better` shows items that are bought more often. The exact value of a blend is linear: lists are independent."""
    better = [0.3, 0.5, 0.5, 0.2, 0.3, 0.3]
    options = EstimateOptions(certify=True, shares=(0.2, 0.5, 1.0))
    result = estimate({"better": later_policy(served, better)}, served, options)
    assert result.certification is not None
    certified = result.certification.policies[0].certified
    assert certified is not None
    assert certified.intervals is not None
    truth = certified.share * true_reward(better) + (1 - certified.share) * true_reward(SERVED)
    assert certified.intervals.value.low < truth < certified.intervals.value.high
    print_result(result)
    printed = capsys.readouterr().out
    assert f"\nbetter: You may give it {100 * certified.share:g} % of the traffic: it will earn between" in printed
    assert "\nA share of the traffic is the probability" in printed
    assert result.as_json()["certification"]["policies"][0]["certified_share"] == certified.share


def test_a_family_of_temperatures_is_certified_together(served: Any) -> None:
    options = EstimateOptions(certify=True, shares=(0.5,), temperatures=(2.0, 1.0))
    result = estimate({"one": later_policy(served, SERVED)}, served, options)
    names = ["one at temperature 2", "one at temperature 1"]
    assert [one.name for one in result.policies] == names
    assert result.certification is not None
    assert [one.name for one in result.certification.policies] == names
    warm, same = result.certification.policies
    assert warm.certified is not None, "warmer lists contain more of the items that are bought"
    assert same.certified is None, "the policy that served the log does not earn more than it did"


def test_requests_that_cannot_be_certified_are_refused(served: Any, tmp_path: Path) -> None:
    picks = write_dataset(tmp_path, [[0], [1], [0], [1]], splits=(2, 1, 1), items=2)
    with pytest.raises(InputError, match="--certify needs exact propensities"):
        estimate(Fixed(picks, [0.0, 0.0]), picks, EstimateOptions(certify=True))
    for options, message in (
        ({"certify": True, "blend": 0.5}, "--certify finds the share itself; omit --blend"),
        ({"certify": True, "estimators": ("all",)}, "--certify uses one estimator"),
        ({"certify": True, "estimators": ("direct",)}, "--estimator direct cannot evaluate a blend"),
        ({"temperatures": (2.0,)}, "--temperatures needs --certify"),
        ({"certify": True, "shares": (1.5,)}, "--shares must be numbers above 0 and at most 1; got 1.5"),
    ):
        with pytest.raises(InputError, match=message):
            EstimateOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--shares must be numbers separated by commas"):
        Estimate((tmp_path,), certify=True, shares="a,b")._shares()
    with pytest.raises(InputError, match="--shares has no effect without --certify"):
        Estimate((tmp_path,), shares="0.5")._shares()
