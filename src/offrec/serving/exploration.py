"""Exploration of a server: sometimes a random list instead of the best one, with the exact probability of every list.

A blend shows the policy's best list with probability 1 − ε and a random list with probability ε. The random list has k
items sampled uniformly from N allowed items, or is sampled from another policy. So the probability of a list ℓ is

    P(ℓ) = (1 − ε) · 1[ℓ is the best list] + ε · R(ℓ)        uniformly: R(ℓ) = 1 / (N (N − 1) … (N − k + 1))

whichever of the two made the list. Policies without probabilities, such as the user model, can then be estimated and
learned from, because every list has a positive probability.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.catalogue import Head, restrict
from offrec.errors import InputError
from offrec.shop.list_distributions import BestLists, BlendedLists, SoftmaxLists, UniformLists


@dataclass(frozen=True)
class Blend:
    """A blend of the best list and a random one.

    Attributes:
        share: ε, the probability of a random list.
        policy: The name of the policy that random lists are sampled from; None to sample uniformly.
    """

    share: float
    policy: str | None = None

    def __str__(self) -> str:
        """Return the blend as in --explore, for the decision log."""
        return f"blend:{self.share:g}" + (f":{self.policy}" if self.policy else "")

    def sample(
        self, best: Tensor, n_items: int, pool: Tensor | None, random: torch.Generator, other: Head | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample one list.

        Args:
            best: [k] the best list.
            n_items: The size of the catalogue.
            pool: [N] the allowed items, ascending, of which `best` is a part; None for the whole catalogue.
            random: A generator on the CPU.
            other: The head of the policy that random lists are sampled from, with one row; None to sample uniformly.

        Returns:
            The list [k], and the log-probability [k] of each item given those before it.
        """
        if other is not None:
            return self._sample_from(other, best, pool, random)
        places = best if pool is None else torch.searchsorted(pool, best)
        count = n_items if pool is None else len(pool)
        uniform = UniformLists(count, places.new_zeros(1, 0), len(places))
        lists = BlendedLists(uniform, BestLists(places[None]), self.share)
        sampled = lists.draw(random)
        items = sampled[0] if pool is None else pool[sampled[0]]
        return items, lists.log_probs(sampled)[0].clamp(max=0.0)

    def _sample_from(
        self, other: Head, best: Tensor, pool: Tensor | None, random: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if pool is not None:
            allowed = torch.zeros(other.n_items, dtype=torch.bool)
            allowed[pool] = True
            other = restrict(other, allowed.to(other.state.device))
        same = torch.arange(other.n_items + 1, device=other.state.device)
        softmax = SoftmaxLists(other, len(best), 1.0, same[:-1], same, best.device)
        lists = BlendedLists(softmax, BestLists(best[None]), self.share)
        sampled = lists.draw(random)
        return sampled[0], lists.log_probs(sampled)[0].clamp(max=0.0)


def parse_explore(text: str, policies: Iterable[str] = ()) -> Blend | None:
    """Read the value of --explore.

    Args:
        text: `blend:SHARE` or `blend:SHARE:POLICY`; empty for no exploration.
        policies: The names of the served policies.

    Returns:
        The blend, or None.

    Raises:
        InputError: If the text has another form, the share is not between 0 and 1, or the policy is not served.
    """
    if not text:
        return None
    kind, _, rest = text.partition(":")
    value, _, policy = rest.partition(":")
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if kind != "blend" or not 0 < share < 1:
        raise InputError(
            f"--explore must be blend:SHARE with a share between 0 and 1, such as blend:0.1; got {text!r}."
        )
    if policy and policy not in (known := list(policies)):
        raise InputError(f"--explore names {policy!r}, which is not served; the policies are {', '.join(known)}.")
    return Blend(share, policy or None)
