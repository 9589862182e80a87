"""Exposure: which items the lists of a policy show, over a sample of events."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offrec.types import Longs

LIST_LENGTH = 10
RARE_EVENTS = 0.05  # rare items are the items with the fewest training events that share at most 5 % of all events


@dataclass(frozen=True)
class Exposure:
    """What the lists contain. All figures are compared with those of the training events.

    Attributes:
        lists: The number of lists.
        items: The number of different items in all lists.
        effective_items: exp(entropy) of the items' shares in the lists. Equal lists of ten items have 10.
        rare_share: The share of the lists' items that are rare in the log.
        log_effective_items: exp(entropy) of the items' shares in the training events.
        log_rare_share: The share of training events with rare items.
        rare_below: Items with fewer training events than this are rare.
    """

    lists: int
    items: int
    effective_items: float
    rare_share: float
    log_effective_items: float
    log_rare_share: float
    rare_below: int

    def as_json(self) -> dict[str, float]:
        """Return the figures of the lists, as stored for each epoch."""
        return {"items": self.items, "effective_items": self.effective_items, "rare_share": self.rare_share}


class ExposureCounter:
    """Counts items in lists, on the device of the policy.

    Args:
        train_counts: [A] how often each item occurs in training.
        device: Device of the lists.
    """

    def __init__(self, train_counts: Longs, device: torch.device) -> None:
        self.rare_below = rare_threshold(train_counts)
        self.rare = torch.from_numpy(np.asarray(train_counts) < self.rare_below).to(device)
        self.log_effective = effective_number(torch.from_numpy(np.asarray(train_counts)))
        self.log_rare_share = float(train_counts[train_counts < self.rare_below].sum() / max(1, train_counts.sum()))
        self.counts = torch.zeros(len(train_counts), dtype=torch.double, device=device)
        self.lists = 0

    def add(self, values: Tensor, items: Tensor) -> None:
        """Count the items [B, k] of B lists. A NaN value recommends nothing."""
        shown = (~values.isnan()).to(self.counts.dtype)
        self.counts.index_put_((items.flatten(),), shown.flatten(), accumulate=True)
        self.lists += len(items)

    def figures(self) -> Exposure:
        """Return the figures of all lists so far."""
        total = float(self.counts.sum())
        return Exposure(
            lists=self.lists,
            items=int((self.counts > 0).sum()),
            effective_items=effective_number(self.counts),
            rare_share=float(self.counts[self.rare].sum()) / max(1.0, total),
            log_effective_items=self.log_effective,
            log_rare_share=self.log_rare_share,
            rare_below=self.rare_below,
        )


def rare_threshold(train_counts: Longs) -> int:
    """Return the largest n such that items with fewer than n events share at most `RARE_EVENTS` of all events."""
    counts = np.sort(np.asarray(train_counts))
    within = np.cumsum(counts) <= RARE_EVENTS * counts.sum()
    return int(counts[int(within.sum())]) if not within.all() else 0


def effective_number(counts: Tensor) -> float:
    """Return exp(entropy) of the shares: n for n equal counts, 0 without counts."""
    shares = counts.double()[counts > 0]
    if not len(shares):
        return 0.0
    shares = shares / shares.sum()
    return float((-(shares * shares.log()).sum()).exp())
