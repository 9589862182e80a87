"""Features of items as an input of item tables: row = free vector + linear map of the item's features.

    row(a) = seen(a) · free(a) + Σ_c E_c[category_c(a)] + W · standardised numbers and embeddings of a

The effective table is computed once per update, so no pass over the catalogue knows about features. An item that never
occurs in training has no free vector: its row is the map of its features. During training, the free vectors of a random
share of the items are dropped in each update (as in DropoutNet, Volkovs et al. 2017), so that the map alone gives good
scores.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from offrec.catalogue.shard import Shard, random_rows
from offrec.data.dataset import Dataset
from offrec.data.item_properties import Floats, ItemProperties

UNSEEN_LOGIT = -1e4  # added to the logits of items that never occur in training, while a policy is trained


class ItemFeatures(nn.Module):
    """The features of all items, and of a start token that has none. All networks of a run share one object.

    Args:
        properties: The properties of the items.
        seen: [A] whether each item occurs in the training sessions.
        shard: The range of items that this process stores; None: all.
    """

    codes: Tensor  # [A + 1, C] rows of a table with the categories of all columns; 0: unknown
    dense: Tensor  # [A + 1, f] standardised numbers and embeddings; 0: unknown
    seen: Tensor  # [A + 1]
    start: Tensor  # [1] index of the start token

    def __init__(self, properties: ItemProperties, seen: Any, shard: Shard | None = None) -> None:
        super().__init__()
        self.shard, part = shard, slice(None) if shard is None else shard.rows()
        counts = [len(column.values) for column in properties.categories]
        offsets = np.cumsum([0, *counts[:-1]], dtype=np.int32) if counts else np.zeros(0, np.int32)
        own_codes = properties.codes[part]
        codes = np.where(own_codes > 0, own_codes + offsets, 0)
        dense = standardise(_dense_columns(properties)[part], feature_scaling(properties))
        self.categories = 1 + sum(counts)  # 1: unknown
        self.register_buffer("codes", torch.from_numpy(_with_start(codes, 0)), persistent=False)
        self.register_buffer("dense", torch.from_numpy(_with_start(dense, 0.0)), persistent=False)
        self.register_buffer("start", torch.tensor([len(codes)]), persistent=False)
        self.register_buffer(
            "seen", torch.from_numpy(_with_start(np.asarray(seen, bool)[part], True)), persistent=False
        )

    @property
    def unseen(self) -> Tensor:
        """[A] 1 for items that do not occur in the training sessions, else 0."""
        return (~self.seen[:-1]).to(self.dense.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ItemFeatures":
        return self


def dataset_features(dataset: Dataset, choice: str, shard: Shard | None = None) -> ItemFeatures | None:
    """Return the features of a dataset's items, or None if it has none or `network.features` is off."""
    return make_features(dataset.item_properties, dataset.train_counts > 0, choice, shard)


def make_features(
    properties: ItemProperties | None, seen: Any, choice: str, shard: Shard | None = None
) -> ItemFeatures | None:
    """Return the features of items with these properties, or None; `seen` and `shard` as in `ItemFeatures`."""
    if choice == "off" or properties is None or not properties.has_features:
        return None
    return ItemFeatures(properties, seen, shard)


