"""Marginal weights: ratios of clusters of items in place of items, for catalogues in which no list is seen twice.

    ρ_c = π(c | s) / b(c | s),     π(c | s) = Σ_{a ∈ c} π(a | s),     c the cluster of the logged item

They are smaller and far less spread than ratios of items (Saito & Joachims 2022). In a session of many decisions they
give the exact value of another policy: one that takes the cluster as π does and the item in it as the log does,

    π̃(a | s) = π(c(a) | s) · b(a | s, c(a)),

so the estimate is right for π as far as items of a cluster are alike in what they earn and in what they do to visitors.
"""

import torch
from torch import Tensor

from offrec.catalogue import Head, reduce
from offrec.catalogue.head import UpperBound
from offrec.errors import InputError

CLUSTERS, ROUNDS = 64, 25
SAMPLE, ROWS = 50_000, 16_384  # items that the centres are fitted to; items that are looked at together


@torch.no_grad()
def clusters(table: Tensor, count: int = CLUSTERS, seed: int = 0) -> Tensor:
    """[A] which of `count` clusters each row of an item table [A, d] belongs to: k-means."""
    items = len(table)
    if not 1 <= count <= items:
        raise InputError(f"{items} items cannot be put into {count} clusters; ask for 1 to {items}.")
    random = torch.Generator().manual_seed(seed)
    sample = table[torch.randperm(items, generator=random)[:SAMPLE].to(table.device)].float()
    centres = _spread(sample, count, random)
    for _ in range(ROUNDS):
        nearest = _nearest(sample, centres)
        members = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        moved = torch.where(members[:, None] > 0, sums / members.clamp(min=1)[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return _nearest(table, centres)


@torch.no_grad()
def log_marginal(pi: Head, b: Head, action: Tensor, cluster: Tensor) -> Tensor:
    """[B] log of π(c | s) / b(c | s), c the cluster of the logged items [B]; the clusters of all items [A] are given.

    One streaming pass for each policy: a third head says by its value which items are of the cluster.
    """
    codes = _codes(cluster, pi.dtype)
    inside: UpperBound = (Head(-codes[action], codes), codes.new_full(action.shape, 1.0 - codes.shape[1]))
    tiny = torch.finfo(pi.dtype).tiny
    mass = [reduce(head, below=inside).mass.clamp(min=tiny).double() for head in (pi, b)]
    return mass[0].log() - mass[1].log()


def _codes(cluster: Tensor, dtype: torch.dtype) -> Tensor:
    """[A, L] a cluster's number in ±1: the product of two codes is L if they are the same and at most L − 2 if not.

    Such products are exact in every precision, so a bound in between tells members from others on any device.
    """
    bits = max(1, int(cluster.max()).bit_length())
    places = torch.arange(bits, device=cluster.device)
    return ((cluster[:, None] >> places & 1) * 2 - 1).to(dtype)


def _spread(sample: Tensor, count: int, random: torch.Generator) -> Tensor:
    """[count, d] rows to start from, each drawn the likelier the farther it is from those drawn (k-means++)."""
    chosen = [int(torch.randint(len(sample), (1,), generator=random))]
    distance = (sample - sample[chosen[0]]).square().sum(1)
    for _ in range(count - 1):
        total = distance.cumsum(0, dtype=torch.double)
        mark = torch.rand(1, generator=random, dtype=torch.double).to(total.device) * total[-1]
        chosen.append(int(torch.searchsorted(total, mark).clamp(max=len(sample) - 1)))
        distance = torch.minimum(distance, (sample - sample[chosen[-1]]).square().sum(1))
    return sample[torch.tensor(chosen, device=sample.device)].clone()


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    half = centres.square().sum(1) / 2
    parts = (rows[first : first + ROWS].float() for first in range(0, len(rows), ROWS))
    return torch.cat([(part @ centres.T - half).argmax(1) for part in parts])
