"""Players make the lists in a simulated shop: the shop's own policies, which know its state, and any `Policy`."""

from typing import Literal

import torch
from torch import Tensor

from offrec.catalogue import Head, sample_k, top_k
from offrec.errors import InputError
from offrec.policy import Policy, SkipRecent
from offrec.shop.logging_policy import draw_lists, mixture, propensities
from offrec.shop.randomness import Purpose, generator
from offrec.shop.recording import ListRecorder
from offrec.shop.visitors import Dynamics, Step, Visitors

Play = Literal["topk", "sample"]
ROWS = 1024  # sessions per batch of lists
GPU_ROWS = 16_384  # the same on a GPU, where small batches mainly wait for kernel launches


class Player:
    """Makes lists for visitors. `begin` is called before the first step, `observe_step` after each step."""

    name: str
    play: str = "topk"
    skip_recent: int = 0

    def __init__(self, dynamics: Dynamics) -> None:
        self.dynamics, self.k = dynamics, dynamics.world.k

    def begin(self, sessions: int, seed: int) -> None:
        """Start a roll-out."""
        self.seed = seed

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        """Return lists [n, k] for the visitors [n] of the sessions `rows`."""
        raise NotImplementedError

    def observe_step(self, rows: Tensor, result: Step) -> None:
        """Receive the reactions of the visitors of the sessions `rows`."""
        self.observe(rows, result.item)

    def observe(self, rows: Tensor, item: Tensor) -> None:
        """Receive the picks [n] of the sessions `rows`."""


class Logging(Player):
    """The logging policy, which writes the log.

    Args:
        dynamics: The shop's equations and items.
        recorder: Records the lists and their propensities, if given.
    """

    name, play = "logging", "sample"

    def __init__(self, dynamics: Dynamics, recorder: ListRecorder | None = None) -> None:
        super().__init__(dynamics)
        self.recorder = recorder

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random, lists = generator(self.seed, Purpose.LISTS, step), []
        for part in chunks(visitors):
            probabilities = mixture(self.dynamics, part)
            lists.append(draw_lists(probabilities, self.k, random))
            if self.recorder is not None:
                self.recorder.record_lists(lists[-1], propensities(probabilities, lists[-1]))
        return torch.cat(lists)


class Random(Player):
    """Offers lists of k items, all equally likely."""

    name, play = "random", "sample"

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random = generator(self.seed, Purpose.LISTS, step)
        n_items, n, k = self.dynamics.items.n_items, len(visitors), self.k
        lists = torch.empty(n, k, dtype=torch.long)
        for position in range(k):  # Floyd's algorithm: all sets of k items are equally likely
            top = n_items - k + position
            item = (torch.rand(n, generator=random, dtype=torch.double) * (top + 1)).long()
            is_repeated = (lists[:, :position] == item[:, None]).any(1)
            lists[:, position] = torch.where(is_repeated, top, item)
        return lists.to(self.dynamics.device)


class Greedy(Player):
    """Offers the k items that the visitor would most likely pick now. It knows the taste but does not plan ahead."""

    name = "greedy"

    def head(self, visitors: Visitors) -> Head:
        """Return the head z(a) = utility of a over the whole catalogue."""
        items, world = self.dynamics.items, self.dynamics.world
        fatigue = items.worth.new_full(visitors.memory.shape, -world.fatigue)
        state = world.appeal * self.dynamics.taste(visitors)
        return Head(state, items.taste[:-1], items.attractiveness[:-1], visitors.memory, fatigue)

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        return torch.cat([top_k(self.head(part), self.k)[1] for part in chunks(visitors)])


def chunks(visitors: Visitors) -> list[Visitors]:
    """Divide visitors into chunks of at most ROWS."""
    return [visitors[slice(first, first + ROWS)] for first in range(0, len(visitors), ROWS)]


class PolicyPlayer(Player):
    """Plays a `Policy`, which sees only its lists and the picks of items that it knows.

    Args:
        dynamics: The shop's equations and items.
        policy: The policy.
        play: How lists are made: the best k items, or k items sampled without replacement.
        skip_recent: How many of the visitor's last picks rank below all other items.
    """

    def __init__(self, dynamics: Dynamics, policy: Policy, play: Play, skip_recent: int = 0) -> None:
        super().__init__(dynamics)
        policy = SkipRecent(policy, skip_recent) if skip_recent else policy
        self.policy, self.name, self.play, self.skip_recent = policy, policy.name, play, skip_recent
        self.to_shop = shop_items(policy, dynamics.items.n_items).to(policy.device)
        if play == "sample" and not policy.stochastic:
            raise InputError(
                f"{policy.name} has scores but no probabilities, so it cannot be sampled; use --play topk."
            )
        if self.k > policy.n_items:
            raise InputError(
                f"{policy.name} knows only {policy.n_items} items, but a list has {self.k}; use a smaller k."
            )
        self.to_policy = torch.full((dynamics.items.n_items + 1,), policy.n_items, device=policy.device)
        self.to_policy[self.to_shop] = torch.arange(policy.n_items, device=policy.device)

    @property
    def rows_at_once(self) -> int:
        """Sessions per batch of lists."""
        return GPU_ROWS if self.policy.device.type == "cuda" else ROWS

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        self.states = self.policy.start_sessions(sessions)
        self.lists = torch.full((sessions, self.k), self.policy.n_items, device=self.policy.device)

    @torch.no_grad()
    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random = generator(self.seed, Purpose.LISTS, step, self.policy.device)
        lists = []
        rows = rows.to(self.policy.device)
        for part in torch.split(rows, self.rows_at_once):
            head = self.states.head(part)
            lists.append(sample_k(head, self.k, random) if self.play == "sample" else top_k(head, self.k)[1])
        self.lists = torch.cat(lists)
        return self.to_shop[self.lists].to(self.dynamics.device)

    @torch.no_grad()
    def observe(self, rows: Tensor, item: Tensor) -> None:
        item = self.to_policy[item.to(self.policy.device)]
        self.states.observe(rows.to(self.policy.device), self.lists, item)


def shop_items(policy: Policy, n_items: int) -> Tensor:
    """Return the shop's index of each item of a policy."""
    vocabulary = policy.vocabulary
    ids = [vocabulary.id(index) for index in range(len(vocabulary))]
    unknown = next((item_id for item_id in ids if not isinstance(item_id, int) or not 0 <= item_id < n_items), None)
    if unknown is not None:
        raise InputError(
            f"{policy.name} belongs to another catalogue: it has the item {unknown!r}, but the items of this shop are "
            f"0 to {n_items - 1}; simulate it in the shop that wrote its log."
        )
    return torch.tensor(ids, dtype=torch.long)
