"""Does a policy mean its probabilities? Likelihood, calibration error and temperature on events it was not fitted to.

Streamed over the catalogue: of each event only the logged item's and the likeliest item's probability are looked at.
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
HeadSample = tuple[Head, Tensor]  # a head, and the logged items [B]

BINS = 15
SAMPLE_EVENTS = 4096  # events that the temperature is fitted on: it is one number
COLDEST, HOTTEST, HALVINGS = 1 / 20, 20.0, 14  # to within 1 in 5,000


@dataclass(frozen=True)
class EventProbabilities:
    """Events and what a policy made of them."""

    event: Longs  # [N] where the event stands in the log
    log_p: NDArray[np.float32]  # [N] log π of the logged item
    confidence: NDArray[np.float32]  # [N] π of the likeliest item
    hit: NDArray[np.bool_]  # [N] was that the logged one?


@torch.no_grad()
def event_probabilities(policy: Policy, replay: Replay, batch_size: int = 1024) -> EventProbabilities:
    """Every event of the replay."""
    found = [_judge(policy(batch), batch) for batch in replay.batches(batch_size)]
    event, log_p, top, hit = (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))
    return EventProbabilities(event, log_p.astype(np.float32), np.exp(top).astype(np.float32), hit)


def _judge(head: Head, batch: Batch) -> tuple[Tensor, ...]:
    item = maximum(head)[1]
    log_p = log_prob(head, torch.stack([batch.action, item], 1))
    return batch.event, log_p[:, 0], log_p[:, 1], item == batch.action


@torch.no_grad()
def mean_log_likelihood(policy: Policy, replay: Replay, batch_size: int = 1024) -> float:
    sums = [log_prob(policy(b), b.action[:, None]).sum(dtype=torch.float32) for b in replay.batches(batch_size)]
    return float(sum(torch.stack(sums).tolist())) / len(replay.items)


def concatenate(parts: Sequence[EventProbabilities]) -> EventProbabilities:
    return EventProbabilities(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in EventProbabilities.__dataclass_fields__)
    )


def summarise(judgement: EventProbabilities, spots: Sequence[HeadSample]) -> dict[str, float]:
    mean = float(judgement.log_p.mean(dtype=np.float64))
    return {
        "events": len(judgement.event),
        "log_likelihood": mean,
        "perplexity": float(np.exp(-mean)),
        "calibration_error": calibration_error(judgement.confidence, judgement.hit),
        "temperature": best_temperature(spots),
    }


def calibration_error(confidence: NDArray[np.floating], hit: NDArray[np.bool_], bins: int = BINS) -> float:
    """How far, on average, the likeliest item's probability is from how often it was the logged one; in bins of equal
    numbers of events, by probability.
    """
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    gaps = [abs(confidence[part].mean(dtype=np.float64) - hit[part].mean()) * len(part) for part in parts]
    return float(sum(gaps) / len(confidence))


@torch.no_grad()
def sample_heads(
    policy: Policy, replay: Replay, seed: int, events: int = SAMPLE_EVENTS, batch_size: int = 1024
) -> list[HeadSample]:
    """Heads at about `events` events, of pieces drawn at random."""
    order = np.random.default_rng(seed).permutation(len(replay.segments))
    until = np.cumsum(replay.rows[order])
    order = order[: int(np.searchsorted(until, events)) + 1]
    order = order[np.argsort(replay.lengths[order], kind="stable")]
    cuts = np.flatnonzero(np.diff(np.cumsum(replay.rows[order]) // batch_size)) + 1
    batches = [replay.batch(index) for index in np.split(order, cuts)]
    return [(policy(batch), batch.action) for batch in batches]


def best_temperature(spots: Sequence[HeadSample]) -> float:
    """T of softmax(z / T) at which the logged items are likeliest: 1 where the policy is as sure as it should be, above
    1 where it is too sure.

    The log-likelihood is concave in 1/T, so its slope z(a) − E[z] falls, and halving finds where it is 0.
    """
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _slope(spots, math.exp(-middle)) > 0:
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


@torch.no_grad()
def _slope(spots: Sequence[HeadSample], inverse: float) -> float:
    """d/d(1/T) of the mean log-likelihood."""
    total, rows = 0.0, 0
    for head, action in spots:
        sharp = head.scale(inverse)
        mean = reduce(sharp, [(1 / inverse, sharp)]).mean
        total += float((head.at(action[:, None])[:, 0] - mean).sum(dtype=torch.float32))
        rows += len(action)
    return total / rows
