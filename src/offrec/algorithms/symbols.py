"""The interface of a learner: the symbols its equations read, and the needs it declares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor

from offrec.catalogue import Head, Noise

S = TypeVar("S")
T = TypeVar("T")

LossTerms = dict[str, Tensor]  # name → [B]; an update minimises the sum of their means; terms "~name" are only logged

ABSENT: Any = None  # reading a symbol that was not declared in `Needs` fails at once


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
    """The symbols of the equations, for one batch.

    Rewards and returns are divided by `LogFacts.unit`, so that temperatures do not depend on the log's units.
    """

    pi: Head  # π(·|s)
    actions: Tensor  # [B, 1 + n] the logged item, then n unlogged ones
    rewards: Tensor  # [B, 1 + n]
    discounts: Tensor  # [B, 1 + n] γ, or 0 at the end of the session; always γ for unlogged items
    return_to_go: Tensor  # [B] discounted return
    next_return_to_go: Tensor = ABSENT  # [B] the same from s′ on; 0 at the end of the session
    weight: Tensor = ABSENT  # [B] each row's weight in the batch's mean
    q: Head = ABSENT  # Q(s,·)
    next_pi: Head = ABSENT  # π(·|s′)
    next_q: Head = ABSENT  # Q̄(s′,·), by the target network
    q_if_ignored: Head = ABSENT  # Q̄(s,·), if there are unlogged items
    next_online_q: Head = ABSENT  # Q(s′,·)
    b: Head = ABSENT  # π̂_b(·|s)
    next_b: Head = ABSENT  # π̂_b(·|s′)
    log_b: Tensor = ABSENT  # [B] log π̂_b(a|s) of the logged item
    noise: Noise = ABSENT  # of the samples at s
    next_noise: Noise = ABSENT  # of the samples at s′
    multiplier: Tensor = ABSENT  # [] Lagrange multiplier
    ground_weight: float = 1.0  # of the unlogged items in the critic's loss
    returns: float = 0.0  # λ: share of the logged return in the critic's target
    scheduler: Scheduler = IN_ORDER

    @property
    def logged(self) -> Tensor:
        """[B, 1] the logged items."""
        return self.actions[:, :1]

    @property
    def grounded(self) -> bool:
        """Whether there are unlogged items."""
        return self.actions.shape[1] > 1


@dataclass(frozen=True)
class Multiplier:
    """A Lagrange multiplier that grows while the mean of a term exceeds `bound`."""

    of: str  # name of the term
    bound: float
    init: float
    rate: float


@dataclass(frozen=True)
class Needs:
    """What a learner needs. The agent builds and computes nothing else."""

    actor: bool = True
    """A network for π."""
    critic: Literal["none", "own", "shared"] = "none"
    """own: a separate network for Q. shared: a second head on the actor's backbone."""
    logging: Literal["none", "values", "here", "next", "own"] = "none"
    """π̂_b. values: log π̂_b of the logged items. here: its head at s. next: its heads at s and s′. own: a second head
    on the actor's state, trained with it."""
    online_next: bool = False
    """Q at s′, next to the target network's Q̄ (double Q)."""
    noise: bool = False
    """Noise for samples from π."""
    multiplier: Multiplier | None = None
    """An adaptive Lagrange multiplier."""
    start: bool = False
    """The actor starts with the weights of π̂_b."""
    critic_start: float = 0.0
    """The critic starts as this factor times the scores of π̂_b; 0: random weights."""
    ranks: Literal["actor", "critic"] = "actor"
    """The network that recommends."""
    temperature: float | None = None
    """α of softmax(Q/α), if the critic ranks as a distribution."""
    with_prior: bool = False
    """If the critic ranks: rank by π̂_b exp(Q/α)."""
    within: float = 0.0
    """Rank only items with at least this π̂_b."""


class Learner(Protocol):
    """A frozen dataclass of hyper-parameters with one equation. It has no state and builds nothing."""

    @property
    def needs_reward(self) -> bool:
        """Whether the loss reads rewards."""
        ...

    @property
    def needs(self) -> Needs:
        """What `loss` reads."""
        ...

    def loss(self, x: Symbols) -> LossTerms:
        """Return the terms of the loss, one number per transition."""
        ...
