"""Clusters of items for marginal weights in logs of served lists: a category of the catalogue, or learned from the log.

A dataset with a table of items (`offrec prepare --items`) has the clusters of its column `category`, or else of its
first category column; items without a value form one cluster.

Otherwise the clusters come from the picks of the training sessions. Two items count as a pair each time that at most
`WINDOW` picks lie from one to the other in a session. The vector of an item is its row of the leading eigenvectors of
the positive pointwise mutual information max(0, log(n_ij n / (n_i n_j))), scaled to length 1, and k-means divides the
vectors into clusters. Items that were never picked form a cluster together. No decision that is weighted is used if the
estimate uses the test sessions; with all sessions the clusters depend on a part of the log, but not on its rewards.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from offrec.data.dataset import Dataset
from offrec.estimation.marginal import CLUSTERS, cluster_items
from offrec.types import Doubles, Sessions

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # imported where it is used, because other estimates work without scipy

CATEGORY = "category"
WINDOW, DIMENSIONS = 5, 16
MAX_DENSE = 1500  # items of which all eigenvectors are computed


@dataclass(frozen=True)
class ItemClusters:
    """The cluster of each item."""

    cluster: Tensor  # [A]
    source: str  # where the clusters come from, as a sentence


def item_clusters(dataset: Dataset, count: int = CLUSTERS) -> ItemClusters:
    """Return the clusters of a dataset's items: its categories if it has some, else learned from its sessions.

    Args:
        dataset: The log.
        count: The number of learned clusters, fewer if the catalogue is small.
    """
    properties = dataset.item_properties
    if properties is not None and properties.categories:
        names = [column.name for column in properties.categories]
        column = names.index(CATEGORY) if CATEGORY in names else 0
        cluster = torch.from_numpy(np.unique(properties.codes[:, column], return_inverse=True)[1])
        return ItemClusters(cluster, f"Item clusters: the column {names[column]} of the items.")
    vectors = item_vectors(dataset.split("train"), dataset.n_items)
    cluster = cluster_items(torch.from_numpy(vectors).float(), min(count, dataset.n_items))
    return ItemClusters(
        cluster, f"Item clusters: {len(np.unique(cluster.numpy()))}, learned from the training sessions."
    )


def item_vectors(sessions: Sessions, n_items: int) -> Doubles:
    """[A, d] vectors of items: eigenvectors of the positive pointwise mutual information of picks in a session."""
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import eigsh

    items = np.asarray(sessions.items[slice(int(sessions.offsets[0]), int(sessions.offsets[-1]))]).astype(np.int64)
    session = np.repeat(np.arange(len(sessions)), np.diff(sessions.offsets))
    pairs = [
        np.stack([items[:-lag], items[lag:]])[:, session[:-lag] == session[lag:]]
        for lag in range(1, min(WINDOW, len(items) - 1) + 1)
    ]
    first, second = np.concatenate(pairs, 1) if pairs else np.zeros((2, 0), np.int64)
    symmetric = (np.concatenate([first, second]), np.concatenate([second, first]))
    counts = coo_array((np.ones(len(symmetric[0])), symmetric), shape=(n_items, n_items)).tocsr()
    information = _positive_information(counts)
    if not information.count_nonzero():
        return np.zeros((n_items, 1))  # sessions say nothing about which items belong together
    if n_items <= MAX_DENSE:
        values, vectors = np.linalg.eigh(information.toarray())
    else:
        values, vectors = eigsh(information, k=DIMENSIONS, which="LA", v0=np.ones(n_items))
    leading = np.argsort(-values)[:DIMENSIONS]
    vectors = vectors[:, leading] * np.sqrt(values[leading].clip(min=0))
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 1e-9))


def _positive_information(counts: "csr_array") -> "csr_array":
    """Return max(0, log(n_ij n / (n_i n_j))) of a symmetric matrix of counts, 0 where n_ij is 0."""
    from scipy.sparse import coo_array

    total = np.asarray(counts.sum(1)).ravel()
    entries = counts.tocoo()
    row, column = entries.coords
    information = np.log(entries.data * total.sum() / (total[row] * total[column])).clip(min=0)
    return coo_array((information, (row, column)), shape=counts.shape).tocsr()
