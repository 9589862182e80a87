"""Calibration of a policy's probabilities on events it was not fitted to: likelihood, calibration error, temperature.

The catalogue is streamed. Only the probabilities of the logged item and of the likeliest item of each event are used.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.catalogue import Head, log_prob, maximum, reduce
from offrec.data.replay import Replay
from offrec.types import Batch, Longs

Policy = Callable[[Batch], Head]
HeadSample = tuple[Head, Tensor]  # a head and the logged items [B]

BINS = 15
SAMPLE_EVENTS = 4096  # enough to fit the temperature, a single number
MIN_TEMPERATURE, MAX_TEMPERATURE, BISECTIONS = 1 / 20, 20.0, 14  # a relative precision of 1 / 5,000


@dataclass(frozen=True)
class EventProbabilities:
    """A policy's probabilities at N events."""

    event: Longs  # [N] number of the event in the log
    log_p: NDArray[np.float32]  # [N] log π of the logged item
    confidence: NDArray[np.float32]  # [N] π of the likeliest item
    hit: NDArray[np.bool_]  # [N] whether the likeliest item was logged


@torch.no_grad()
def event_probabilities(policy: Policy, replay: Replay, batch_size: int = 1024) -> EventProbabilities:
    """Compute the probabilities at every event of a replay."""
    columns = [_batch_probabilities(policy(batch), batch) for batch in replay.batches(batch_size)]
    event, log_p, top, hit = (torch.cat(column).cpu().numpy() for column in zip(*columns, strict=True))
    return EventProbabilities(event, log_p.astype(np.float32), np.exp(top).astype(np.float32), hit)


def _batch_probabilities(head: Head, batch: Batch) -> tuple[Tensor, ...]:
    item = maximum(head)[1]
    log_p = log_prob(head, torch.stack([batch.action, item], 1))
    return batch.event, log_p[:, 0], log_p[:, 1], item == batch.action


@torch.no_grad()
def mean_log_likelihood(policy: Policy, replay: Replay, batch_size: int = 1024) -> float:
    """Return the mean log π of the logged items."""
    sums = [log_prob(policy(b), b.action[:, None]).sum(dtype=torch.float32) for b in replay.batches(batch_size)]
    return float(sum(torch.stack(sums).tolist())) / len(replay.items)


def concatenate(parts: Sequence[EventProbabilities]) -> EventProbabilities:
    """Join the probabilities of several replays."""
    names = EventProbabilities.__dataclass_fields__
    return EventProbabilities(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def summarise(probabilities: EventProbabilities, samples: Sequence[HeadSample]) -> dict[str, float]:
    """Return the calibration metrics of a policy; `samples` are used to fit the temperature."""
    return summarise_at(probabilities, best_temperature(samples))


def summarise_at(probabilities: EventProbabilities, temperature: float) -> dict[str, float]:
    """Return the calibration metrics of a policy whose temperature is known."""
    mean = float(probabilities.log_p.mean(dtype=np.float64))
    return {
        "events": len(probabilities.event),
        "log_likelihood": mean,
        "perplexity": float(np.exp(-mean)),
        "calibration_error": calibration_error(probabilities.confidence, probabilities.hit),
        "temperature": temperature,
    }


def calibration_error(confidence: NDArray[np.floating], hit: NDArray[np.bool_], bins: int = BINS) -> float:
    """Return the mean difference between the likeliest item's probability and how often it was logged.

    Events are sorted by probability and divided into bins of equal size.
    """
    order = np.argsort(confidence, kind="stable")
    groups = [group for group in np.array_split(order, bins) if len(group)]
    gaps = [abs(confidence[group].mean(dtype=np.float64) - hit[group].mean()) * len(group) for group in groups]
    return float(sum(gaps) / len(confidence))


@torch.no_grad()
def sample_heads(
    policy: Policy, replay: Replay, seed: int, events: int = SAMPLE_EVENTS, batch_size: int = 1024
) -> list[HeadSample]:
    """Compute the policy's heads at about `events` events of randomly chosen segments."""
    order = np.random.default_rng(seed).permutation(len(replay.segments))
    total = np.cumsum(replay.rows[order])
    order = order[: int(np.searchsorted(total, events)) + 1]
    order = order[np.argsort(replay.lengths[order], kind="stable")]
    cuts = np.flatnonzero(np.diff(np.cumsum(replay.rows[order]) // batch_size)) + 1
    batches = [replay.batch(index) for index in np.split(order, cuts)]
    return [(policy(batch), batch.action) for batch in batches]


def best_temperature(samples: Sequence[HeadSample]) -> float:
    """Return the T of softmax(z / T) that maximises the likelihood of the logged items.

    T is above 1 for an overconfident policy.

    The log-likelihood is concave in 1/T, so its slope z(a) − E[z] decreases and bisection finds its zero.
    """
    low, high = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _slope(samples, math.exp(-middle)) > 0:
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


@torch.no_grad()
def _slope(samples: Sequence[HeadSample], inverse: float) -> float:
    """Return the derivative d/d(1/T) of the mean log-likelihood at `inverse` = 1/T."""
    total, rows = 0.0, 0
    for head, action in samples:
        scaled = head.scale(inverse)
        mean = reduce(scaled, [(1 / inverse, scaled)]).mean
        total += float((head.at(action[:, None])[:, 0] - mean).sum(dtype=torch.float32))
        rows += len(action)
    return total / rows
