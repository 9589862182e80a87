"""Pieces of benchmarks/estimators_tiny_lists.py and benchmarks/selection_methods.py: by hand and by simulation."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from offrec.estimation.estimators import estimate_value
from offrec.estimation.interval import Interval

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
MODULES = ("estimators_tiny", "tiny_lists_world", "estimators_tiny_lists", "selection_methods")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, BENCHMARKS)
    yield {name: __import__(name) for name in MODULES}
    sys.path.remove(BENCHMARKS)
    for name in MODULES:
        del sys.modules[name]


def test_exact_values_are_those_of_simulated_sessions(modules: dict[str, ModuleType]) -> None:
    world = modules["estimators_tiny_lists"].ListWorld.open()
    log = world.log(4000, 5)
    earned = np.bincount(np.repeat(np.arange(4000), np.diff(log.offsets)), log.reward, minlength=4000)
    assert abs(earned.mean() - world.value(world.logging())) < 3 * earned.std() / 4000**0.5


def test_doubly_robust_forms_are_close_to_the_exact_value(modules: dict[str, ModuleType]) -> None:
    tiny = modules["estimators_tiny_lists"]
    world = tiny.ListWorld.open()
    policy, log, other = world.policy(0.5), world.log(4000, 1), world.log(4000, 2)
    steps, places = tiny.collect(world, log, policy)
    q, v = world.fitted(other, policy, 1.0)
    item_q = q[log.state[:, None], tiny.LISTS[log.shown]]
    robust = tiny.with_values(steps, item_q.mean(1), v[log.state], item_q, places)
    truth, logged = world.value(policy), world.value(world.logging())
    for name in ("pick", "marginal", "marginal_pick"):  # ratios of lists and prefixes vary too much here
        value = estimate_value(f"{name}_doubly_robust", robust)
        assert abs(value - truth) < abs(logged - truth) / 3, name


def test_bvft_prefers_the_candidate_that_equals_its_target(modules: dict[str, ModuleType]) -> None:
    """Two groups with the targets 0 and 1: the exact candidate has loss 0, the constant one √(mean (.5 − target)²)."""
    exact, constant = np.array([0.0, 0.0, 1.0, 1.0]), np.full(4, 0.5)
    losses = modules["selection_methods"].bvft_losses([exact, constant], [exact, exact], bins=2)
    assert losses.tolist() == pytest.approx([0.0, 0.5])


def test_slope_stops_before_the_first_interval_apart_from_the_others(modules: dict[str, ModuleType]) -> None:
    choice = modules["selection_methods"].slope_choice
    wide, narrow, apart = Interval(1, 0, 2, 0.5), Interval(1.5, 1.2, 1.8, 0.2), Interval(2.5, 2.4, 2.6, 0.1)
    assert choice([wide, narrow, apart]) == 1
    assert choice([wide, narrow]) == 1
    assert choice([apart, narrow]) == 0
