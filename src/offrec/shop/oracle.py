"""The oracle: a policy that knows all items and the true state of the visitor, and plans ahead.

In worlds with few states (`tiny`) it is the optimal policy of the MDP. Elsewhere it is a heuristic in two steps that
never builds a [sessions × items] matrix:

1. candidates: the items with the highest utility + far_sight · worth (a head over the catalogue);
2. the list of k candidates with the largest expected return. A pick of item i returns r_i = E[reward] + V(memory after
   i), and no pick returns V(unchanged memory). V assumes that every later pick is a good one (worth at the 90 %
   quantile of the shop) and that every later step earns the reward of such a pick. Under a logit choice the best list
   contains the k items with the highest exp(utility_i) · (r_i − λ), where λ is the return of the list; a few
   iterations find λ.
"""

import torch
from torch import Tensor

from offrec.catalogue import Head, top_k
from offrec.shop.players import Greedy, Player, chunks
from offrec.shop.visitors import Dynamics, Visitors

CANDIDATES = 6  # times k
FAR_SIGHT = 1.0
ROUNDS = 3


class Oracle(Player):
    """Plan with the true state of the visitor."""

    name = "oracle"

    def __init__(self, dynamics: Dynamics, *, horizon: int | None = None) -> None:
        """Create the planner. `horizon=None` plans for the whole session, 0 for the next pick only."""
        super().__init__(dynamics)
        self.greedy, self.horizon = Greedy(dynamics), horizon
        items = dynamics.items
        sample = items.worth[: min(len(items.worth) - 1, 100_000)]  # items are in random order
        self.good = sample.quantile(0.9)
        self.reward_of_good_pick = self._reward_of_good_pick()

    def _reward_of_good_pick(self) -> Tensor:
        """Return the expected reward of a good item that matches the visitor."""
        items, world = self.dynamics.items, self.dynamics.world
        good = items.quality[:-1][items.worth[:-1] >= self.good].mean()
        interest = world.quality_interest * good + world.match_interest * 0.8
        buy = (world.buy_base + interest).sigmoid()
        cart = (1 - buy) * (world.cart_base + interest).sigmoid()
        return torch.stack([1 - buy - cart, cart, buy]) @ self.dynamics.rewards().to(buy.dtype)

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        return torch.cat([self._lists(part) for part in chunks(visitors)])

    def _lists(self, visitors: Visitors) -> Tensor:
        candidates = self.candidates(visitors)
        utility = self.dynamics.utility(visitors, candidates)
        later, nothing = self.later(visitors, candidates)
        earns = self.dynamics.expected_reward(visitors, candidates) + later
        return candidates.gather(1, self._best(utility, earns, nothing))

    def candidates(self, visitors: Visitors) -> Tensor:
        """[n, M] the items with the highest utility plus worth, or plus interest by quality for horizon 0."""
        items, world, base = self.dynamics.items, self.dynamics.world, self.greedy.head(visitors)
        assert base.bias is not None
        bonus = world.quality_interest * items.quality if self.horizon == 0 else FAR_SIGHT * items.worth
        head = Head(base.state, base.table, base.bias + bonus[:-1], base.items, base.values)
        return top_k(head, min(CANDIDATES * self.k, items.n_items))[1]

    def later(self, visitors: Visitors, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value after a pick of each candidate [n, M] and after no pick [n]; 0 for horizon 0."""
        if self.horizon == 0:
            return self.dynamics.items.worth.new_zeros(candidates.shape), visitors.haste.new_zeros(len(candidates))
        return self.value(visitors, candidates), self.value(visitors, None)[:, 0]

    def _best(self, utility: Tensor, earns: Tensor, nothing: Tensor) -> Tensor:
        """[n, k] indices of the best list among the candidates [n, M]."""
        if self.dynamics.world.choice == "cascade":
            return self._best_cascade(utility, earns, nothing)
        none = self.dynamics.world.none_utility
        top = utility.amax(1, keepdim=True)
        weight = (utility - top).exp()
        none_weight = torch.zeros_like(nothing) if none is None else (none - top[:, 0]).exp()
        bar = nothing[:, None]
        for _ in range(ROUNDS):
            chosen = (weight * (earns - bar)).topk(self.k, 1).indices
            taken = weight.gather(1, chosen)
            total = (taken * earns.gather(1, chosen)).sum(1) + none_weight * nothing
            bar = (total / (taken.sum(1) + none_weight))[:, None]
        return chosen

    def _best_cascade(self, utility: Tensor, earns: Tensor, nothing: Tensor) -> Tensor:
        """[n, k] indices of the best list for a cascade, ordered by return, because visitors examine it in order."""
        take = self.dynamics.choice_probabilities(utility[..., None])[..., 1]  # [n, M] if alone on a list
        bar = nothing[:, None]
        for _ in range(ROUNDS):
            chosen = (take * (earns - bar)).topk(self.k, 1).indices
            chosen = chosen.gather(1, earns.gather(1, chosen).argsort(1, descending=True))
            probabilities = self.dynamics.choice_probabilities(utility.gather(1, chosen))
            bar = probabilities[:, :1] * nothing[:, None] + (probabilities[:, 1:] * earns.gather(1, chosen)).sum(
                1, keepdim=True
            )
        return chosen

    def value(self, visitors: Visitors, items: Tensor | None) -> Tensor:
        """[n, M] the value after picks [n, M]; [n, 1] after a step without a pick.

        After l more steps, the memory has moved back by l positions, and good items fill the positions before it.
        """
        dynamics, world = self.dynamics, self.dynamics.world
        weight, m = dynamics.weights(), world.memory
        worth = dynamics.items.worth[visitors.memory]  # [n, m]
        category = dynamics.items.category[visitors.memory]
        after = 0 if items is None else 1
        repeats = dynamics.repeats(visitors.memory)[:, None]
        if items is not None:
            is_known = (dynamics.items.category[items][:, :, None] == category[:, None, : m - 1]).any(-1)
            repeats = dynamics.repeats(visitors.memory[:, : m - 1])[:, None] + is_known / m
        value, alive = torch.zeros_like(repeats), torch.ones_like(repeats)
        for ahead in range(m + 1):
            back = min(m, ahead + after)
            level = (worth[:, : m - back] * weight[back:]).sum(1, keepdim=True) + self.good * weight[:ahead].sum()
            if items is not None and ahead < m:
                level = level + weight[ahead] * dynamics.items.worth[items]
            level = (
                world.content
                + level
                - world.sameness * (repeats * (m - ahead) / m)
                - world.idle * (1 - after) * (ahead == 0)
            )
            stay = 1 - dynamics.leave_probability(level, visitors.haste[:, None])
            alive = alive * stay
            value = value + alive * self.reward_of_good_pick
        return value + alive * stay / (1 - stay) * self.reward_of_good_pick
