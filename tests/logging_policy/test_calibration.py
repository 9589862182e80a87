"""Calibration metrics by hand, and compared with the full catalogue."""

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
    # two bins: |.2 − .5| and |.9 − .5|, two events each; one bin: |.55 − .5|
    assert calibration.calibration_error(confidence, hit, bins=2) == pytest.approx(0.35)
    assert calibration.calibration_error(confidence, hit, bins=1) == pytest.approx(0.05)


def test_bins_of_the_calibration_error_count_by_their_events() -> None:
    confidence, hit = np.array([0.1, 0.4, 0.7]), np.array([False, False, True])
    # two bins of 2 and 1 events: (2 · |.25 − 0| + |.7 − 1|) / 3
    assert calibration.calibration_error(confidence, hit, bins=2) == pytest.approx(0.8 / 3)
    assert calibration.calibration_error(confidence, hit, bins=50) == pytest.approx((0.1 + 0.4 + 0.3) / 3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_by_hand(temperature: float) -> None:
    """Item 1 was logged three times in four, so its odds should be 3: logits of T · log 3 need the temperature T."""
    samples = heads([0.0, temperature * math.log(3)], [1, 0, 1, 1])
    assert calibration.best_temperature(samples) == pytest.approx(temperature, rel=3e-4)


def test_all_rows_of_several_networks_count_equally_in_the_temperature() -> None:
    parts = [*heads([0.0, 2 * math.log(3)], [1, 1]), *heads([0.0, 2 * math.log(3)], [0]), *heads([0.0, 2.1972246], [1])]
    assert calibration.best_temperature(parts) == pytest.approx(2.0, rel=3e-4)


def test_the_temperature_is_bounded() -> None:
    """A policy that is always right gets a low temperature, one that is always wrong the highest."""
    assert calibration.MIN_TEMPERATURE < calibration.best_temperature(heads([0.0, 1.0], [1, 1])) < 0.07
    assert calibration.best_temperature(heads([0.0, 1.0], [0, 0])) == pytest.approx(
        calibration.MAX_TEMPERATURE, rel=3e-4
    )


@pytest.fixture
def replay(tmp_path: Any, make_dataset: Any) -> Replay:
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 6, random.integers(1, 9)).tolist() for _ in range(30)]
    dataset = make_dataset(tmp_path, sessions, splits=(5, 20, 5), items=6)
    part = dataset.split("validation")
    return Replay(part, transitions(part, None, 0.0), 6, 4, "exact", torch.device("cpu"))


def by_count(batch: Any) -> Head:
    """A policy that depends only on the length of the history."""
    state = batch.position[:, None].float()
    return Head(state, torch.linspace(-1, 1, 6)[:, None], torch.tensor([0.3, 0.0, -0.2, 0.1, 0.0, 0.4]))


def test_event_probabilities_equal_those_of_the_full_catalogue(replay: Replay) -> None:
    probabilities = calibration.event_probabilities(by_count, replay, batch_size=7)
    assert sorted(probabilities.event.tolist()) == list(
        range(replay.first_event, replay.first_event + len(replay.items))
    )
    for batch in replay.batches(1000):
        log_p = (by_count(batch).at(torch.arange(6).expand(len(batch), -1))).log_softmax(1)
        order = np.argsort(probabilities.event)
        batch_order = np.argsort(batch.event.numpy())
        logged = log_p.gather(1, batch.action[:, None])[:, 0].numpy()
        np.testing.assert_allclose(probabilities.log_p[order], logged[batch_order], rtol=1e-5)
        np.testing.assert_allclose(probabilities.confidence[order], log_p.amax(1).exp().numpy()[batch_order], rtol=1e-5)
        assert (probabilities.hit[order] == (log_p.argmax(1) == batch.action).numpy()[batch_order]).all()
    assert calibration.mean_log_likelihood(by_count, replay, 7) == pytest.approx(probabilities.log_p.mean(), rel=1e-5)


def test_the_summary_is_consistent(replay: Replay) -> None:
    probabilities = calibration.event_probabilities(by_count, replay)
    summary = calibration.summarise(probabilities, calibration.sample_heads(by_count, replay, seed=0))
    assert summary["events"] == len(replay.items)
    assert summary["perplexity"] == pytest.approx(math.exp(-summary["log_likelihood"]))
    assert summary["calibration_error"] == calibration.calibration_error(probabilities.confidence, probabilities.hit)


def test_sampled_heads_cover_the_requested_number_of_events_once(replay: Replay) -> None:
    for spec in (1, 20, 10_000):
        samples = calibration.sample_heads(by_count, replay, seed=1, events=spec, batch_size=8)
        rows = sum(len(action) for _, action in samples)
        assert min(spec, len(replay.items)) <= rows <= min(spec + 8, len(replay.items))
    assert sum(len(action) for _, action in samples) == len(replay.items)
