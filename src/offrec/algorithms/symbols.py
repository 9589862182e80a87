"""The learner interface: the symbols that its equations read and the needs that it declares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor

from offrec.catalogue import Head, Noise

S = TypeVar("S")
T = TypeVar("T")

LossTerms = dict[str, Tensor]  # name → [B]; an update minimises the sum of the means; terms named "~…" are only logged


class _Absent:
    """A symbol that the learner did not declare; reading anything of it fails with the remedy."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this symbol is not declared; add it to the learner's `needs` before reading .{name}")

    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()


class Scheduler(Protocol):
    """Runs independent parts of a loss, so that the equations do not depend on the device."""

    def run_concurrently(self, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
        """Run two independent functions and return both results."""
        ...

    def run_independently(self, work: Callable[[], T]) -> T:
        """Run a function whose backward pass does not depend on the other terms of the loss."""
        ...


class InOrder:
    """Runs the parts of a loss one after the other."""

    def run_concurrently(self, first: Callable[[], S], second: Callable[[], T]) -> tuple[S, T]:
        """Run two functions and return both results."""
        return first(), second()

    def run_independently(self, work: Callable[[], T]) -> T:
        """Run a function."""
        return work()


IN_ORDER = InOrder()


@dataclass(frozen=True)
class NeighbourMasses:
    """Log of the masses that neighbours of the last items add to π, without the event's own session."""

    logged: Tensor  # [B] of the logged item
    total: Tensor  # [B] of all items


@dataclass(frozen=True)
class Symbols:
    """The symbols of the equations, for one batch.

    Rewards and returns are divided by `LogFacts.unit`, so that temperatures do not depend on the unit of rewards.
    """

    pi: Head  # π(·|s)
    actions: Tensor  # [B, 1 + n] the logged item, then n unlogged ones
    rewards: Tensor  # [B, 1 + n]
    discounts: Tensor  # [B, 1 + n] γ, or 0 at the end of the session; always γ for unlogged items
    return_to_go: Tensor  # [B] discounted return
    next_return_to_go: Tensor = ABSENT  # [B] discounted return from s′ on; 0 at the end of the session
    weight: Tensor | None = None  # [B] each row's weight in the batch's mean
    q: Head = ABSENT  # Q(s,·)
    next_pi: Head = ABSENT  # π(·|s′)
    next_q: Head = ABSENT  # Q̄(s′,·), by the target network
    target_q: Head = ABSENT  # Q̄(s,·), if the batch has unlogged items
    next_online_q: Head = ABSENT  # Q(s′,·)
    b: Head = ABSENT  # π̂_b(·|s)
    next_b: Head = ABSENT  # π̂_b(·|s′)
    log_b: Tensor = ABSENT  # [B] log π̂_b(a|s) of the logged item, or its logged propensity
    neighbours: "NeighbourMasses" = ABSENT  # the masses that are added to π
    noise: Noise = ABSENT  # for samples at s
    next_noise: Noise = ABSENT  # for samples at s′
    multiplier: Tensor = ABSENT  # [] Lagrange multiplier
    updates: Tensor = ABSENT  # [] number of updates so far
    ground_weight: float = 1.0  # weight of the unlogged items in the critic's loss
    returns: float = 0.0  # λ: share of the logged return in the critic's target
    scheduler: Scheduler = IN_ORDER

    @property
    def logged(self) -> Tensor:
        """[B, 1] the logged items."""
        return self.actions[:, :1]

    @property
    def grounded(self) -> bool:
        """Whether the batch has unlogged items."""
        return self.actions.shape[1] > 1


@dataclass(frozen=True)
class Multiplier:
    """A Lagrange multiplier that grows while the mean of a term exceeds `bound`."""

    term: str  # name of the term
    bound: float
    init: float
    rate: float


@dataclass(frozen=True)
class Needs:
    """The networks and symbols that a learner needs. The agent builds and computes nothing else."""

    actor: bool = True
    """A network for π."""
    critic: Literal["none", "own", "shared"] = "none"
    """own: a separate network for Q. shared: a second head on the actor's backbone."""
    logging: Literal["none", "values", "logged", "here", "next", "own"] = "none"
    """π̂_b. values: log π̂_b of the logged items. logged: their log propensities, which the log contains. here: its head
    at s. next: its heads at s and s′. own: a second head on the actor's state, trained with it."""
    online_next: bool = False
    """Q at s′, in addition to the target network's Q̄ (double Q)."""
    noise: bool = False
    """Noise for samples from π."""
    multiplier: Multiplier | None = None
    """An adaptive Lagrange multiplier."""
    unlogged: bool = False
    """At least one unlogged item per transition (`critic.ground`)."""
    updates: bool = False
    """The number of updates so far, for losses that change during training."""
    start: bool = False
    """Start the actor with the weights of π̂_b."""
    critic_start: float = 0.0
    """Start the critic with the scores of π̂_b times this factor; 0: random weights."""
    ranks: Literal["actor", "critic"] = "actor"
    """The network that ranks the items."""
    temperature: float | None = None
    """α of softmax(Q/α), if the critic ranks as a distribution."""
    with_prior: bool = False
    """Whether a critic that ranks is multiplied by the prior: rank by π̂_b exp(Q/α)."""
    min_probability: float = 0.0
    """Rank only items with at least this π̂_b; 0 ranks all."""
    neighbours: int = 0
    """Number of neighbours per item that the actor's policy adds; 0: none."""
    weights_by_reward: bool = False
    """Whether rewards are the weights of events. Negative rewards are then refused."""


class Learner(Protocol):
    """A frozen dataclass of hyperparameters that defines a loss. It has no state and builds no networks."""

    @property
    def needs_reward(self) -> bool:
        """Whether the loss reads rewards."""
        ...

    @property
    def needs(self) -> Needs:
        """The networks and symbols that `loss` reads."""
        ...

    def loss(self, x: Symbols) -> LossTerms:
        """Return the loss terms, one number per transition."""
        ...
