"""The exact answer, where the visitors' states can be listed: one kind of visitor, lists of one item, always taken.

A state is the memory: 1 + A + … + A^m of them. With r(s, a) the expected reward and s′ the memory after a,

    Q(s, a) = r(s, a) + γ stay(s′) V(s′)

    optimal        V(s) = max_a Q(s, a)
    soft-optimal   V(s) = α log Σ_a prior(a|s) exp(Q(s, a) / α),   π(a|s) = prior(a|s) exp((Q(s, a) − V(s)) / α)
    given          V(s) = Σ_a π(a|s) Q(s, a)

A uniform prior that is dropped, as the paper drops it, is prior = 1: then each step earns α log A for nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offrec.catalogue.reference import logits
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop.items import make_items
from offrec.shop.logging_policy import mixture
from offrec.shop.players import Play, Player, batch_of_recent, shop_items
from offrec.shop.randomness import Purpose, generator
from offrec.shop.visitors import Dynamics, Visitors, sample_index
from offrec.shop.worlds import World

MAX_STATES = 5000
CLOSE = 1e-12  # relative; where value iteration stops
Prior = Literal["kept", "dropped"]


@dataclass(frozen=True)
class Solution:
    values: Tensor  # [S]
    q: Tensor  # [S, A]
    policy: Tensor  # [S, A] chances

    @property
    def value(self) -> float:
        """Of a new visitor: the reward a session earns."""
        return float(self.values[0])


@dataclass(frozen=True)
class TabularMDP:
    """The visitors' MDP, written out in double precision."""

    dynamics: Dynamics
    memory: Tensor  # [S, m] state 0 is the empty memory
    reward: Tensor  # [S, A] expected
    following: Tensor  # [S, A] the state after
    stay: Tensor  # [S, A] chance not to leave after it

    @property
    def shape(self) -> tuple[int, int]:
        states, items = self.reward.shape
        return states, items

    def optimal(self, gamma: float = 1.0) -> Solution:
        q = self._fixed_point(gamma, lambda q: q.amax(1))
        best = torch.zeros_like(q).scatter_(1, q.argmax(1, keepdim=True), 1.0)
        return Solution(q.amax(1), q, best)

    def soft_optimal(self, alpha: float, gamma: float = 1.0, prior: Tensor | Prior = "kept") -> Solution:
        """`prior`: a table of chances [S, A], or the uniform one, kept or dropped."""
        if not alpha > 0:
            raise InputError(f"The temperature is {alpha}; it must be above 0 (`optimal` is its limit).")
        states, items = self.shape
        if isinstance(prior, str):
            prior = self.reward.new_full((states, items), 1.0 if prior == "dropped" else 1.0 / items)
        log_prior = prior.log()
        q = self._fixed_point(gamma, lambda q: alpha * (log_prior + q / alpha).logsumexp(1), alpha)
        scores = log_prior + q / alpha
        return Solution(alpha * scores.logsumexp(1), q, scores.softmax(1))

    def evaluate_policy(self, policy: Tensor, gamma: float = 1.0) -> Solution:
        """Of chances [S, A], by solving V = Σ_a π (r + γ stay V′)."""
        _check_gamma(gamma)
        states, _ = self.shape
        onward = torch.zeros(states, states, dtype=torch.double)
        onward.scatter_add_(1, self.following, policy * gamma * self.stay)
        values = torch.linalg.solve(torch.eye(states, dtype=torch.double) - onward, (policy * self.reward).sum(1))
        return Solution(values, self.reward + gamma * self.stay * values[self.following], policy)

    def _fixed_point(self, gamma: float, backup: Callable[[Tensor], Tensor], size: float = 0.0) -> Tensor:
        """Value iteration. `size`: what the backup computes with besides Q, which bounds how exact it can be."""
        _check_gamma(gamma)
        q = self.reward.clone()
        while True:
            after = self.reward + gamma * self.stay * backup(q)[self.following]
            if float((after - q).abs().max()) < CLOSE * (float(after.abs().max()) + size):
                return after
            q = after

    def logging(self) -> Tensor:
        """[S, A] the logging policy's chances."""
        everything = torch.arange(self.shape[1]).expand(self.shape)
        return mixture(self.dynamics, self._visitors()).probability(everything)

    def greedy(self) -> Tensor:
        """[S, A] one on the item with the highest utility."""
        everything = torch.arange(self.shape[1]).expand(self.shape)
        best = self.dynamics.utility(self._visitors(), everything).argmax(1, keepdim=True)
        return torch.zeros_like(self.reward).scatter_(1, best, 1.0)

    def policy_table(self, policy: Policy, play: Play = "topk") -> Tensor:
        """[S, A] a policy's chances after each memory: exact for one that looks back no further than m items."""
        words = shop_items(policy, self.shape[1])
        to_policy = torch.full((self.shape[1] + 1,), policy.n_items)
        to_policy[words] = torch.arange(policy.n_items)
        recent = torch.full((self.shape[0], max(policy.history, self.memory.shape[1])), policy.n_items)
        recent[:, : self.memory.shape[1]] = to_policy[self.memory]
        with torch.no_grad():
            head = policy.head(batch_of_recent(recent[:, : policy.history].to(policy.device), policy.n_items))
        z = logits(head).double().cpu()
        chances = z.softmax(1) if play == "sample" else torch.eye(policy.n_items, dtype=torch.double)[z.argmax(1)]
        return torch.zeros_like(self.reward).index_copy_(1, words, chances)

    def _visitors(self) -> Visitors:
        return _at(self.dynamics, self.memory)


