"""Estimates against the dynamic programme, a small version of benchmarks/estimators_tiny.py."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from offrec.estimation.estimators import terms, value
from offrec.estimation.interval import Interval, interval
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import assess

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "estimators_tiny.py"
LOGS, SESSIONS = 40, 1000
CONSISTENT = ("importance", "self_normalised", "doubly_robust", "weighted_doubly_robust", "marginal")
COUNTED = ("importance", "weighted_doubly_robust")  # the whole grid is the benchmark's
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
    """The value of the near policy and of its coarse twin, and every log's intervals."""
    world = tiny.Tiny.open()
    policy = world.policy(tiny.TEMPERATURES["near"])
    found: dict[tuple[str, str], list[Interval]] = {}
    model = world.fitted(world.log(SESSIONS, 999), np.ones(SESSIONS, np.int64), policy)
    for number in range(LOGS):
        log = world.log(SESSIONS, 1000 + number)
        for source, b in tiny.propensities(world, log).items():
            steps = world.steps(log, policy, b, model)
            for name in CONSISTENT if source == "true" else COUNTED:
                one = interval(terms(name, steps), seed=number, resamples=200)
                found.setdefault((source, name), []).append(one)
    return world.value(policy), world.value(world.coarse(policy)), found


@pytest.mark.parametrize(
    ("source", "name"), [*(("true", name) for name in CONSISTENT), *(("counted", name) for name in COUNTED)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(near: Near, source: str, name: str) -> None:
    truth = near[1] if name == "marginal" else near[0]
    found = near[2][source, name]
    held = sum(one.low <= truth <= one.high for one in found)
    assert held >= 34  # 38 expected; a binomial draw below 34 has chance .003
    wrong = sum(one.low <= 1.2 * truth <= one.high for one in found)
    assert wrong < 34, "a truth that is 20 % higher would pass"


@pytest.mark.parametrize("name", CONSISTENT)
def test_true_propensities_leave_no_bias(near: Near, name: str) -> None:
    truth = near[1] if name == "marginal" else near[0]
    error = np.array([one.estimate for one in near[2]["true", name]]) - truth
    assert abs(error.mean()) < 3.3 * error.std(ddof=1) / LOGS**0.5 + 0.005  # normalised ones have a bias of order 1 / S
    assert error.std() < 0.1 * truth, "so loose that any bias would pass"


def test_marginal_weights_are_of_the_coarse_policy(
    near: Near,
) -> None:
    """Which is another one here: items of a category are not alike."""
    truth, coarse, found = near
    error = np.array([one.estimate for one in found["true", "marginal"]])
    assert abs(error.mean() - truth) > 5 * error.std() / LOGS**0.5
    assert coarse < truth


def test_the_exact_model_makes_the_direct_method_exact(tiny: ModuleType) -> None:
    world = tiny.Tiny.open()
    for temperature in tiny.TEMPERATURES.values():
        policy = world.policy(temperature)
        exact = world.mdp.value_of(tiny.torch.as_tensor(policy), 0.9)
        log = world.log(300, 5)
        steps: Trajectories = world.steps(log, policy, policy, (exact.q.numpy(), exact.values.numpy()))
        assert value("direct", steps, 0.9) == pytest.approx(exact.value)


def test_verdicts_follow_the_distance_from_the_log(tiny: ModuleType) -> None:
    world, said = tiny.Tiny.open(), {}
    log, other = world.log(2000, 1), world.log(2000, 2)
    for name, temperature in tiny.TEMPERATURES.items():
        policy = world.policy(temperature)
        model = world.fitted(other, np.ones(2000, np.int64), policy)
        steps = world.steps(log, policy, world.mdp.logging().numpy(), model)
        said[name] = assess("self_normalised", steps, resamples=200).verdict
    assert (said["near"], said["farthest"]) == ("trust", "do not trust")
