"""Certified shares: by hand, against exact values, and how often they are right."""

from typing import Any

import numpy as np
import pytest

from offrec.errors import InputError
from offrec.estimation.certify import Certification, certify
from offrec.estimation.simultaneous import PairedIntervals
from offrec.estimation.trajectories import Trajectories

B = np.array([0.4, 0.3, 0.2, 0.1])
MEANS = np.array([0.2, 0.3, 0.4, 0.6])  # probability of a reward of 1
BETTER = np.array([0.25, 0.25, 0.25, 0.25])
SAME = B + np.array([0.1, -0.2, 0.1, 0.0])  # earns as much as B
SHARES = (0.1, 0.3, 0.6, 1.0)


def log(policy: np.ndarray, sessions: int, seed: int) -> Trajectories:
    """Sessions of one decision with exact propensities."""
    random = np.random.default_rng(seed)
    action = random.choice(4, sessions, p=B)
    reward = (random.random(sessions) < MEANS[action]).astype(float)
    with np.errstate(divide="ignore"):
        return Trajectories(np.arange(sessions + 1), reward, log_pi=np.log(policy)[action], log_b=np.log(B)[action])


def value(policy: np.ndarray, share: float = 1.0) -> float:
    return float((share * policy + (1 - share) * B) @ MEANS)


def intervals(result: Certification, number: int = 0) -> PairedIntervals:
    candidate = result.policies[number].certified
    assert candidate is not None
    assert candidate.intervals is not None
    return candidate.intervals


def test_estimates_of_one_step_are_worked_by_hand() -> None:
    """Four actions, shown 40, 30, 20 and 10 times per 100; each earned its mean exactly. V_b = .31 and V_π = .375."""
    action = np.repeat(np.tile(np.arange(4), 50), np.tile([40, 30, 20, 10], 50))
    times = np.array([40, 30, 20, 10])
    earned = np.concatenate([np.arange(times[one]) < times[one] * MEANS[one] for one in range(4)] * 50)
    steps = Trajectories(
        np.arange(len(action) + 1), earned.astype(float), log_pi=np.log(BETTER)[action], log_b=np.log(B)[action]
    )
    result = certify({"better": steps}, shares=SHARES, resamples=200)
    assert result.logged == pytest.approx(0.31)
    for candidate in result.policies[0].candidates:
        assert candidate.intervals is not None, candidate.assessment.reasons
        assert candidate.intervals.value.estimate == pytest.approx(value(BETTER, candidate.share))
        assert candidate.intervals.difference.estimate == pytest.approx(value(BETTER, candidate.share) - 0.31)
        ratio = candidate.share * BETTER / B + 1 - candidate.share
        assert candidate.divergence == pytest.approx(float(B @ (ratio * np.log(ratio))))
    certified = result.policies[0].certified
    assert certified is not None
    assert certified.share == 1.0
    assert "You may give it 100 % of the traffic: it will earn between 0.3" in result.sentences()[0]


def test_certified_shares_hold_and_equal_policies_are_rarely_certified() -> None:
    """`same` earns what the log earns, by other actions, so that certifying it is always wrong."""
    assert value(SAME) == pytest.approx(value(B))
    holds = certified = wrong = 0
    for seed in range(60):
        policies = {"better": log(BETTER, 300, seed), "same": log(SAME, 300, seed)}
        result = certify(policies, shares=(0.2, 0.5, 1.0), seed=seed, resamples=200)
        best = result.policies[0].certified
        wrong += result.policies[1].certified is not None
        if best is not None:
            around = intervals(result)
            certified += 1
            truth = value(BETTER, best.share)
            holds += around.value.low <= truth <= around.value.high and truth > value(B)
    assert certified >= 30, "the policy earns much more, so most logs certify some share"
    assert holds >= 0.9 * certified  # 95 % expected
    assert wrong <= 5  # 2.5 % expected; more than 5 of 60 have a probability of .004


