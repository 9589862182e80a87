"""Exact solutions for worlds with few states: identical visitors and lists of one item that is always picked.

A state is a memory; there are 1 + A + … + A^m states. With the expected reward r(s, a) and the memory s′ after a,

    Q(s, a) = r(s, a) + γ stay(s′) V(s′)

    optimal        V(s) = max_a Q(s, a)
    soft-optimal   V(s) = α log Σ_a prior(a|s) exp(Q(s, a) / α),   π(a|s) = prior(a|s) exp((Q(s, a) − V(s)) / α)
    given policy   V(s) = Σ_a π(a|s) Q(s, a)

The paper drops the uniform prior, which means prior = 1: every step then earns an additional α log A.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offrec.catalogue.reference import logits
from offrec.errors import InputError
from offrec.policy import Policy, batch_of_recent
from offrec.shop.items import make_items
from offrec.shop.logging_policy import mixture
from offrec.shop.players import Play, Player, shop_items
from offrec.shop.randomness import Purpose, generator
from offrec.shop.visitors import Dynamics, Visitors, sample_index
from offrec.shop.worlds import World

MAX_STATES = 5000
TOLERANCE = 1e-12  # relative change at which value iteration stops
Prior = Literal["kept", "dropped"]


@dataclass(frozen=True)
class Solution:
    """Values, action values and policy of an MDP."""

    values: Tensor  # [S]
    q: Tensor  # [S, A]
    policy: Tensor  # [S, A] probabilities

    @property
    def value(self) -> float:
        """The value of a new visitor: the expected reward per session."""
        return float(self.values[0])


@dataclass(frozen=True)
class TabularMDP:
    """The MDP of the visitors as tables, in double precision."""

    dynamics: Dynamics
    memory: Tensor  # [S, m] state 0 is the empty memory
    reward: Tensor  # [S, A] expected
    following: Tensor  # [S, A] the next state
    stay: Tensor  # [S, A] probability of not leaving

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of states and items."""
        states, items = self.reward.shape
        return states, items

    def optimal(self, gamma: float = 1.0) -> Solution:
        """Return the optimal policy and its values."""
        q = self._fixed_point(gamma, lambda q: q.amax(1))
        best = torch.zeros_like(q).scatter_(1, q.argmax(1, keepdim=True), 1.0)
        return Solution(q.amax(1), q, best)

    def soft_optimal(self, alpha: float, gamma: float = 1.0, prior: Tensor | Prior = "kept") -> Solution:
        """Return the policy that maximises reward minus α · KL(π ‖ prior).

        Args:
            alpha: The temperature.
            gamma: The discount factor.
            prior: Probabilities [S, A]; "kept" for the uniform prior; "dropped" for no prior, as in the paper.
        """
        if not alpha > 0:
            raise InputError(f"alpha must be positive; got {alpha} (use `optimal` for the limit 0).")
        states, items = self.shape
        if isinstance(prior, str):
            prior = self.reward.new_full((states, items), 1.0 if prior == "dropped" else 1.0 / items)
        log_prior = prior.log()
        q = self._fixed_point(gamma, lambda q: alpha * (log_prior + q / alpha).logsumexp(1), alpha)
        scores = log_prior + q / alpha
        return Solution(alpha * scores.logsumexp(1), q, scores.softmax(1))

    def evaluate_policy(self, policy: Tensor, gamma: float = 1.0) -> Solution:
        """Return the values of a policy [S, A], by solving V = Σ_a π (r + γ stay V′)."""
        _check_gamma(gamma)
        states, _ = self.shape
        transition = torch.zeros(states, states, dtype=torch.double)
        transition.scatter_add_(1, self.following, policy * gamma * self.stay)
        values = torch.linalg.solve(torch.eye(states, dtype=torch.double) - transition, (policy * self.reward).sum(1))
        return Solution(values, self.reward + gamma * self.stay * values[self.following], policy)

    def _fixed_point(self, gamma: float, backup: Callable[[Tensor], Tensor], scale: float = 0.0) -> Tensor:
        """Run value iteration. `scale` is the magnitude of terms other than Q in the backup; it limits precision."""
        _check_gamma(gamma)
        q = self.reward.clone()
        while True:
            after = self.reward + gamma * self.stay * backup(q)[self.following]
            if float((after - q).abs().max()) < TOLERANCE * (float(after.abs().max()) + scale):
                return after
            q = after

    def logging(self) -> Tensor:
        """[S, A] the probabilities of the logging policy."""
        all_items = torch.arange(self.shape[1]).expand(self.shape)
        return mixture(self.dynamics, self._visitors()).probability(all_items)

    def greedy(self) -> Tensor:
        """[S, A] the policy that offers the item with the highest utility."""
        all_items = torch.arange(self.shape[1]).expand(self.shape)
        best = self.dynamics.utility(self._visitors(), all_items).argmax(1, keepdim=True)
        return torch.zeros_like(self.reward).scatter_(1, best, 1.0)

    def policy_table(self, policy: Policy, play: Play = "topk") -> Tensor:
        """[S, A] the probabilities of a policy in each state; exact if the policy reads at most m items."""
        items = shop_items(policy, self.shape[1])
        to_policy = torch.full((self.shape[1] + 1,), policy.n_items)
        to_policy[items] = torch.arange(policy.n_items)
        recent = torch.full((self.shape[0], max(policy.history, self.memory.shape[1])), policy.n_items)
        recent[:, : self.memory.shape[1]] = to_policy[self.memory]
        with torch.no_grad():
            head = policy.head(batch_of_recent(recent[:, : policy.history].to(policy.device), policy.n_items))
        z = logits(head).double().cpu()
        probabilities = z.softmax(1) if play == "sample" else torch.eye(policy.n_items, dtype=torch.double)[z.argmax(1)]
        return torch.zeros_like(self.reward).index_copy_(1, items, probabilities)

    def _visitors(self) -> Visitors:
        return _visitors_with(self.dynamics, self.memory)


