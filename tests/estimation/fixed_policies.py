"""Policies with fixed probabilities."""

from typing import Any

import torch

from offrec.catalogue import Head
from offrec.policy import Policy
from offrec.types import Batch


class Fixed(Policy):
    """The same logits after every history, except for a bonus on the last item."""

    name = "fixed"
    stochastic = True

    def __init__(self, dataset: Any, logits: list[float], again: float = 0.0) -> None:
        super().__init__(dataset.vocabulary, 5, torch.device("cpu"), dataset.meta["data_hash"])
        self.logits, self.again = torch.tensor(logits), again

    def head(self, batch: Batch) -> Head:
        nothing = self.logits.new_zeros(len(batch), 0)
        bonus = torch.full((len(batch), 1), self.again)
        return Head(nothing, self.logits.new_zeros(len(self.logits), 0), self.logits, batch.recent[:, :1], bonus)
