"""What a learner sees, and what it declares that it needs. In tests a plain namespace of small heads does as well."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from offrec.catalogue import Head

Terms = dict[str, Tensor]  # name → [B]; the update minimises the sum of their means


@dataclass(frozen=True)
class Symbols:
    pi: Head  # π(·|s)
    actions: Tensor  # [B, 1] the logged item
    rewards: Tensor  # [B, 1]
    discounts: Tensor  # [B, 1]
    to_go: Tensor  # [B]


class Learner(Protocol):
    """A frozen dataclass of hyper-parameters. It holds no state and builds nothing."""

    @property
    def needs_reward(self) -> bool: ...

    def loss(self, x: Symbols) -> Terms: ...
