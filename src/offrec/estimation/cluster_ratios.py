"""Probabilities of item clusters in sampled lists, for marginal weights (MIPS, Saito & Joachims 2022).

    clusters         Π_j π(c(l_j) | l_1 … l_{j−1}) / b(c(l_j) | l_1 … l_{j−1})     assumes: items of a cluster are alike
    pick_clusters    c N_π(c(i)) / N_b(c(i)), i the pick; without a pick, c        that, and the assumption of picks

N(c) is the expected number of items of the cluster c in a list, Σ_{i ∈ c} P(i ∈ l). The constant c gives the ratios the
mean 1 over the decisions of the log.

"Alike" is the assumption of no direct effect: given its cluster, an item changes neither the reward nor what the
visitor does next. Ratios of `clusters` estimate without bias a policy that chooses the cluster of each place like π and
the item within it like b. They have the mean 1. For lists of one item both are ratios of MIPS, except that
`pick_clusters` has the ratio c where nothing was picked.
"""

import torch
from torch import Tensor


def list_cluster_log_prob(z: Tensor, shown: Tensor, cluster: Tensor) -> Tensor:
    """[B] Σ_j log π(c(l_j) | l_1 … l_{j−1}) of lists sampled without replacement from softmax(z).

    Args:
        z: [B, A] logits.
        shown: [B, k] the items of the lists.
        cluster: [A] the cluster of each item.
    """
    p, own = z.double().softmax(1), cluster[shown]
    listed = p.gather(1, shown)
    others = p.scatter(1, shown, 0.0)
    rest, total = sum_by_cluster(others, cluster).gather(1, own), others.sum(1)
    result = torch.zeros_like(total)
    for place in range(shown.shape[1]):  # sums of what is left, because differences would cancel
        left = listed[:, place:]
        inside = rest[:, place] + (left * (own[:, place:] == own[:, place : place + 1])).sum(1)
        result += inside.log() - (total + left.sum(1)).log()
    return result


def expected_of_cluster(included: Tensor, shown: Tensor, cluster: Tensor) -> Tensor:
    """[B, k] the expected number of items of each listed item's cluster in a list.

    Args:
        included: [B, A] probability of each item to be in a list.
        shown: [B, k] the items of the lists.
        cluster: [A] the cluster of each item.
    """
    return sum_by_cluster(included, cluster).gather(1, cluster[shown])


def sum_by_cluster(values: Tensor, cluster: Tensor) -> Tensor:
    """[B, C] sums of the values [B, A] over the items of each cluster."""
    return values.new_zeros(len(values), int(cluster.max()) + 1).index_add_(1, cluster, values)