def _visitors_with(dynamics: Dynamics, memory: Tensor) -> Visitors:
    new = dynamics.arrive(len(memory), seed=0)
    return Visitors(new.taste, new.haste, memory)


def build_mdp(world: World, seed: int) -> TabularMDP:
    """Return the MDP of a world.

    Raises:
        InputError: If the world has too many states, visitors that differ from each other, or lists with more than one
            item.
    """
    a, m = world.items, world.memory
    states = sum(a**filled for filled in range(m + 1))
    if not world.one_visitor or world.k != 1 or world.none_utility is not None or states > MAX_STATES:
        raise InputError(
            f"The world {world.name!r} cannot be solved exactly: this needs identical visitors, lists of one item that "
            f"is always picked, and at most {MAX_STATES} states; use the world 'tiny'."
        )
    dynamics = Dynamics(world, make_items(world, seed, torch.device("cpu"), torch.double))
    filled = [torch.cartesian_prod(*[torch.arange(a)] * n).view(-1, n) for n in range(1, m + 1)]
    rows = [torch.nn.functional.pad(part, (0, m - part.shape[1]), value=a) for part in filled]
    memory = torch.cat([torch.full((1, m), a), *rows])
    all_items = torch.arange(a).expand(states, -1)
    reward = dynamics.expected_reward(_visitors_with(dynamics, memory), all_items)
    after = dynamics.remember(memory.repeat_interleave(a, 0), all_items.reshape(-1))
    leaving = dynamics.leaving(_visitors_with(dynamics, after), torch.ones(len(after), dtype=torch.bool))
    following = state_index(after, a).view(states, a)
    return TabularMDP(dynamics, memory, reward, following, 1 - leaving.view(states, a))


def state_index(memory: Tensor, items: int) -> Tensor:
    """[N] the rows of `TabularMDP.memory` that equal the memories [N, m]."""
    filled = (memory < items).sum(1)
    first = torch.tensor([sum(items**less for less in range(n)) for n in range(memory.shape[1] + 1)])
    number = torch.zeros_like(filled)
    for position in range(memory.shape[1]):
        number = torch.where(position < filled, number * items + memory[:, position], number)
    return first.to(memory.device)[filled] + number


class TabularPlayer(Player):
    """A policy given by probabilities [S, A] for the states of a `TabularMDP`."""

    def __init__(self, dynamics: Dynamics, table: Tensor, name: str = "table") -> None:
        super().__init__(dynamics)
        self.table, self.name = table.to(dynamics.device), name
        self.play = "topk" if bool((table.amax(1) == 1).all()) else "sample"

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        probabilities = self.table[state_index(visitors.memory, self.dynamics.items.n_items)]
        uniform = torch.rand(len(rows), generator=generator(self.seed, Purpose.LISTS, step), dtype=torch.double)
        return sample_index(probabilities, uniform.to(probabilities.device))[:, None]


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma must be between 0 and 1; got {gamma}.")
