"""The logging policy: a mixture in which the probability of an item does not depend on the other items.

    p(i) = popular · popularity_i + taste · softmax_c(centroid_c · u / temperature) · popularity_i within c
         + recent · 1[i among the last picks] / (number of distinct last picks) + noise / A

Before the first pick, the weight `recent` is added to `popular`. A list is sampled position by position without
replacement: P(list) = Π_j p(i_j) / (1 − Σ_{l<j} p(i_l)).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.shop.visitors import Dynamics, Visitors, sample_index


@dataclass(frozen=True)
class Mixture:
    """The logging policy's probabilities for a set of visitors."""

    dynamics: Dynamics
    weights: Tensor  # [N, 4] popular, taste, recent, noise
    categories: Tensor  # [N, C] probability of each category by taste
    distinct: Tensor  # [N, m] the distinct last picks, padded on the right with A
    count: Tensor  # [N] number of distinct last picks

    def probability(self, items: Tensor) -> Tensor:
        """[N, n] the probability of items [N, n] at one position."""
        table = self.dynamics.items
        popular, taste, recent, noise = self.weights[:, :, None].unbind(1)
        by_taste = self.categories.gather(1, table.category[items]) * table.within[items]
        seen = (items[:, :, None] == self.distinct[:, None, :]).any(-1)
        by_recency = seen / self.count.clamp(min=1)[:, None]
        return popular * table.popularity[items] + taste * by_taste + recent * by_recency + noise / table.n_items

    def draw(self, rows: Tensor, random: torch.Generator) -> Tensor:
        """[n] an item for each visitor of rows [n]."""
        table, device = self.dynamics.items, self.dynamics.device
        uniform = torch.rand(4, len(rows), generator=random, dtype=torch.double).to(device)
        source = sample_index(self.weights[rows], uniform[0])
        low, high = torch.zeros_like(rows), torch.full_like(rows, table.n_items)
        by_taste = (source == 1).nonzero()[:, 0]
        category = sample_index(self.categories[rows[by_taste]], uniform[1, by_taste])
        low[by_taste], high[by_taste] = table.edge[category], table.edge[category + 1]
        item = table.order[self._by_popularity(low, high, uniform[2])]
        position = (uniform[3] * self.count[rows]).long()
        item = torch.where(source == 2, self.distinct[rows, position], item)
        return torch.where(source == 3, (uniform[3] * table.n_items).long(), item)

    def _by_popularity(self, low: Tensor, high: Tensor, uniform: Tensor) -> Tensor:
        """[n] positions between `low` and `high` − 1 in `Items.order`, sampled by popularity."""
        total = self.dynamics.items.cumulative
        before = torch.where(low > 0, total[low - 1], 0.0)
        position = torch.searchsorted(total, before + uniform * (total[high - 1] - before), right=True)
        return torch.minimum(torch.maximum(position, low), high - 1)


def mixture(dynamics: Dynamics, visitors: Visitors) -> Mixture:
    """Return the logging policy's probabilities for these visitors."""
    world, items = dynamics.world, dynamics.items
    distinct, count = _distinct(visitors.memory, items.n_items)
    weights = items.worth.new_tensor([world.log_popular, world.log_taste, world.log_recent, world.log_noise])
    weights = (weights / weights.sum()).expand(len(visitors), -1).clone()
    without_picks = count == 0
    weights[:, 0] += weights[:, 2] * without_picks
    weights[:, 2] *= ~without_picks
    similarity = dynamics.taste(visitors) @ items.centroid.T
    return Mixture(dynamics, weights, (similarity / world.log_temperature).softmax(1), distinct, count)


def draw_lists(mixture: Mixture, k: int, random: torch.Generator) -> Tensor:
    """[N, k] lists sampled without replacement, by rejecting items that the list already contains."""
    n = len(mixture.count)
    device = mixture.dynamics.device
    lists = torch.full((n, k), mixture.dynamics.items.n_items, device=device)
    for position in range(k):
        unfilled = torch.arange(n, device=device)
        while len(unfilled):
            item = mixture.draw(unfilled, random)
            is_repeated = (lists[unfilled, :position] == item[:, None]).any(1)
            lists[unfilled, position] = item
            unfilled = unfilled[is_repeated]
    return lists


def propensities(mixture: Mixture, lists: Tensor) -> Tensor:
    """[N, k] the probability of each item given those before it. Their product is the propensity of the list."""
    probability = mixture.probability(lists).double()
    return probability / (1 - (probability.cumsum(1) - probability)).clamp(min=probability)


def _distinct(memory: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
    """Return the distinct items of each memory, padded on the right with A, and their number."""
    ordered = memory.sort(1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    distinct = ordered.masked_fill(repeated, n_items).sort(1).values
    return distinct, (distinct < n_items).sum(1)
