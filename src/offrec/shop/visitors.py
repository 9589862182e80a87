"""The equations of docs/explanation/shop.md, one function each: how visitors choose, behave, remember and leave.

The state of a visitor consists of fixed properties (taste, haste) and the last m picks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED
from offrec.shop.items import Items, unit
from offrec.shop.randomness import Purpose, generator
from offrec.shop.worlds import World

BEHAVIOURS = ("view", "cart", "buy")


@dataclass(frozen=True)
class Visitors:
    """The states of N visitors."""

    taste: Tensor  # [N, d] taste before the first pick, u₀
    haste: Tensor  # [N] added to the log-odds of leaving
    memory: Tensor  # [N, m] the last picks, most recent first, padded with A

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, rows: Tensor | slice) -> "Visitors":
        return Visitors(self.taste[rows], self.haste[rows], self.memory[rows])


@dataclass(frozen=True)
class Dynamics:
    """The equations of a world with its items."""

    world: World
    items: Items

    @property
    def device(self) -> torch.device:
        return self.items.taste.device

    def arrive(self, sessions: int, seed: int) -> Visitors:
        """Return new visitors. Each is interested in one category, chosen by popularity."""
        items, world = self.items, self.world
        random = generator(seed, Purpose.VISITORS)
        weight = items.category_popularity.cpu().double()
        noise = torch.randn(sessions, world.dimensions + 1, generator=random, dtype=torch.double)
        if world.one_visitor:
            taste, haste = items.centroid[:1].expand(sessions, -1), items.centroid.new_zeros(sessions)
        else:
            interest_category = torch.multinomial(weight, sessions, replacement=True, generator=random)
            spread = world.category_spread / world.dimensions**0.5
            taste = unit(items.centroid.cpu().double()[interest_category] + spread * noise[:, 1:]).to(items.centroid)
            haste = (world.patience * noise[:, 0].clamp(-2, 2)).to(items.centroid)
        memory = torch.full((sessions, world.memory), items.n_items, device=self.device)
        return Visitors(taste, haste, memory)

    def weights(self) -> Tensor:
        """[m] ω_j, the weights of the last picks in satisfaction; they sum to 1."""
        weight = self.world.carry ** torch.arange(self.world.memory, device=self.device).to(self.items.worth)
        return weight / weight.sum()

    def taste(self, visitors: Visitors) -> Tensor:
        """u = (1 − Σ_j w_j) u₀ + Σ_j w_j taste_j with w_j = drift (1 − drift)^j, over the picks in memory."""
        weight = self._drift_weights(visitors.memory)
        picked = (weight[:, :, None] * self.items.taste[visitors.memory]).sum(1)
        return (1 - weight.sum(1, keepdim=True)) * visitors.taste + picked

    def taste_share(self, memory: Tensor) -> Tensor:
        """[N] the weight 1 − Σ_j w_j of the first taste u₀ in the current taste."""
        return 1 - self._drift_weights(memory).sum(1)

    def _drift_weights(self, memory: Tensor) -> Tensor:
        """[N, m] w_j, 0 for padding."""
        step = torch.arange(self.world.memory, device=self.device).to(self.items.taste)
        return self.world.drift * (1 - self.world.drift) ** step * (memory < self.items.n_items)

    def repeats(self, memory: Tensor) -> Tensor:
        """[N] share of the m last picks whose category occurs again among them."""
        category = self.items.category[memory].sort(1).values
        same = (category[:, 1:] == category[:, :-1]) & (category[:, 1:] < self.world.categories)
        return same.sum(1) / self.world.memory

    def satisfaction(self, memory: Tensor) -> Tensor:
        """[N] content + Σ_j ω_j worth_j − sameness · repeats."""
        worth = (self.items.worth[memory] * self.weights()).sum(1)
        return self.world.content + worth - self.world.sameness * self.repeats(memory)

    def leaving(self, visitors: Visitors, picked: Tensor) -> Tensor:
        """[N] probability of leaving after a step; `visitors` have the memory after the step."""
        satisfaction = self.satisfaction(visitors.memory) - self.world.idle * ~picked
        return self.leave_probability(satisfaction, visitors.haste)

    def leave_probability(self, satisfaction: Tensor, haste: Tensor) -> Tensor:
        """Return the probability of leaving at this satisfaction, logistic or linear as the world defines."""
        x = self.world.leave_base + haste - self.world.leave_slope * satisfaction
        return x.sigmoid() if self.world.leaving == "logistic" else x.clamp(0.04, 0.96)

    def utility(self, visitors: Visitors, offered: Tensor) -> Tensor:
        """[N, n] utility of items [N, n]: appeal · u·taste + attractiveness − fatigue · earlier picks."""
        return self.utility_of_match(self.match(visitors, offered), visitors.memory, offered)

    def utility_of_match(self, match: Tensor, memory: Tensor, offered: Tensor) -> Tensor:
        """[…, N, n] the utility of items [N, n] whose match with the visitor's taste is […, N, n]."""
        seen = self.times_seen(memory, offered)
        utility = self.world.appeal * match + self.items.attractiveness[offered] - self.world.fatigue * seen
        return utility.masked_fill(offered >= self.items.n_items, MASKED)

    def times_seen(self, memory: Tensor, items: Tensor) -> Tensor:
        """[N, n] how often each of the items [N, n] occurs among the last m picks."""
        return (items[:, :, None] == memory[:, None, :]).sum(-1)

    def match(self, visitors: Visitors, offered: Tensor) -> Tensor:
        """[N, n] match u·taste of items [N, n]."""
        return torch.einsum("nd,nkd->nk", self.taste(visitors), self.items.taste[offered])

    def choices(self, visitors: Visitors, offered: Tensor) -> Tensor:
        """[N, 1 + k] probabilities of picking nothing and of picking each item of the list."""
        return self.choice_probabilities(self.utility(visitors, offered))

    def choice_probabilities(self, utility: Tensor) -> Tensor:
        """[…, 1 + k] probabilities of picking nothing and of picking each item of a list with utilities […, k]."""
        none = MASKED if self.world.none_utility is None else self.world.none_utility
        if self.world.choice == "cascade":
            take = torch.special.ndtr(utility - none)
            reached = torch.cat([torch.ones_like(take[..., :1]), (1 - take).cumprod(-1)], -1)
            return torch.cat([reached[..., -1:], reached[..., :-1] * take], -1)
        return torch.cat([torch.full_like(utility[..., :1], none), utility], -1).softmax(-1)

    def behaviours(self, visitors: Visitors, items: Tensor) -> Tensor:
        """[N, n, 3] probabilities of a view, a cart and a purchase if items [N, n] are picked."""
        return self.behaviours_of_match(self.match(visitors, items), visitors.memory, items)

    def behaviours_of_match(self, match: Tensor, memory: Tensor, items: Tensor) -> Tensor:
        """[…, N, n, 3] the same probabilities for items whose match with the visitor's taste is […, N, n]."""
        world, seen = self.world, self.times_seen(memory, items)
        interest = world.second_look * (seen == 1) - world.fatigue * seen
        interest = interest + world.match_interest * match
        interest = interest + world.quality_interest * self.items.quality[items]
        buy = (world.buy_base + interest).sigmoid()
        cart = (1 - buy) * (world.cart_base + interest).sigmoid()
        return torch.stack([1 - buy - cart, cart, buy], -1)

    def rewards(self) -> Tensor:
        """[3] rewards of a view, a cart and a purchase, in double precision for exact sums."""
        rewards = [self.world.reward_view, self.world.reward_cart, self.world.reward_buy]
        return torch.tensor(rewards, dtype=torch.double, device=self.device)

    def expected_reward(self, visitors: Visitors, items: Tensor) -> Tensor:
        """[N, n] expected reward if items [N, n] are picked."""
        probabilities = self.behaviours(visitors, items)
        return probabilities @ self.rewards().to(probabilities.dtype)

    def remember(self, memory: Tensor, item: Tensor) -> Tensor:
        """[N, m] the memory after items [N] were picked; A means no pick."""
        extended = torch.cat([item[:, None], memory[:, :-1]], 1)
        return torch.where((item < self.items.n_items)[:, None], extended, memory)

    def step(self, visitors: Visitors, offered: Tensor, uniforms: Tensor) -> "Step":
        """Simulate the reaction to lists [N, k], with random numbers `uniforms` [3, N]."""
        position = sample_index(self.choices(visitors, offered), uniforms[0])
        picked = position > 0
        item = offered.gather(1, (position - 1).clamp(min=0)[:, None])[:, 0]
        behaviour = sample_index(self.behaviours(visitors, item[:, None])[:, 0], uniforms[1])
        item = torch.where(picked, item, self.items.n_items)
        reward = self.rewards()[behaviour] * picked
        after = Visitors(visitors.taste, visitors.haste, self.remember(visitors.memory, item))
        leaves = uniforms[2] < self.leaving(after, picked)
        return Step(item, torch.where(picked, behaviour, len(BEHAVIOURS)), reward, leaves, after)


@dataclass(frozen=True)
class Step:
    """The reactions of N visitors to one list each."""

    item: Tensor  # [N] the pick; A for none
    behaviour: Tensor  # [N] index into BEHAVIOURS; 3 without a pick
    reward: Tensor  # [N] double
    leaves: Tensor  # [N]
    visitors: Visitors  # their states after the step


def sample_index(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """[N] indices sampled from probabilities [N, n] with uniform numbers [N]."""
    index = (probabilities.cumsum(1) <= uniform[:, None]).sum(1)
    return index.clamp(max=probabilities.shape[1] - 1)  # rounding can make the sum less than the uniform number
