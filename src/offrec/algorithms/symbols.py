"""What a learner sees, and what it declares that it needs. In tests a plain namespace of small heads does as well."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor

from offrec.catalogue import Head, Noise

S = TypeVar("S")
T = TypeVar("T")

LossTerms = dict[str, Tensor]  # name → [B]; the update minimises the sum of their means. "~name": only logged

ABSENT: Any = None  # a learner that reads what it did not declare fails at once


class Scheduler(Protocol):
    """Decides how independent parts of a loss are run, so that the equations need not know the device."""

    def run_concurrently(self, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
        """Run two functions that do not depend on each other; return both results."""
        ...

    def run_apart(self, work: Callable[[], T]) -> T:
        """Run a function whose backward pass does not depend on the other terms of the loss."""
        ...


class InOrder:
    """Runs the parts of a loss one after the other."""

    def run_concurrently(self, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
        """Run two functions; return both results."""
        return first(), second()

    def run_apart(self, work: Callable[[], T]) -> T:
        """Run a function."""
        return work()


IN_ORDER = InOrder()


@dataclass(frozen=True)
class Symbols:
    """Rewards are in units of `LogFacts.unit`, so temperatures need not know the units of the log."""

    pi: Head  # π(·|s)
    actions: Tensor  # [B, 1 + n] the logged item, then n unlogged ones
    rewards: Tensor  # [B, 1 + n]
    discounts: Tensor  # [B, 1 + n] γ, or 0 where the session ends; always γ for the unlogged
    return_to_go: Tensor  # [B] discounted return
    next_return_to_go: Tensor = ABSENT  # [B] the same from s′ on; 0 where the session ends
    weight: Tensor = ABSENT  # [B] each row's share of the batch's mean
    q: Head = ABSENT  # Q(s,·)
    next_pi: Head = ABSENT  # π(·|s′)
    next_q: Head = ABSENT  # Q̄(s′,·), the target network's
    q_if_ignored: Head = ABSENT  # Q̄(s,·), where there are unlogged items
    next_online_q: Head = ABSENT  # Q(s′,·)
    b: Head = ABSENT  # π̂_b(·|s)
    next_b: Head = ABSENT  # π̂_b(·|s′)
    log_b: Tensor = ABSENT  # [B] log π̂_b(a|s) of the logged item
    noise: Noise = ABSENT  # at s
    next_noise: Noise = ABSENT  # at s′
    multiplier: Tensor = ABSENT  # 0-d
    ground_weight: float = 1.0  # of the unlogged items in the critic's loss
    returns: float = 0.0  # λ: share of the logged return in the critic's target
    scheduler: Scheduler = IN_ORDER

    @property
    def logged(self) -> Tensor:
        """[B, 1] the logged item alone."""
        return self.actions[:, :1]

    @property
    def grounded(self) -> bool:
        return self.actions.shape[1] > 1


@dataclass(frozen=True)
class Multiplier:
    """A Lagrange multiplier that grows while the mean of a term exceeds `bound`."""

    of: str  # the term it watches
    bound: float
    init: float
    rate: float


@dataclass(frozen=True)
class Needs:
    """What must be there before training. Nothing else is built or computed."""

    actor: bool = True
    critic: Literal["none", "own", "shared"] = "none"
    """A network of its own, or a second head on the actor's backbone."""
    logging: Literal["none", "values", "here", "next", "own"] = "none"
    """π̂_b: at logged items only; its head at s; at s and s′; a second head on the actor's own state."""
    online_next: bool = False
    """The critic itself, not only its target, at s′ (double Q)."""
    noise: bool = False
    multiplier: Multiplier | None = None
    start: bool = False
    """The actor starts from π̂_b's weights."""
    critic_start: float = 0.0
    """The critic starts as this times π̂_b's scores; 0: from random weights."""
    ranks: Literal["actor", "critic"] = "actor"
    temperature: float | None = None
    """Of softmax(Q/α), where the critic ranks and is a distribution."""
    with_prior: bool = False
    """Where the critic ranks: by π̂_b exp(Q/α)."""
    within: float = 0.0
    """Rank only items with π̂_b ≥ this."""


class Learner(Protocol):
    """A frozen dataclass of hyper-parameters. It holds no state and builds nothing."""

    @property
    def needs_reward(self) -> bool: ...

    @property
    def needs(self) -> Needs: ...

    def loss(self, x: Symbols) -> LossTerms: ...
