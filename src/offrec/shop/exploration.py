"""How a trained policy explores while it writes a log of the shop."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from offrec.catalogue import Head, top_k
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop.list_distributions import (
    BestLists,
    BlendedLists,
    ListDistribution,
    LoggingLists,
    SampledPlaces,
    SoftmaxLists,
    UniformLists,
)
from offrec.shop.logging_policy import mixture
from offrec.shop.players import PolicyPlayer
from offrec.shop.randomness import Purpose, generator
from offrec.shop.recording import ListRecorder
from offrec.shop.visitors import Dynamics, Visitors

ExploringPlay = Literal["topk", "sample", "blend"]
PlacesFrom = Literal["catalogue", "policy"]
SHARE = 0.1  # of a blend


@dataclass(frozen=True)
class Exploration:
    """A way of exploring.

    Args:
        play: `topk` shows the best k items, `sample` samples the list without replacement from softmax(z / T), and
            `blend` shows the best k items or, with probability `share`, a list of the previous policy.
        temperature: T, for `sample` and for places that are sampled from the policy.
        places: For `topk` and `blend`: how many places of the policy's list, chosen at random, are sampled.
        places_from: Whether places are sampled uniformly from the catalogue or from the policy's softmax.
        share: For `blend`: the probability that the previous policy makes the list.

    Raises:
        InputError: If a value is out of range or has no effect.
    """

    play: ExploringPlay = "topk"
    temperature: float = 1.0
    places: int = 0
    places_from: PlacesFrom = "catalogue"
    share: float = SHARE

    def __post_init__(self) -> None:
        if self.play not in get_args(ExploringPlay):
            raise InputError(f"--play must be one of {', '.join(get_args(ExploringPlay))}; got {self.play!r}.")
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"--temperature must be positive and finite; got {self.temperature:g}.")
        if self.places < 0:
            raise InputError(f"--places must be at least 0; got {self.places}.")
        if self.play == "sample" and self.places:
            raise InputError("--places cannot be used with --play sample, which samples all places; remove it.")
        if self.places_from not in get_args(PlacesFrom):
            known = ", ".join(get_args(PlacesFrom))
            raise InputError(f"--places-from must be one of {known}; got {self.places_from!r}.")
        if not 0 < self.share < 1:
            raise InputError(f"--share must be between 0 and 1, both excluded; got {self.share:g}.")
        for flag, is_given, has_effect in (
            ("--temperature", self.temperature != 1, self.reads_probabilities),
            ("--places-from", self.places_from != "catalogue", self.places > 0),
            ("--share", self.share != SHARE, self.play == "blend"),
        ):
            if is_given and not has_effect:
                places = f" and --places {self.places}" if self.play != "sample" else ""
                raise InputError(f"{flag} has no effect with --play {self.play}{places}; remove it.")

    @property
    def is_random(self) -> bool:
        """Whether a list can differ from the policy's best list."""
        return self.play != "topk" or self.places > 0

    @property
    def reads_probabilities(self) -> bool:
        """Whether the policy must have probabilities."""
        return self.play == "sample" or (self.places > 0 and self.places_from == "policy")


class ExploringPlayer(PolicyPlayer):
    """Plays a policy that explores, and records the propensities of its lists.

    Args:
        dynamics: The shop's equations and items.
        policy: The policy.
        exploration: How it explores.
        skip_recent: How many of the visitor's last picks rank below all other items.
        previous: The previous policy of a blend; None for the shop's logging policy. It samples its lists if it has
            probabilities, otherwise it shows its best items.
        recorder: Records lists and propensities, if given.

    Raises:
        InputError: If the policy or the length of lists does not allow this way of exploring.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        policy: Policy,
        exploration: Exploration,
        skip_recent: int = 0,
        previous: PolicyPlayer | None = None,
        recorder: ListRecorder | None = None,
    ) -> None:
        if exploration.reads_probabilities and not policy.stochastic:
            raise InputError(
                f"{policy.name} only ranks items, so it has no probabilities to sample from; use a blend, or sample "
                "places from the catalogue."
            )
        if exploration.places > dynamics.world.k:
            raise InputError(
                f"The number of sampled places must be at most {dynamics.world.k}, the length of lists; got "
                f"{exploration.places}."
            )
        super().__init__(dynamics, policy, "sample" if exploration.play == "sample" else "topk", skip_recent)
        self.play = exploration.play
        self.exploration, self.previous, self.recorder = exploration, previous, recorder

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        if self.previous is not None:
            self.previous.begin(sessions, seed)

    @torch.no_grad()
    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random, lists = generator(self.seed, Purpose.LISTS, step), []
        for first in range(0, len(rows), self.rows_at_once):
            part = slice(first, first + self.rows_at_once)
            distribution = self.distribution(visitors[part], rows[part])
            lists.append(distribution.draw(random))
            if self.recorder is not None:
                probability = distribution.log_probs(lists[-1]).exp().clamp(max=1.0)  # rounding can exceed 1
                self.recorder.record_lists(lists[-1], probability)
        shown = torch.cat(lists)
        for player in (self, self.previous):
            if player is not None:
                player.lists = player.to_policy[shown.to(player.policy.device)]
        return shown

    def distribution(self, visitors: Visitors, rows: Tensor) -> ListDistribution:
        """Return the distribution over lists for the visitors [n] of the sessions `rows`."""
        own = self._own_lists(self.states.head(rows.to(self.policy.device)))
        if self.exploration.play != "blend":
            return own
        return BlendedLists(self._previous_lists(visitors, rows), own, self.exploration.share)

    def _own_lists(self, head: Head) -> ListDistribution:
        options = self.exploration
        if options.play == "sample":
            return self._softmax_lists(head, self.k)
        best = top_k(head, self.k - options.places)[1] if options.places < self.k else None
        in_shop = self._in_shop(best, head.n_rows)
        if not options.places:
            return BestLists(in_shop)
        sampled: ListDistribution = UniformLists(self.dynamics.items.n_items, in_shop, options.places)
        if options.places_from == "policy":
            sampled = self._softmax_lists(head if best is None else head.mask(best), options.places)
        return SampledPlaces(in_shop, sampled, options.places)

    def _in_shop(self, items: Tensor | None, rows: int) -> Tensor:
        empty = torch.zeros(rows, 0, dtype=torch.long, device=self.dynamics.device)
        return empty if items is None else self.to_shop[items].to(self.dynamics.device)

    def _softmax_lists(self, head: Head, k: int) -> SoftmaxLists:
        return SoftmaxLists(head, k, self.exploration.temperature, self.to_shop, self.to_policy, self.dynamics.device)

    def _previous_lists(self, visitors: Visitors, rows: Tensor) -> ListDistribution:
        if self.previous is None:
            return LoggingLists(mixture(self.dynamics, visitors), self.k)
        head = self.previous.states.head(rows.to(self.previous.policy.device))
        if self.previous.policy.stochastic:
            previous = self.previous
            return SoftmaxLists(head, self.k, 1.0, previous.to_shop, previous.to_policy, self.dynamics.device)
        return BestLists(self.previous.to_shop[top_k(head, self.k)[1]].to(self.dynamics.device))

    def observe(self, rows: Tensor, item: Tensor) -> None:
        super().observe(rows, item)
        if self.previous is not None:
            self.previous.observe(rows, item)