def _at(dynamics: Dynamics, memory: Tensor) -> Visitors:
    new = dynamics.arrive(len(memory), seed=0)
    return Visitors(new.taste, new.haste, memory)


def build_mdp(world: World, seed: int) -> TabularMDP:
    """The MDP of a world's visitors; refused where it cannot be written out."""
    a, m = world.items, world.memory
    states = sum(a**filled for filled in range(m + 1))
    if not world.one_visitor or world.k != 1 or world.none_utility is not None or states > MAX_STATES:
        raise InputError(
            f"The world {world.name!r} cannot be solved exactly: that takes visitors who are alike, lists of one item "
            f"that is always taken, and at most {MAX_STATES} states; 'tiny' is such a world."
        )
    dynamics = Dynamics(world, make_items(world, seed, torch.device("cpu"), torch.double))
    filled = [torch.cartesian_prod(*[torch.arange(a)] * n).view(-1, n) for n in range(1, m + 1)]
    rows = [torch.nn.functional.pad(part, (0, m - part.shape[1]), value=a) for part in filled]
    memory = torch.cat([torch.full((1, m), a), *rows])
    everything = torch.arange(a).expand(states, -1)
    reward = dynamics.expected_reward(_at(dynamics, memory), everything)
    after = dynamics.remember(memory.repeat_interleave(a, 0), everything.reshape(-1))
    leaving = dynamics.leaving(_at(dynamics, after), torch.ones(len(after), dtype=torch.bool))
    following = state_index(after, a).view(states, a)
    return TabularMDP(dynamics, memory, reward, following, 1 - leaving.view(states, a))


def state_index(memory: Tensor, items: int) -> Tensor:
    """[N] which row of `TabularMDP.memory` each memory [N, m] is."""
    filled = (memory < items).sum(1)
    first = torch.tensor([sum(items**less for less in range(n)) for n in range(memory.shape[1] + 1)])
    number = torch.zeros_like(filled)
    for place in range(memory.shape[1]):
        number = torch.where(place < filled, number * items + memory[:, place], number)
    return first.to(memory.device)[filled] + number


class TabularPlayer(Player):
    """Chances [S, A] over the states of a `TabularMDP`."""

    def __init__(self, dynamics: Dynamics, table: Tensor, name: str = "table") -> None:
        super().__init__(dynamics)
        self.table, self.name = table.to(dynamics.device), name
        self.play = "topk" if bool((table.amax(1) == 1).all()) else "sample"

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        chances = self.table[state_index(visitors.memory, self.dynamics.items.n_items)]
        uniform = torch.rand(len(rows), generator=generator(self.seed, Purpose.LISTS, step), dtype=torch.double)
        return sample_index(chances, uniform.to(chances.device))[:, None]


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma <= 1:
        raise InputError(f"The discount is {gamma}; it must lie between 0 and 1.")
