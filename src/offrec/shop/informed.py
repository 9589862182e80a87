"""Informed: a planner that knows the items and the dynamics and infers the visitor's taste from lists and picks.

The visitor's first taste u₀ has the shop's own prior: a category by popularity, and a spread around its centroid. The
prior is a set of particles that all visitors share. Each visitor has a weight per particle. Every list multiplies it by
the probability of the visitor's reaction to the list:

    weight(p) ∝ Π_t P(pick_t | list_t, memory_t, u₀ = p)

Candidates and the value of staying are computed as by the oracle, for the posterior mean of u₀ and haste 0. The list is
then chosen for S tastes s sampled from the posterior. Let earn_i(s) = E[reward of i] + V(memory after i), and let λ(s)
be the expected return of the list for s. The list contains the k items with the highest

    mean_s [ p_i(s) · (earn_i(s) − λ(s)) ]

where p_i(s) is the probability of picking i, given the rest of the list. A few iterations find the list. With one taste
this is the oracle's rule.

The planner is a reference for policies that see only lists and picks. It is not an upper bound.
"""

import torch
from torch import Tensor

from offrec.shop.oracle import ROUNDS, Oracle
from offrec.shop.players import ROWS
from offrec.shop.randomness import Purpose, generator
from offrec.shop.visitors import Dynamics, Step, Visitors

PARTICLES = 2000
SAMPLES = 32  # S
PRIOR_SEED = 2_000_000_000  # so that particles differ from the visitors of logs and roll-outs


class Informed(Oracle):
    """Plan with the posterior of the visitor's taste.

    Args:
        dynamics: The shop's equations and items.
        personal: Whether to update the posterior; otherwise the prior is used for every visitor.
        horizon: None plans for the whole session; 0 plans for the next pick alone.
    """

    name = "informed"

    def __init__(self, dynamics: Dynamics, *, personal: bool = True, horizon: int | None = None) -> None:
        super().__init__(dynamics, horizon=horizon)
        self.personal = personal
        self.particles = dynamics.arrive(PARTICLES, PRIOR_SEED).taste  # [P, d]

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        device, world = self.dynamics.device, self.dynamics.world
        self.log_weight = torch.zeros(sessions, PARTICLES, device=device)
        self.offered = torch.zeros(sessions, self.k, dtype=torch.long, device=device)
        self.memory = torch.full((sessions, world.memory), self.dynamics.items.n_items, device=device)

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random = generator(self.seed, Purpose.LISTS, step)
        lists = []
        for first in range(0, len(rows), ROWS):
            part = slice(first, first + ROWS)
            weight = self.log_weight[rows[part]].softmax(1)
            sampled = torch.multinomial(weight.cpu(), SAMPLES, replacement=True, generator=random)
            mean = weight @ self.particles
            expected = Visitors(mean, torch.zeros_like(mean[:, 0]), visitors.memory[part])
            lists.append(self._plan(expected, self.particles[sampled.to(self.particles.device)]))
        self.offered[rows], self.memory[rows] = torch.cat(lists), visitors.memory
        return torch.cat(lists)

    def _plan(self, expected: Visitors, tastes: Tensor) -> Tensor:
        """[n, k] lists for visitors whose first taste is one of tastes [n, S, d]."""
        dynamics, memory = self.dynamics, expected.memory
        candidates = self.candidates(expected)
        later, nothing = self.later(expected, candidates)
        match = self._match(tastes, memory, candidates)  # [S, n, M]
        utility = dynamics.utility_of_match(match, memory, candidates)
        probabilities = dynamics.behaviours_of_match(match, memory, candidates)
        earns = probabilities @ dynamics.rewards().to(probabilities.dtype) + later
        alone = dynamics.choice_probabilities(utility[..., None])[..., 1]
        chosen = (alone * (earns - nothing[:, None])).mean(0).topk(self.k, 1).indices
        for _ in range(ROUNDS):
            chosen = chosen.gather(1, earns.mean(0).gather(1, chosen).argsort(1, descending=True))
            on_list = chosen.expand(len(match), -1, -1)
            picked = dynamics.choice_probabilities(utility.gather(2, on_list))  # [S, n, 1 + k]
            earned = picked[..., :1] * nothing[:, None]
            earned = earned + (picked[..., 1:] * earns.gather(2, on_list)).sum(2, keepdim=True)
            # In a logit, an item is picked in proportion to its odds against no pick. In a cascade, it is picked as if
            # it were alone.
            odds = alone / (1 - alone).clamp(min=1e-9) * picked[..., :1]
            weight = odds if dynamics.world.choice == "logit" else alone
            chosen = (weight * (earns - earned)).mean(0).topk(self.k, 1).indices
        best_first = earns.mean(0).gather(1, chosen).argsort(1, descending=True)
        return candidates.gather(1, chosen.gather(1, best_first))

    def _match(self, tastes: Tensor, memory: Tensor, items: Tensor) -> Tensor:
        """[S, n, M] u·taste of items [n, M] for first tastes [n, S, d]; u is linear in u₀."""
        without_first_taste = Visitors(torch.zeros_like(tastes[:, 0]), torch.zeros_like(tastes[:, 0, 0]), memory)
        current = (
            self.dynamics.taste(without_first_taste)[:, None]
            + self.dynamics.taste_share(memory)[:, None, None] * tastes
        )
        return torch.einsum("nsd,nmd->snm", current, self.dynamics.items.taste[items])

    def observe_step(self, rows: Tensor, result: Step) -> None:
        if not self.personal:
            return
        match = self.offered[rows] == result.item[:, None]
        place = torch.where(match.any(1), match.int().argmax(1) + 1, 0)  # 0: no pick
        for first in range(0, len(rows), ROWS // 4):
            part = slice(first, first + ROWS // 4)
            self.log_weight[rows[part]] += self._log_likelihood(rows[part], place[part])

    def _log_likelihood(self, rows: Tensor, place: Tensor) -> Tensor:
        """[n, P] log P(place | list, memory, particle)."""
        offered, memory = self.offered[rows], self.memory[rows]
        match = self._match(self.particles.expand(len(rows), -1, -1), memory, offered)  # [P, n, k]
        probabilities = self.dynamics.choice_probabilities(self.dynamics.utility_of_match(match, memory, offered))
        probability = probabilities.gather(2, place[None, :, None].expand(len(probabilities), -1, 1))[..., 0]
        return probability.clamp(min=1e-30).log().T
