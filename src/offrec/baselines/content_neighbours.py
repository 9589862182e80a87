"""Rank items by the similarity of their features to those of the history. Items need no events."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from offrec.baselines.record import BaselineRecord
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.data.item_properties import ItemProperties
from offrec.errors import InputError
from offrec.models.item_features import standardise
from offrec.policy import Policy
from offrec.types import Batch

DECAY = 0.7  # weight of an item of the history, relative to the item after it
TIE = 1e-6  # the weight of popularity, which orders items with equal scores
BUCKETS = 512  # categories beyond this number share a bucket


class ContentNeighbours(Policy):
    """Rank items by the similarity of their features to those of the history.

        score(a) = Σ_j DECAY^j cos(f(a), f(item j steps back))

    f(a) joins categories (one-hot), standardised numbers and embeddings. Each column has the same weight. Ties are
    broken by popularity.

    Args:
        dataset: The dataset; it must have item features.
        history: The longest history that the policy reads.
        device: The device that scores are computed on.

    Raises:
        InputError: If the items have no features.
    """

    name = "content-neighbours"

    def __init__(self, dataset: Dataset, history: int, device: torch.device) -> None:
        super().__init__(dataset.vocabulary, history, device, dataset.meta["data_hash"])
        self.source_shop = dataset.meta.get("shop")
        properties = dataset.item_properties
        if properties is None or not properties.has_features:
            raise InputError(
                f"{dataset.path} has no item features, which content-neighbours compares; prepare it with --items."
            )
        self.table = content_vectors(properties).to(device)
        share = dataset.train_counts / max(1, int(dataset.train_counts.sum()))
        self.bias = torch.tensor(TIE * share, dtype=torch.float32, device=device)

    def head(self, batch: Batch) -> Head:
        recent = batch.recent[:, : self.history]
        weight = DECAY ** torch.arange(recent.shape[1], device=recent.device) * (recent < self.n_items)
        rows = self.table[recent.clamp(max=self.n_items - 1)]
        return Head(torch.einsum("bh,bhd->bd", weight, rows), self.table, self.bias)


def content_vectors(properties: ItemProperties) -> Tensor:
    """Return a unit vector per item, [A, f]; 0 for items without features."""
    parts = [_bucket(properties.codes[:, column]) for column in range(properties.codes.shape[1])]
    if properties.number_names:
        parts.append(_unit_block(properties.numbers))
    edges = np.cumsum([0, *(column.width for column in properties.vector_columns)])
    parts += [_unit_block(properties.vectors[:, first:last]) for first, last in pairwise(edges)]
    return normalize(torch.cat(parts, 1), dim=1)


def _bucket(codes: np.ndarray) -> Tensor:
    """Return the one-hot vectors of categories; 0 for unknown ones."""
    bucket = torch.from_numpy(np.where(codes > 0, 1 + (codes - 1) % BUCKETS, 0)).long()
    return one_hot(bucket, int(bucket.max()) + 1)[:, 1:].float()


def _unit_block(columns: np.ndarray) -> Tensor:
    """Return standardised columns, scaled so that a typical item has length 1."""
    block: Tensor = torch.from_numpy(standardise(columns)) / columns.shape[1] ** 0.5
    return block


RECORD = BaselineRecord(
    name=ContentNeighbours.name,
    label="Items with similar features",
    short_label="content",
    build=ContentNeighbours,
    help="Rank items by the similarity of their features to those of the history.",
    needs_features=True,
)
