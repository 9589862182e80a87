"""Marginal weights: ratios of item clusters instead of items, for catalogues in which few lists occur twice.

    ρ_c = π(c | s) / b(c | s),     π(c | s) = Σ_{a ∈ c} π(a | s),     c the cluster of the logged item

These ratios vary much less than ratios of items (Saito & Joachims 2022). In sessions with many decisions they give the
exact value of a different policy, which chooses the cluster like π and the item within it like the logging policy:

    π̃(a | s) = π(c(a) | s) · b(a | s, c(a))

The estimate is unbiased for π if the items of a cluster earn the same and change the state in the same way.
"""

import torch
from torch import Tensor

from offrec.catalogue import Head, reduce
from offrec.catalogue.head import UpperBound
from offrec.errors import InputError

CLUSTERS, ITERATIONS = 64, 25
SAMPLE, ROWS = 50_000, 16_384  # items that k-means is fitted to; items assigned per step


@torch.no_grad()
def cluster_items(table: Tensor, count: int = CLUSTERS, seed: int = 0) -> Tensor:
    """Cluster the rows of an item table [A, d] with k-means and return the cluster of each item [A]."""
    items = len(table)
    if not 1 <= count <= items:
        raise InputError(f"The number of clusters must be between 1 and the {items} items; got {count}.")
    generator = torch.Generator().manual_seed(seed)
    sample = table[torch.randperm(items, generator=generator)[:SAMPLE].to(table.device)].float()
    centres = _initial_centres(sample, count, generator)
    for _ in range(ITERATIONS):
        nearest = _nearest(sample, centres)
        members = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        updated = torch.where(members[:, None] > 0, sums / members.clamp(min=1)[:, None], centres)
        if torch.equal(updated, centres):
            break
        centres = updated
    return _nearest(table, centres)


@torch.no_grad()
def log_cluster_ratio(pi: Head, b: Head, action: Tensor, cluster: Tensor) -> Tensor:
    """[B] log π(c | s) / b(c | s), c being the cluster of the logged item; `cluster` [A] has the cluster of each item.

    Needs one streaming pass per policy: a third head marks the items of the cluster by its score.
    """
    codes = _codes(cluster, pi.dtype)
    inside: UpperBound = (Head(-codes[action], codes), codes.new_full(action.shape, 1.0 - codes.shape[1]))
    tiny = torch.finfo(pi.dtype).tiny
    mass = [reduce(head, below=inside).mass.clamp(min=tiny).double() for head in (pi, b)]
    return mass[0].log() - mass[1].log()


def _codes(cluster: Tensor, dtype: torch.dtype) -> Tensor:
    """[A, L] the number of each cluster in binary, as ±1.

    The product of two codes is L if they are equal and at most L − 2 otherwise. It is exact in every precision, so a
    threshold in between separates members from other items on every device.
    """
    bits = max(1, int(cluster.max()).bit_length())
    shifts = torch.arange(bits, device=cluster.device)
    return ((cluster[:, None] >> shifts & 1) * 2 - 1).to(dtype)


def _initial_centres(sample: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """[count, d] initial centres by k-means++: rows far from the chosen ones are more likely."""
    chosen = [int(torch.randint(len(sample), (1,), generator=generator))]
    distance = (sample - sample[chosen[0]]).square().sum(1)
    for _ in range(count - 1):
        total = distance.cumsum(0, dtype=torch.double)
        target = torch.rand(1, generator=generator, dtype=torch.double).to(total.device) * total[-1]
        chosen.append(int(torch.searchsorted(total, target).clamp(max=len(sample) - 1)))
        distance = torch.minimum(distance, (sample - sample[chosen[-1]]).square().sum(1))
    return sample[torch.tensor(chosen, device=sample.device)].clone()


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    half = centres.square().sum(1) / 2
    parts = (rows[first : first + ROWS].float() for first in range(0, len(rows), ROWS))
    return torch.cat([(part @ centres.T - half).argmax(1) for part in parts])
