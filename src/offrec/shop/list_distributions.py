"""Distributions over lists: ways of exploring, with the exact probability of every list.

All distributions fill a list from the first place to the last, so the probability of a list is a product of
P(item at place j | items before it). For a list ℓ:

    best list         1 for the policy's best k items in order, 0 for every other list
    softmax           Plackett–Luce: items sampled without replacement from softmax(z / T)
    sampled places    j random places are sampled; the best k − j items fill the others in order
    blend             ε · P_previous(ℓ) + (1 − ε) · P_new(ℓ), whichever of the two made the list

Items are numbered as in the shop, and lists have one row per visitor.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from offrec.catalogue import Head, logsumexp
from offrec.catalogue.lists import position_log_probs, sample_lists
from offrec.shop.logging_policy import Mixture, draw_lists, propensities


class ListDistribution(Protocol):
    """A distribution over lists for each of n visitors."""

    def draw(self, random: torch.Generator) -> Tensor:
        """Sample a list per visitor, [n, k]. The generator is on the CPU."""
        ...

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] log-probability of each item of lists [n, k], given the items before it; −∞ if it is impossible."""
        ...


@dataclass(frozen=True)
class LoggingLists:
    """The lists of the shop's logging policy."""

    mixture: Mixture
    k: int

    def draw(self, random: torch.Generator) -> Tensor:
        """Sample a list per visitor, [n, k]."""
        return draw_lists(self.mixture, self.k, random)

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] log-probability of each item, given the items before it."""
        return propensities(self.mixture, lists).log()


@dataclass(frozen=True)
class BestLists:
    """One certain list per visitor."""

    lists: Tensor  # [n, k]

    def draw(self, random: torch.Generator) -> Tensor:
        """Return the lists."""
        return self.lists

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] 0 for items of the lists and −∞ for all others."""
        certain = torch.zeros(lists.shape, dtype=torch.double, device=lists.device)
        return certain.masked_fill(lists != self.lists, -math.inf)


@dataclass(frozen=True)
class SoftmaxLists:
    """Items sampled without replacement from softmax(z / T) of a policy, which can be on another device than lists."""

    head: Head  # in the policy's numbering
    k: int
    temperature: float
    to_shop: Tensor  # [A of the policy]
    to_policy: Tensor  # [A of the shop + 1]; items that the policy does not know have its n_items
    device: torch.device  # of lists

    def draw(self, random: torch.Generator) -> Tensor:
        """Sample a list per visitor, [n, k]."""
        device = self.head.state.device
        temperature = torch.full((self.head.n_rows,), self.temperature, dtype=torch.double, device=device)
        items = sample_lists(self.head, self.k, temperature, _on_device(random, device)).items
        return self.to_shop[items].to(self.device)

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] log-probability of each item, given the items before it."""
        items = self.to_policy[lists.to(self.to_policy.device)]
        others = logsumexp(self.head.scale(1 / self.temperature).mask(items)).double()
        values = self.head.at(items.clamp(max=self.head.n_items - 1)).double() / self.temperature
        return position_log_probs(values.masked_fill(items == self.head.n_items, -math.inf), others).to(self.device)


@dataclass(frozen=True)
class UniformLists:
    """Items sampled uniformly from the catalogue, without replacement and without excluded items."""

    n_items: int
    excluded: Tensor  # [n, e] distinct items
    k: int

    def draw(self, random: torch.Generator) -> Tensor:
        """Sample a list per visitor, [n, k]."""
        n, taken = len(self.excluded), self.excluded
        for _ in range(self.k):
            item = taken.new_zeros(n)
            missing = torch.arange(n, device=taken.device)
            while len(missing):
                uniform = torch.rand(len(missing), generator=random, dtype=torch.double).to(taken.device)
                item[missing] = (uniform * self.n_items).long()
                missing = missing[(taken[missing] == item[missing, None]).any(1)]
            taken = torch.cat([taken, item[:, None]], 1)
        return taken[:, self.excluded.shape[1] :]

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] log-probability of each item, given the items before it."""
        left = self.n_items - self.excluded.shape[1] - torch.arange(lists.shape[1], device=lists.device)
        impossible = (lists[:, :, None] == self.excluded[:, None, :]).any(2)
        impossible = impossible | (lists[:, :, None] == lists[:, None, :]).tril(-1).any(2)
        return -left.double().log().expand(lists.shape).masked_fill(impossible, math.inf)


@dataclass(frozen=True)
class SampledPlaces:
    """The best items in order, with other items sampled into randomly chosen places.

    Sampled items are never among the best items, so a list shows which of its places were sampled.
    """

    best: Tensor  # [n, k − j]
    sampled: ListDistribution  # of j items, none of them in `best`
    j: int

    @property
    def k(self) -> int:
        """The length of lists."""
        return self.best.shape[1] + self.j

    def draw(self, random: torch.Generator) -> Tensor:
        """Sample a list per visitor, [n, k]."""
        n = len(self.best)
        order = torch.rand(n, self.k, generator=random).to(self.best.device).argsort(1)
        is_sampled = order < self.j
        lists = self.best.new_zeros(n, self.k)
        lists[is_sampled] = self.sampled.draw(random).flatten()
        lists[~is_sampled] = self.best.flatten()
        return lists

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] log-probability of each item, given the items before it."""
        is_best = (lists[:, :, None] == self.best[:, None, :]).any(2)
        sampled_before = (~is_best).long().cumsum(1) - (~is_best).long()
        place = torch.arange(self.k, device=lists.device).expand(lists.shape)
        left, sampled_left = self.k - place, (self.j - sampled_before).clamp(min=0)
        share = sampled_left.double() / left  # probability that this place is sampled
        by_rank = _at(self.best, place - sampled_before) == lists
        fixed = torch.where(by_rank, torch.log1p(-share), -math.inf)
        sequence = lists.gather(1, is_best.long().argsort(dim=1, stable=True))[:, : self.j]
        filled = share.log() + _at(self.sampled.log_probs(sequence), sampled_before)
        return torch.where(is_best, fixed, filled)


@dataclass(frozen=True)
class BlendedLists:
    """Each list comes from the previous distribution with probability `share`, otherwise from the new one."""

    previous: ListDistribution
    new: ListDistribution
    share: float

    def draw(self, random: torch.Generator) -> Tensor:
        """Sample a list per visitor, [n, k]."""
        previous, new = self.previous.draw(random), self.new.draw(random)
        from_previous = torch.rand(len(new), generator=random, dtype=torch.double).to(new.device) < self.share
        return torch.where(from_previous[:, None], previous, new)

    def log_probs(self, lists: Tensor) -> Tensor:
        """[n, k] log-probability of each item, given the items before it: a ratio of probabilities of beginnings."""
        previous, new = (one.log_probs(lists).cumsum(1) for one in (self.previous, self.new))
        begins = torch.logaddexp(math.log(self.share) + previous, math.log1p(-self.share) + new)
        before = torch.nn.functional.pad(begins[:, :-1], (1, 0))
        return (begins - before).masked_fill(begins == -math.inf, -math.inf)


def _at(table: Tensor, place: Tensor) -> Tensor:
    """[n, k] entries of table [n, m] at places [n, k]; places beyond the table get an entry that has no effect."""
    if not table.shape[1]:
        return table.new_full(place.shape, -1)
    return table.gather(1, place.clamp(0, table.shape[1] - 1))


def _on_device(random: torch.Generator, device: torch.device) -> torch.Generator:
    """Return a generator on a device, seeded by one on the CPU."""
    if device.type == "cpu":
        return random
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, (1,), generator=random)))
