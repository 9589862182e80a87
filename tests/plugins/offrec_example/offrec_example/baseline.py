"""A baseline that ranks items by their number, smallest first."""

import torch

import offrec
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.types import Batch


class ByNumber(offrec.Policy):
    name = "by-number"

    def __init__(self, dataset: Dataset, history: int, device: torch.device) -> None:
        super().__init__(dataset.vocabulary, history, device, dataset.meta["data_hash"])

    def head(self, batch: Batch) -> Head:
        """Scores of all items: state [B, 0] · table [A, 0] + bias [A]."""
        bias = -torch.arange(self.n_items, dtype=torch.double, device=self.device)
        empty = torch.zeros(max(len(batch), self.n_items), 0, dtype=torch.double, device=self.device)
        return Head(empty[: len(batch)], empty[: self.n_items], bias)


offrec.register_baseline(
    offrec.BaselineRecord("by-number", "Items by number", ByNumber, "The items with the smallest numbers.", "By number")
)
