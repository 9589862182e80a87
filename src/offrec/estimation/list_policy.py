"""How a policy is played, which is what an estimate speaks of: by drawing its lists, or by its best k; at all
decisions, or blended into the policy that logged: at each with a chance `blend`, and else the log's own policy decides.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue import Head, logsumexp, reduce, sample_k, top_k
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.types import Batch, Doubles

Play = Literal["sample", "topk"]

LITTLE = 1e-3  # where less than this share is left to draw from, it is summed up anew: 1 − Σ would lose its digits


@dataclass(frozen=True)
class ListPolicy:
    policy: Policy
    play: Play = "sample"
    k: int = 1
    temperature: float = 1.0
    blend: float = 1.0

    def __post_init__(self) -> None:
        name = self.policy.name
        if self.play not in get_args(Play):
            raise InputError(f"A policy cannot be played by {self.play!r}; there are {', '.join(get_args(Play))}.")
        if self.play == "sample" and not self.policy.stochastic:
            raise InputError(f"{name} gives scores, not chances, so it cannot be sampled; judge it by --play topk.")
        if not self.temperature > 0:
            raise InputError(f"The temperature is {self.temperature}; it must be above 0.")
        if self.play == "topk" and self.temperature != 1:
            raise InputError("A temperature does not change a policy's best k; leave it out, or --play sample.")
        if not 0 < self.blend <= 1:
            raise InputError(f"The blend is {self.blend}; it is a share of the decisions, above 0 and at most 1.")
        if self.play == "topk" and self.blend < 1:
            raise InputError(f"{name} is played by its best k and has no weights, so no blend of it can be judged.")
        if not 1 <= self.k <= self.policy.n_items:
            raise InputError(
                f"Lists of {self.k} items cannot be made of a catalogue of {self.policy.n_items}; give another k."
            )

    @property
    def exact(self) -> bool:
        """Are expectations taken without drawing?"""
        return self.play == "topk" or self.k == 1

    def head(self, batch: Batch) -> Head:
        head = self.policy.head(batch)
        return head if self.temperature == 1 else head.scale(1 / self.temperature)

    def blended(self, log_pi: Doubles, log_b: Doubles) -> Doubles:
        """[D] log of blend · π + (1 − blend) · b, of what π and b are known of."""
        if self.blend == 1:
            return log_pi
        return np.asarray(np.logaddexp(np.log(self.blend) + log_pi, np.log1p(-self.blend) + log_b))

    def expect(self, head: Head, q: Head, generator: torch.Generator | None = None) -> Tensor:
        """[B] E[mean of q over the list shown]; a longer list that is drawn is drawn once."""
        if self.play == "topk":
            return q.at(top_k(head, self.k)[1]).mean(1)
        if self.k == 1:
            return reduce(head, [(1.0, q)]).mean
        assert generator is not None
        return q.at(sample_k(head, self.k, generator)).mean(1)


def log_prob_of_lists(head: Head, lists: Tensor, whole: Tensor | None = None) -> Tensor:
    """[B] log probability of ordered lists [B, K] drawn without replacement from softmax(z), in double precision.

        log π(l₁) + Σ_j [z(l_j) − log(Σ_a e^{z(a)} − Σ_{i<j} e^{z(l_i)})]        Plackett and Luce

    Lists that are shorter are padded with n_items at the right. `whole`: log Σ_a e^{z(a)} [B], where it is known.
    """
    inside = lists < head.n_items
    z = head.at(lists.clamp(max=head.n_items - 1)).double()
    whole = (logsumexp(head) if whole is None else whole).double()[:, None]
    share = torch.where(inside, (z - whole).exp(), 0.0)
    left = 1 - (share.cumsum(1) - share)
    rest = whole + left.clamp(min=LITTLE).log()
    for place in range(1, lists.shape[1]):
        if bool((left[:, place] < LITTLE).any()):
            rest[:, place] = logsumexp(head.mask(lists[:, :place])).double()
    return torch.where(inside, z - rest, 0.0).sum(1)
