"""The oracle: knows every item and the visitor's true state, and looks ahead.

Where the visitor's states can be listed (`tiny`) it plays the optimal policy of the dynamic programme. Elsewhere it is
a heuristic, in two steps, neither of which writes out a [sessions × items] matrix:

1. candidates: the items with the highest utility + far_sight · worth (a head over the catalogue);
2. the list of k among them that earns most, taking a pick of item i to earn r_i = E[reward] + V(memory after i), and no
   pick V(memory as it is), where V supposes that from then on every pick is a good one (worth at the shop's 90 %
   quantile) and every step earns what such a pick does. Under a logit choice the best list holds the k highest
   exp(utility_i) · (r_i − λ), where λ is what the list itself earns; a few rounds find it.
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
    name = "oracle"

    def __init__(self, dynamics: Dynamics, *, horizon: int | None = None) -> None:
        """Make a planner. `horizon`: None plans for the whole session, 0 for the next pick alone."""
        super().__init__(dynamics)
        self.greedy, self.horizon = Greedy(dynamics), horizon
        items = dynamics.items
        sample = items.worth[: min(len(items.worth) - 1, 100_000)]  # items stand in no order
        self.good = sample.quantile(0.9)
        self.earned = self._earned()

    def _earned(self) -> Tensor:
        """What a step with good items earns: the reward of a good and well matching item."""
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
        """[n, M] the items with the highest utility and the best prospects; for horizon 0, the best conversion."""
        items, world, base = self.dynamics.items, self.dynamics.world, self.greedy.head(visitors)
        assert base.bias is not None
        prospects = world.quality_interest * items.quality if self.horizon == 0 else FAR_SIGHT * items.worth
        head = Head(base.state, base.table, base.bias + prospects[:-1], base.items, base.values)
        return top_k(head, min(CANDIDATES * self.k, items.n_items))[1]

    def later(self, visitors: Visitors, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """What is earned after a pick of each candidate [n, M], and after no pick [n]; 0 for horizon 0."""
        if self.horizon == 0:
            return self.dynamics.items.worth.new_zeros(candidates.shape), visitors.haste.new_zeros(len(candidates))
        return self.value(visitors, candidates), self.value(visitors, None)[:, 0]

    def _best(self, utility: Tensor, earns: Tensor, nothing: Tensor) -> Tensor:
        """[n, k] places among the candidates [n, M]."""
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
        """[n, k] places among the candidates, the one that earns most first: it is looked at first."""
        take = self.dynamics.choice_probabilities(utility[..., None])[..., 1]  # [n, M] alone on a list
        bar = nothing[:, None]
        for _ in range(ROUNDS):
            chosen = (take * (earns - bar)).topk(self.k, 1).indices
            chosen = chosen.gather(1, earns.gather(1, chosen).argsort(1, descending=True))
            chances = self.dynamics.choice_probabilities(utility.gather(1, chosen))
            bar = chances[:, :1] * nothing[:, None] + (chances[:, 1:] * earns.gather(1, chosen)).sum(1, keepdim=True)
        return chosen

    def value(self, visitors: Visitors, items: Tensor | None) -> Tensor:
        """[n, M] what is earned after picks [n, M]; [n, 1] after a step without one.

        Satisfaction l steps on: the memory moves l places back, and good items have taken the places before it.
        """
        dynamics, world = self.dynamics, self.dynamics.world
        weight, m = dynamics.weights(), world.memory
        worth = dynamics.items.worth[visitors.memory]  # [n, m]
        category = dynamics.items.category[visitors.memory]
        after = 0 if items is None else 1
        repeats = dynamics.repeats(visitors.memory)[:, None]
        if items is not None:
            known = (dynamics.items.category[items][:, :, None] == category[:, None, : m - 1]).any(-1)
            repeats = dynamics.repeats(visitors.memory[:, : m - 1])[:, None] + known / m
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
            value = value + alive * self.earned
        return value + alive * stay / (1 - stay) * self.earned