def test_a_share_that_is_not_trusted_is_not_certified() -> None:
    """The policy always takes an action that the log shows in 1 % of the sessions; small shares stay close to it."""
    b, rare = np.array([0.99, 0.01]), np.array([0.0, 1.0])
    random = np.random.default_rng(1)
    action = random.choice(2, 3000, p=b)
    with np.errstate(divide="ignore"):
        steps = Trajectories(
            np.arange(3001), 0.1 + 0.9 * (action == 1), log_pi=np.log(rare)[action], log_b=np.log(b)[action]
        )
    result = certify({"rare": steps}, resamples=200)
    (one,) = result.policies
    assert one.certified is not None
    assert one.certified.share < 0.3
    assert not one.candidates[-1].is_trusted
    assert one.candidates[-1].intervals is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (np.array([0.97, 0.01, 0.01, 0.01]), "Do not use it: with"),
        (SAME, "No share can be certified yet: with 100 %"),
    ],
)
def test_sentences_say_what_to_do(policy: np.ndarray, expected: str) -> None:
    result = certify({"one": log(policy, 2000, 3)}, resamples=200)
    assert result.policies[0].certified is None
    assert result.boldest is None
    assert expected in result.sentences()[0]


def test_a_log_without_the_lists_of_a_policy_asks_for_another_log() -> None:
    """More exploration would not show long lists, so the sentence names the policy's own blended log."""
    random = np.random.default_rng(0)
    sessions = 2000
    steps = Trajectories(
        np.arange(sessions + 1),
        random.random(sessions),
        log_pi=np.full(sessions, -np.inf),  # the policy shows none of the logged lists
        log_b=np.log(np.full(sessions, 0.5)),
    )
    text = certify({"planner": steps}, resamples=200).sentences()[0]
    assert "from a log that it served itself as a blend" in text
    assert "log with more exploration" not in text


def test_a_log_that_is_too_small_certifies_nothing() -> None:
    result = certify({"one": log(BETTER, 60, 3)}, resamples=200)
    assert "even an estimate for 5 % of the traffic is not trusted (number of sessions" in result.sentences()[0]


def test_the_boldest_policy_and_the_largest_gain_of_a_family() -> None:
    """`far` is farther from the log at its largest share, and gains more."""
    family = {"near": 0.5 * BETTER + 0.5 * B, "far": BETTER}
    result = certify({name: log(policy, 3000, 5) for name, policy in family.items()}, resamples=200)
    assert result.boldest is not None
    assert result.best is not None
    assert (result.boldest[0].name, result.boldest[1].share) == ("far", 1.0)
    assert result.best[0].name == "far"
    assert result.sentences()[-2:] == [
        "Boldest: far with 100 % of the traffic.",
        f"Largest certain gain: far with {100 * result.best[1].share:g} % of the traffic, at least "
        f"{result.best[1].certain_gain:.3g} more than the log.",
    ]
    content: dict[str, Any] = result.as_json()
    assert content["boldest"] == {"name": "far", "share": 1.0}
    assert [one["certified_share"] for one in content["policies"]] == [1.0, 1.0]
    assert len(content["policies"][0]["candidates"]) == 11


def test_invalid_requests_are_refused() -> None:
    steps = log(BETTER, 50, 1)
    for arguments, message in (
        ({"policies": {}}, "at least one policy"),
        ({"policies": {"a": steps}, "shares": (0.0,)}, "must be above 0 and at most 1"),
        ({"policies": {"a": steps}, "estimator": "direct"}, "--estimator direct cannot evaluate a blend"),
        ({"policies": {"a": steps, "b": log(BETTER, 50, 2)}}, "b has other logged sessions than a"),
    ):
        with pytest.raises(InputError, match=message):
            certify(**arguments)  # type: ignore[arg-type]


def test_a_gain_that_may_be_rounding_is_not_certified() -> None:
    """Almost the logging policy: it certainly earns more, but by less than .1 % of the logged reward."""
    (one,) = certify({"one": log(B + np.array([-0.001, 0.001, 0, 0]), 2000, 3)}, resamples=200).policies
    assert one.candidates[-1].certain_gain > 0
    assert one.certified is None
