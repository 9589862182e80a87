"""Intervals that may be looked at after every session: their coverage over all looks, and their terms by hand."""

import math

import numpy as np
import pytest

from offrec.estimation.ab_test import has_enough_sessions
from offrec.estimation.confidence_sequence import asymptotic_confidence_sequence, boundary, difference_terms

EXPERIMENTS, SESSIONS, FIRST = 400, 4000, 400
ALPHA = 0.1


def rewards(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Skewed rewards of sessions: mostly nothing, sometimes clicks, rarely purchases of several items."""
    clicks = 0.2 * random.poisson(0.5, shape)
    bought = (random.random(shape) < 0.06) * (1 + random.poisson(0.5, shape))
    return clicks + bought


def share_missed(mean: np.ndarray, radius: np.ndarray, truth: float) -> float:
    """The share of experiments in which some interval from FIRST on misses the true value."""
    missed = np.abs(mean - truth)[:, FIRST - 1 :] > radius[:, FIRST - 1 :]
    return float(missed.any(1).mean())


def test_looking_after_every_session_misses_the_difference_no_more_often_than_promised() -> None:
    random = np.random.default_rng(0)
    treated = (random.random((EXPERIMENTS, SESSIONS)) < 0.3).astype(np.int64)
    outcome = rewards(random, treated.shape) + 0.1 * treated
    terms = difference_terms(outcome, treated, np.full(outcome.shape, 0.3))
    sequence = asymptotic_confidence_sequence(terms, ALPHA, SESSIONS)
    assert share_missed(sequence.mean, sequence.radius, 0.1) <= ALPHA + 3 * math.sqrt(ALPHA / EXPERIMENTS)
    # An interval for one look, with the same standard deviation, misses far more often: the test can fail.
    count = np.arange(1, SESSIONS + 1)
    deviation = sequence.radius / boundary(count.astype(float), ALPHA, SESSIONS)
    assert share_missed(sequence.mean, 1.645 * deviation / np.sqrt(count), 0.1) > 3 * ALPHA


def test_intervals_begin_late_enough_for_rare_and_large_rewards() -> None:
    """3 % of the sessions buy, and 10 % are treated; after the first hundred sessions of each, too many miss."""
    random = np.random.default_rng(3)
    treated = (random.random((100, 25_000)) < 0.1).astype(np.int64)
    outcome = np.where(random.random(treated.shape) < 0.03, random.lognormal(0.0, 0.7, treated.shape), 0.0)
    sequence = asymptotic_confidence_sequence(
        difference_terms(outcome, treated, np.full(outcome.shape, 0.1)), 0.05, 10_000.0
    )
    is_missed = np.abs(sequence.mean) > sequence.radius
    early = (np.cumsum(treated, 1) >= 100) & (np.cumsum(1 - treated, 1) >= 100)
    assert (is_missed & early).any(1).mean() > 0.08
    enough = has_enough_sessions(outcome, treated)
    assert enough[:, -1].mean() > 0.9
    assert (is_missed & enough).any(1).mean() <= 0.05


def test_looking_after_every_session_misses_a_mean_no_more_often_than_promised() -> None:
    outcome = rewards(np.random.default_rng(1), (EXPERIMENTS, SESSIONS))
    sequence = asymptotic_confidence_sequence(outcome, ALPHA, SESSIONS)
    truth = 0.1 + 0.06 * 1.5
    assert share_missed(sequence.mean, sequence.radius, truth) <= ALPHA + 3 * math.sqrt(ALPHA / EXPERIMENTS)


def test_the_boundary_solves_the_equation_of_the_normal_mixture() -> None:
    """At the boundary, M_t of the module's docstring is 1 / α."""
    alpha, planned = 0.05, 1000.0
    rho_squared = (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha))) / planned
    for count in (1, 10, 1000, 100_000):
        total = count * float(boundary(np.array([float(count)]), alpha, planned)[0])
        grown = count * rho_squared + 1
        mixture = math.exp(rho_squared * total**2 / (2 * grown)) / math.sqrt(grown)
        assert mixture == pytest.approx(1 / alpha)


def test_the_boundary_is_narrowest_near_the_planned_size() -> None:
    count = np.array([1000.0])
    own = boundary(count, 0.05, 1000.0)
    assert all(own <= boundary(count, 0.05, other) for other in (100.0, 300.0, 3000.0, 10_000.0))


def test_the_terms_of_the_difference_by_hand() -> None:
    terms = difference_terms(np.array([1.0, 4.0, 3.0]), np.array([1, 0, 1]), np.full(3, 0.5))
    # m1: 0, 1, 1; m0: 0, 0, 4
    assert terms.tolist() == [1 / 0.5, 1 - 4 / 0.5, (1 - 4) + (3 - 1) / 0.5]


def test_the_terms_have_the_difference_as_their_mean_for_any_share() -> None:
    random = np.random.default_rng(2)
    share = np.where(np.arange(200_000) < 100_000, 0.1, 0.5)
    treated = (random.random(200_000) < share).astype(np.int64)
    outcome = random.normal(2.0 + 0.5 * treated, 1.0)
    assert difference_terms(outcome, treated, share).mean() == pytest.approx(0.5, abs=0.03)
