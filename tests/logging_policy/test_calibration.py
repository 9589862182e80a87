"""Calibration in numbers worked by hand, and against the catalogue written out."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from offrec.catalogue import Head
from offrec.data.replay import Replay
from offrec.data.transitions import transitions
from offrec.logging_policy import calibration


def heads(logits: list[float], actions: list[int]) -> list[calibration.HeadSample]:
    rows = len(actions)
    head = Head(torch.zeros(rows, 1), torch.zeros(len(logits), 1), torch.tensor(logits))
    return [(head, torch.tensor(actions))]


def test_calibration_error_by_hand() -> None:
    confidence = np.array([0.9, 0.2, 0.9, 0.2])
    hit = np.array([True, False, False, True])
    # in two bins: |.2 − .5| and |.9 − .5|, two events each; in one: |.55 − .5|
    assert calibration.calibration_error(confidence, hit, bins=2) == pytest.approx(0.35)
    assert calibration.calibration_error(confidence, hit, bins=1) == pytest.approx(0.05)


def test_calibration_error_counts_bins_by_their_events() -> None:
    confidence, hit = np.array([0.1, 0.4, 0.7]), np.array([False, False, True])
    # two bins of 2 and 1 events: (2 · |.25 − 0| + |.7 − 1|) / 3
    assert calibration.calibration_error(confidence, hit, bins=2) == pytest.approx(0.8 / 3)
    assert calibration.calibration_error(confidence, hit, bins=50) == pytest.approx((0.1 + 0.4 + 0.3) / 3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_by_hand(temperature: float) -> None:
    """Item 1 was logged three times in four, so its odds ought to be 3: logits T · log 3 want the temperature T."""
    spots = heads([0.0, temperature * math.log(3)], [1, 0, 1, 1])
    assert calibration.best_temperature(spots) == pytest.approx(temperature, rel=3e-4)


def test_temperature_of_heads_of_different_networks() -> None:
    """Rows count alike, whichever network they belong to."""
    parts = [*heads([0.0, 2 * math.log(3)], [1, 1]), *heads([0.0, 2 * math.log(3)], [0]), *heads([0.0, 2.1972246], [1])]
    assert calibration.best_temperature(parts) == pytest.approx(2.0, rel=3e-4)


def test_temperature_has_bounds() -> None:
    """Always right or always wrong: as cold or as hot as can be (as sure as a float32 can be comes before)."""
    assert calibration.COLDEST < calibration.best_temperature(heads([0.0, 1.0], [1, 1])) < 0.07
    assert calibration.best_temperature(heads([0.0, 1.0], [0, 0])) == pytest.approx(calibration.HOTTEST, rel=3e-4)


@pytest.fixture
def replay(tmp_path: Any, make_dataset: Any) -> Replay:
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 6, random.integers(1, 9)).tolist() for _ in range(30)]
    dataset = make_dataset(tmp_path, sessions, splits=(5, 20, 5), items=6)
    part = dataset.split("validation")
    return Replay(part, transitions(part, np.zeros(1, dtype=np.float32), 0.0), 6, 4, "exact", torch.device("cpu"))


def by_count(batch: Any) -> Head:
    """A policy that depends on the history's length alone."""
    state = batch.position[:, None].float()
    return Head(state, torch.linspace(-1, 1, 6)[:, None], torch.tensor([0.3, 0.0, -0.2, 0.1, 0.0, 0.4]))


def test_judged_is_the_catalogue_written_out(replay: Replay) -> None:
    found = calibration.event_probabilities(by_count, replay, batch_size=7)
    assert sorted(found.event.tolist()) == list(range(replay.first_event, replay.first_event + len(replay.items)))
    for batch in replay.batches(1000):
        chances = (by_count(batch).at(torch.arange(6).expand(len(batch), -1))).log_softmax(1)
        order = np.argsort(found.event)
        mine = np.argsort(batch.event.numpy())
        logged = chances.gather(1, batch.action[:, None])[:, 0].numpy()
        np.testing.assert_allclose(found.log_p[order], logged[mine], rtol=1e-5)
        np.testing.assert_allclose(found.confidence[order], chances.amax(1).exp().numpy()[mine], rtol=1e-5)
        assert (found.hit[order] == (chances.argmax(1) == batch.action).numpy()[mine]).all()
    assert calibration.mean_log_likelihood(by_count, replay, 7) == pytest.approx(found.log_p.mean(), rel=1e-5)


def test_figures(replay: Replay) -> None:
    found = calibration.event_probabilities(by_count, replay)
    figures = calibration.summarise(found, calibration.sample_heads(by_count, replay, seed=0))
    assert figures["events"] == len(replay.items)
    assert figures["perplexity"] == pytest.approx(math.exp(-figures["log_likelihood"]))
    assert figures["calibration_error"] == calibration.calibration_error(found.confidence, found.hit)


def test_spots_are_enough_events_and_each_once(replay: Replay) -> None:
    for spec in (1, 20, 10_000):
        spots = calibration.sample_heads(by_count, replay, seed=1, events=spec, batch_size=8)
        rows = sum(len(action) for _, action in spots)
        assert min(spec, len(replay.items)) <= rows <= min(spec + 8, len(replay.items))
    assert sum(len(action) for _, action in spots) == len(replay.items)