class FeatureMap(nn.Module):
    """A linear map from the features of an item to its vector and its bias.

    Args:
        features: The features of all items.
        width: The width of the vectors.
        dropout: Share of the items in each training update that have no free vector.
        value: Whether the table scores values instead of log-odds.
    """

    def __init__(self, features: ItemFeatures, width: int, dropout: float, value: bool = False) -> None:
        super().__init__()
        self.features, self.dropout, self.value = features, dropout, value
        columns, numbers = features.codes.shape[1], features.dense.shape[1]
        scale = (width * (columns + (numbers > 0))) ** -0.5
        self.categories = nn.Parameter(random_rows(features.categories, width, None, scale))
        self.dense = nn.Parameter(random_rows(numbers, width, None, scale * max(1, numbers) ** -0.5))
        self.category_bias = nn.Parameter(torch.zeros(features.categories, 1))
        self.dense_bias = nn.Parameter(torch.zeros(numbers, 1))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the vectors [A + 1, d] and biases [A + 1] of all items and of the start token."""
        features = self.features
        weights: tuple[Any, ...] = (self.dense, self.dense_bias, self.categories, self.category_bias)
        if features.shard is not None:  # each rank maps the features of its own items
            weights = features.shard.replicate(*weights)
        dense, dense_bias, categories, category_bias = weights
        vectors, bias = features.dense @ dense, features.dense @ dense_bias
        for codes in features.codes.unbind(1):
            is_known = (codes > 0)[:, None].to(vectors.dtype)
            vectors = vectors + is_known * embedding(codes, categories)
            bias = bias + is_known * embedding(codes, category_bias)
        return vectors, bias[:, 0]

    @torch.no_grad()
    def copy_scaled(self, other: "FeatureMap", factor: float) -> None:
        """Copy another map; biases are multiplied by a factor."""
        self.categories.copy_(other.categories)
        self.dense.copy_(other.dense)
        self.category_bias.copy_(factor * other.category_bias)
        self.dense_bias.copy_(factor * other.dense_bias)


def add_features(map_: FeatureMap | None, free: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return an item table and its bias: free vectors plus mapped features.

    Args:
        map_: The map of the features, or None if there are none.
        free: The free vectors: [A, d] or, with a start token, [A + 1, d].
        bias: [A] the free bias.
    """
    if map_ is None:
        return free, bias
    features, items = map_.features, len(bias)
    (vectors, mapped_bias), is_free = map_(), features.seen
    if map_.training and map_.dropout > 0:
        is_free = is_free & (_uniform(features, items, free.device) >= map_.dropout)
    mask = is_free.to(free.dtype).index_fill(0, features.start, 1.0)
    table = mask[: len(free), None] * free + vectors[: len(free)]
    bias = mask[:items] * bias + mapped_bias[:items]
    if map_.training and not map_.value:
        # Items without training events must not be learned as items that nobody picks.
        bias = bias + UNSEEN_LOGIT * (~features.seen[:items]).to(bias.dtype)
    return table, bias


def _uniform(features: ItemFeatures, items: int, device: torch.device) -> Tensor:
    """Draw a number per item and one for the start token. Each rank of several draws the same, and uses its own."""
    if features.shard is None:
        return torch.rand(items + 1, device=device)
    drawn = torch.rand(features.shard.n_items + 1, device=device)
    return torch.cat([drawn[features.shard.rows()], drawn[-1:]])


def feature_scaling(properties: ItemProperties) -> NDArray[np.float64]:
    """Return the mean and spread [2, f] that standardise the features: those of the trained weights, or of the items.

    Weights that were trained with one standardisation give other scores with another.
    """
    return measure_scaling(_dense_columns(properties)) if properties.scaling is None else properties.scaling


def measure_scaling(columns: Floats) -> NDArray[np.float64]:
    """Return the mean and the standard deviation [2, f] of the known values of columns; 0 if there are none."""
    values = np.ma.masked_invalid(columns.astype(np.float64))
    return np.stack([values.mean(0).filled(0.0), values.std(0).filled(0.0)])


def standardise(columns: Floats, scaling: NDArray[np.float64] | None = None) -> Floats:
    """Return columns with mean 0 and standard deviation 1. Unknown values become 0, the mean.

    Args:
        columns: [A, f] the columns; NaN is unknown.
        scaling: [2, f] mean and standard deviation; by default those of the columns.
    """
    mean, spread = measure_scaling(columns) if scaling is None else scaling
    standardised = (columns - mean) / np.where(spread > 0, spread, 1.0)
    clipped: Floats = np.clip(np.nan_to_num(standardised), -10, 10).astype(np.float32)
    return clipped


def _dense_columns(properties: ItemProperties) -> Floats:
    return np.concatenate([properties.numbers, properties.vectors], 1)


def _with_start(array: Any, value: Any) -> Any:
    return np.concatenate([array, np.full((1, *array.shape[1:]), value, array.dtype)])
