"""Exploration of a server: sometimes a random list instead of the best one, with the exact probability of every list.

A blend shows the policy's best list with probability 1 − ε and k items sampled uniformly with probability ε. So the
probability of a list ℓ of k out of N allowed items is

    P(ℓ) = (1 − ε) · 1[ℓ is the best list] + ε / (N (N − 1) … (N − k + 1))

whichever of the two made the list. Policies without probabilities, such as the user model, can then be estimated and
learned from, because every list has a positive probability.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.errors import InputError
from offrec.shop.list_distributions import BestLists, BlendedLists, UniformLists


@dataclass(frozen=True)
class Blend:
    """A blend of the best list and a uniformly sampled one.

    Attributes:
        share: ε, the probability of a sampled list.
    """

    share: float

    def __str__(self) -> str:
        """Return the blend as in --explore, for the decision log."""
        return f"blend:{self.share:g}"

    def sample(self, best: Tensor, n_items: int, pool: Tensor | None, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample one list.

        Args:
            best: [k] the best list.
            n_items: The size of the catalogue.
            pool: [N] the allowed items, ascending, of which `best` is a part; None for the whole catalogue.
            random: A generator on the CPU.

        Returns:
            The list [k], and the log-probability [k] of each item given those before it.
        """
        places = best if pool is None else torch.searchsorted(pool, best)
        count = n_items if pool is None else len(pool)
        uniform = UniformLists(count, places.new_zeros(1, 0), len(places))
        lists = BlendedLists(uniform, BestLists(places[None]), self.share)
        sampled = lists.draw(random)
        items = sampled[0] if pool is None else pool[sampled[0]]
        return items, lists.log_probs(sampled)[0].clamp(max=0.0)


def parse_explore(text: str) -> Blend | None:
    """Read the value of --explore.

    Args:
        text: `blend:SHARE`; empty for no exploration.

    Returns:
        The blend, or None.

    Raises:
        InputError: If the text has another form, or the share is not between 0 and 1.
    """
    if not text:
        return None
    kind, _, value = text.partition(":")
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if kind != "blend" or not 0 < share < 1:
        raise InputError(
            f"--explore must be blend:SHARE with a share between 0 and 1, such as blend:0.1; got {text!r}."
        )
    return Blend(share)
