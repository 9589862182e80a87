"""Who makes the lists: the shop's own policies, which know more than any log tells, and any `Policy`."""

from typing import Literal

import torch
from torch import Tensor

from offrec.catalogue import Head, sample_k, top_k
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop.logging_policy import Mixture, draw_lists, mixture
from offrec.shop.randomness import Purpose, generator
from offrec.shop.visitors import Dynamics, Step, Visitors
from offrec.types import Batch

Play = Literal["topk", "sample"]
ROWS = 1024  # sessions whose lists are made together


class Player:
    """Lists for visitors. `begin` before the first step; `observe_step` after each."""

    name: str
    play: str = "topk"

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics, self.k = dynamics, dynamics.world.k

    def begin(self, sessions: int, seed: int) -> None:
        self.seed = seed

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        """[n, k] lists for the visitors [n] of sessions `rows`."""
        raise NotImplementedError

    def observe_step(self, rows: Tensor, found: Step) -> None:
        """How the visitors of sessions `rows` took their lists."""
        self.observe(rows, found.item)

    def observe(self, rows: Tensor, item: Tensor) -> None:
        """What was picked in sessions `rows`: items [n]."""


class Logging(Player):
    """The policy that writes the log."""

    name, play = "logging", "sample"

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random, lists = generator(self.seed, Purpose.LISTS, step), []
        for part in parts(visitors):
            here = mixture(self.dynamics, part)
            lists.append(draw_lists(here, self.k, random))
            self.on_lists(here, lists[-1])
        return torch.cat(lists)

    def on_lists(self, here: Mixture, lists: Tensor) -> None:
        """For whoever wants to know how likely the lists were."""


class Random(Player):
    """Any k items, evenly."""

    name, play = "random", "sample"

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random = generator(self.seed, Purpose.LISTS, step)
        n_items, n, k = self.dynamics.items.n_items, len(visitors), self.k
        lists = torch.empty(n, k, dtype=torch.long)
        for place in range(k):  # Floyd's way: any set of k is as likely, and nothing is drawn twice
            top = n_items - k + place
            item = (torch.rand(n, generator=random, dtype=torch.double) * (top + 1)).long()
            taken = (lists[:, :place] == item[:, None]).any(1)
            lists[:, place] = torch.where(taken, top, item)
        return lists.to(self.dynamics.device)


class Greedy(Player):
    """The k items the visitor would most likely pick now: knows tastes, and does not look ahead."""

    name = "greedy"

    def head(self, visitors: Visitors) -> Head:
        """z(a) = the utility of a, over the whole catalogue."""
        items, world = self.dynamics.items, self.dynamics.world
        tired = items.worth.new_full(visitors.memory.shape, -world.fatigue)
        state = world.appeal * self.dynamics.taste(visitors)
        return Head(state, items.taste[:-1], items.attractiveness[:-1], visitors.memory, tired)

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        return torch.cat([top_k(self.head(part), self.k)[1] for part in parts(visitors)])


def parts(visitors: Visitors) -> list[Visitors]:
    return [visitors[slice(first, first + ROWS)] for first in range(0, len(visitors), ROWS)]


class PolicyPlayer(Player):
    """A `Policy`, which sees the picks it knows and nothing else."""

    def __init__(self, dynamics: Dynamics, policy: Policy, play: Play) -> None:
        super().__init__(dynamics)
        self.policy, self.name, self.play = policy, policy.name, play
        self.to_shop = shop_items(policy, dynamics.items.n_items).to(policy.device)
        if play == "sample" and not policy.stochastic:
            raise InputError(f"{policy.name} gives scores, not chances, so it cannot be sampled; play its topk.")
        if self.k > policy.n_items:
            raise InputError(
                f"A list has {self.k} items, {policy.name} knows only {policy.n_items}; it cannot fill one."
            )
        self.to_policy = torch.full((dynamics.items.n_items + 1,), policy.n_items, device=policy.device)
        self.to_policy[self.to_shop] = torch.arange(policy.n_items, device=policy.device)

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        shape = (sessions, self.policy.history)
        self.recent = torch.full(shape, self.policy.n_items, device=self.policy.device)

    @torch.no_grad()
    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random = generator(self.seed, Purpose.LISTS, step, self.policy.device)
        lists = []
        rows = rows.to(self.policy.device)
        for part in (rows[first : first + ROWS] for first in range(0, len(rows), ROWS)):
            head = self.policy.head(batch_of_recent(self.recent[part], self.policy.n_items))
            lists.append(sample_k(head, self.k, random) if self.play == "sample" else top_k(head, self.k)[1])
        return self.to_shop[torch.cat(lists)].to(self.dynamics.device)

    def observe(self, rows: Tensor, item: Tensor) -> None:
        rows, item = rows.to(self.policy.device), self.to_policy[item.to(self.policy.device)]
        rows, item = (part[item < self.policy.n_items] for part in (rows, item))
        self.recent[rows] = torch.cat([item[:, None], self.recent[rows, :-1]], 1)


def shop_items(policy: Policy, n_items: int) -> Tensor:
    """[policy's items] which of the shop's items each is."""
    words = policy.vocabulary
    ids = [words.id(index) for index in range(len(words))]
    strange = next((id_ for id_ in ids if not isinstance(id_, int) or not 0 <= id_ < n_items), None)
    if strange is not None:
        raise InputError(
            f"{policy.name} was made for another catalogue: it knows an item {strange!r}, "
            f"this shop has 0 to {n_items - 1}; play it in the shop its log comes from."
        )
    return torch.tensor(ids, dtype=torch.long)


def batch_of_recent(recent: Tensor, n_items: int) -> Batch:
    """A batch of histories [B, H], most recent first and padded with n_items: one piece and one row each."""
    position = (recent < n_items).sum(1)
    place = position[:, None] - 1 - torch.arange(max(1, int(position.max())), device=recent.device)
    oldest_first = recent.gather(1, place.clamp(min=0))
    tokens = torch.where(place >= 0, oldest_first, n_items)
    rows = torch.arange(len(recent), device=recent.device)
    none, nothing = torch.zeros_like(rows), torch.zeros(len(recent), device=recent.device)
    weight = torch.full_like(nothing, 1 / max(1, len(recent)))
    return Batch(tokens, rows, position, recent, none, none, nothing, nothing, nothing, weight)
