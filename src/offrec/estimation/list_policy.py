"""Define how a policy builds its lists, which determines what an estimate means.

A policy either samples its lists or shows its top k. It makes every decision, or it is blended with the logging policy:
each decision is then made by the policy with probability `blend` and by the logging policy otherwise.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from offrec.catalogue import Head, logsumexp, reduce, sample_k, top_k
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.types import Batch

Play = Literal["sample", "topk"]

MIN_REMAINING = 1e-3  # if less probability remains, 1 − Σ loses digits and the sum is computed again


@dataclass(frozen=True)
class ListPolicy:
    """A policy and how it builds its lists.

    Args:
        policy: The policy that scores the catalogue.
        play: "sample" to sample lists without replacement, "topk" to show the k best items.
        k: Items per list.
        temperature: Softmax temperature of sampled lists.
        blend: Share of the decisions that the policy makes; the logging policy makes the others.
        served_log: Whether most lists of the log are the policy's top k, so that weights by propensities are usable.

    Raises:
        InputError: If a value is out of range or is incompatible with `play`.
    """

    policy: Policy
    play: Play = "sample"
    k: int = 1
    temperature: float = 1.0
    blend: float = 1.0
    served_log: bool = False

    def __post_init__(self) -> None:
        name = self.policy.name
        if self.play not in get_args(Play):
            raise InputError(f"play must be one of {', '.join(get_args(Play))}; got {self.play!r}.")
        if self.play == "sample" and not self.policy.stochastic:
            raise InputError(f"{name} has scores but no probabilities, so it cannot be sampled; use --play topk.")
        if not self.temperature > 0:
            raise InputError(f"--temperature must be positive; got {self.temperature}.")
        if self.play == "topk" and self.temperature != 1:
            raise InputError("--temperature has no effect on the top k; omit it or use --play sample.")
        if not 0 < self.blend <= 1:
            raise InputError(f"--blend must be above 0 and at most 1; got {self.blend}.")
        if not 1 <= self.k <= self.policy.n_items:
            raise InputError(
                f"k must be between 1 and {self.policy.n_items}, the number of items in the catalogue; got {self.k}."
            )

    @property
    def has_weights(self) -> bool:
        """Whether the log's propensities can weight this policy by default."""
        return self.play == "sample" or self.served_log

    @property
    def is_exact(self) -> bool:
        """Whether expectations over lists are computed without sampling."""
        return self.play == "topk" or self.k == 1

    def head(self, batch: Batch) -> Head:
        """Return the policy's head at its temperature."""
        head = self.policy.head(batch)
        return head if self.temperature == 1 else head.scale(1 / self.temperature)

    def expected_value(self, head: Head, q: Head, generator: torch.Generator | None = None) -> Tensor:
        """[B] expectation of the mean q of a list; lists with more than one item are sampled once."""
        if self.play == "topk":
            return q.at(top_k(head, self.k)[1]).mean(1)
        if self.k == 1:
            return reduce(head, [(1.0, q)]).mean
        assert generator is not None
        return q.at(sample_k(head, self.k, generator)).mean(1)


def log_prob_of_lists(head: Head, lists: Tensor, lse: Tensor | None = None) -> Tensor:
    """[B] log probability of ordered lists [B, K] sampled without replacement from softmax(z), in double precision.

        log π(l₁) + Σ_j [z(l_j) − log(Σ_a e^{z(a)} − Σ_{i<j} e^{z(l_i)})]        (Plackett–Luce)

    Shorter lists are padded with n_items on the right. `lse`: log Σ_a e^{z(a)} [B], if it is known.
    """
    inside = lists < head.n_items
    z = head.at(lists.clamp(max=head.n_items - 1)).double()
    lse = (logsumexp(head) if lse is None else lse).double()[:, None]
    share = torch.where(inside, (z - lse).exp(), 0.0)
    remaining = 1 - (share.cumsum(1) - share)
    log_remaining = lse + remaining.clamp(min=MIN_REMAINING).log()
    for position in range(1, lists.shape[1]):
        if bool((remaining[:, position] < MIN_REMAINING).any()):
            log_remaining[:, position] = logsumexp(head.mask(lists[:, :position])).double()
    return torch.where(inside, z - log_remaining, 0.0).sum(1)
