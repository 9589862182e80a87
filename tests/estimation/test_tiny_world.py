"""Estimates compared with exact values from dynamic programming; a small version of benchmarks/estimators_tiny.py."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from offrec.estimation.estimators import estimate_value, session_terms
from offrec.estimation.interval import Interval, bootstrap_interval
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "estimators_tiny.py"
LOGS, SESSIONS = 40, 1000
STATE_MARGINAL = ("state_marginal", "state_marginal_doubly_robust")  # the class is the state
CONSISTENT = (
    "importance",
    "self_normalised",
    "doubly_robust",
    "weighted_doubly_robust",
    "marginal",
    *STATE_MARGINAL,
)
WITH_COUNTED_PROPENSITIES = ("importance", "weighted_doubly_robust")  # the benchmark has the whole grid
Near = tuple[float, float, dict[tuple[str, str], list[Interval]]]


@pytest.fixture(scope="module")
def tiny() -> Iterator[ModuleType]:
    spec = spec_from_file_location("estimators_tiny", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["estimators_tiny"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["estimators_tiny"]


@pytest.fixture(scope="module")
def near(tiny: ModuleType) -> Near:
    """The value of the near policy, the value of its coarse version, and the intervals of every log."""
    world = tiny.Tiny.open()
    policy = world.policy(tiny.TEMPERATURES["near"])
    found: dict[tuple[str, str], list[Interval]] = {}
    model = world.fitted(world.log(SESSIONS, 999), np.ones(SESSIONS, np.int64), policy)
    for number in range(LOGS):
        log = world.log(SESSIONS, 1000 + number)
        for source, b in tiny.propensities(world, log).items():
            steps = world.steps(log, policy, b, model)
            for name in CONSISTENT if source == "true" else WITH_COUNTED_PROPENSITIES:
                one = bootstrap_interval(session_terms(name, steps), seed=number, resamples=200)
                found.setdefault((source, name), []).append(one)
    return world.value(policy), world.value(world.coarse(policy)), found


@pytest.mark.parametrize(
    ("source", "name"),
    [*(("true", name) for name in CONSISTENT), *(("counted", name) for name in WITH_COUNTED_PROPENSITIES)],
)
def test_intervals_contain_the_exact_value_at_their_nominal_rate(near: Near, source: str, name: str) -> None:
    truth = near[1] if name == "marginal" else near[0]
    found = near[2][source, name]
    covered = sum(one.low <= truth <= one.high for one in found)
    assert covered >= 34  # 38 expected; fewer than 34 have a binomial probability of .003
    wrong = sum(one.low <= 1.2 * truth <= one.high for one in found)
    assert wrong < 34, "the test would accept a value that is 20 % higher"


@pytest.mark.parametrize("name", CONSISTENT)
def test_estimates_with_true_propensities_are_unbiased(near: Near, name: str) -> None:
    truth = near[1] if name == "marginal" else near[0]
    error = np.array([one.estimate for one in near[2]["true", name]]) - truth
    assert (
        abs(error.mean()) < 3.3 * error.std(ddof=1) / LOGS**0.5 + 0.005
    )  # normalised estimators have a bias of order 1 / S
    assert error.std() < 0.1 * truth, "the test would accept any bias"


def test_marginal_estimates_the_coarse_policy(near: Near) -> None:
    """It differs from the policy here, because the items of a category are not alike."""
    truth, coarse, found = near
    error = np.array([one.estimate for one in found["true", "marginal"]])
    assert abs(error.mean() - truth) > 5 * error.std() / LOGS**0.5
    assert coarse < truth


def test_the_direct_method_with_an_exact_model_is_exact(tiny: ModuleType) -> None:
    world = tiny.Tiny.open()
    for temperature in tiny.TEMPERATURES.values():
        policy = world.policy(temperature)
        exact = world.mdp.evaluate_policy(tiny.torch.as_tensor(policy), 0.9)
        log = world.log(300, 5)
        steps: Trajectories = world.steps(log, policy, policy, (exact.q.numpy(), exact.values.numpy()))
        assert estimate_value("direct", steps, 0.9) == pytest.approx(exact.value)


def test_verdicts_follow_the_distance_from_the_log(tiny: ModuleType) -> None:
    world, verdicts = tiny.Tiny.open(), {}
    log, other = world.log(2000, 1), world.log(2000, 2)
    for name, temperature in tiny.TEMPERATURES.items():
        policy = world.policy(temperature)
        model = world.fitted(other, np.ones(2000, np.int64), policy)
        steps = world.steps(log, policy, world.mdp.logging().numpy(), model)
        verdicts[name] = assess("self_normalised", steps, resamples=200).verdict
    assert (verdicts["near"], verdicts["farthest"]) == ("trust", "do not trust")
