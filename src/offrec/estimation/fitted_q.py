"""Fitted Q evaluation: what a given policy's choices are worth, learned from the log of another.

    Q(s,a) ← r + discount · V(s′)       V(s) = E_{a ~ π(·|s)}[Q̄(s,a)], exactly; Q̄: the target network

An ignored item, or list, leaves the state as it is (`values.py`). Where single items were shown with known chances, a
decision weighs as `LoggedDecisions.blind` says: else Q would credit π with what the logging policy knew of visitors.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue import Head
from offrec.catalogue.backend import backend_for
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import batch_from_histories
from offrec.data.transitions import Floats
from offrec.errors import InputError
from offrec.estimation import decision_values
from offrec.estimation.decision_values import DecisionValues, ValueOptions
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.models.agent import frozen
from offrec.models.critic import Target
from offrec.models.network import evaluating
from offrec.models.network_policy import NetworkPolicy
from offrec.types import Batch, Doubles

BATCH_SIZE = 1024


class PolicyValues(NamedTuple):
    """In the log's own units."""

    q: Doubles  # [D] of the logged decision
    v: Doubles  # [D] of its state


class FittedQ(DecisionValues):
    """Q of the policy played, and its target network."""

    blind: Tensor | None

    def __init__(
        self, played: ListPolicy, decisions: LoggedDecisions, options: ValueOptions, unit: float, gamma: float
    ) -> None:
        super().__init__(decisions, options, unit, gamma)
        self.played = played
        self.target = Target(frozen(deepcopy(self.critic)), options.critic)
        weight = decisions.blind()
        blind = None if weight is None else torch.from_numpy(weight).float()
        self.register_buffer("blind", blind, persistent=False)

    def train(self, mode: bool = True) -> "FittedQ":
        super().train(mode)
        self.target.eval()
        return self

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        found = self.squared(batch, batch.reward / self.unit, batch.discount, *self._backed_up(batch))
        if self.blind is None:
            return found
        return {"loss": self.blind[batch.event - self.first] * found["loss"]}

    def after(self) -> None:
        self.target.follow(self.critic)

    @torch.no_grad()
    def _backed_up(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """V(s′) and V(s), [B] each, by the target network. After an ignored list s′ is s."""
        network, after = self.target.network, _after(batch)
        states, next_states = network.states_and_next(batch)
        next_value = self._expect(after, network.head(next_states, after.recent))
        if not self.ground and self.ignored is None:
            return next_value, next_value
        value_if_ignored = self._expect(batch, network.head(states, batch.recent))
        if self.ignored is not None:
            next_value = torch.where(self.ignored[batch.event - self.first], value_if_ignored, next_value)
        return next_value, value_if_ignored

    def _expect(self, batch: Batch, q: Head) -> Tensor:
        generator = None
        if not self.played.exact:
            generator = torch.Generator(batch.action.device).manual_seed(int(torch.randint(1 << 62, ())))
        return self.played.expect(self.played.head(batch), q, generator)

    @torch.no_grad()
    def values(self, decisions: LoggedDecisions, batch_size: int = BATCH_SIZE) -> PolicyValues:
        """Of the decisions of a split it was not fitted to."""
        mdp = decisions.mdp(np.zeros(len(decisions.behaviours), dtype=np.float32), 0.0)
        self.show(decisions)
        replay = decisions.replay(mdp, self.played.policy.history, "exact", self.device)
        found = np.zeros((2, len(mdp.reward)))
        with evaluating(self), torch.random.fork_rng():
            torch.manual_seed(self.options.seed)
            for batch in replay.batches(batch_size):
                q = self.critic(batch)
                pair = torch.stack([self.logged(q, batch), self._expect(batch, q)]).double() * self.unit
                found[:, (batch.event - self.first).cpu().numpy()] = pair.cpu().numpy()
        return PolicyValues(found[0], found[1])


def fit_q(
    played: ListPolicy,
    dataset: Dataset,
    rewards: Floats,
    gamma: float,
    options: ValueOptions,
    console: Console,
    *,
    label: str = "fitted Q",
    resample: int | None = None,
) -> FittedQ:
    """Q of the policy played, fitted to the training split or, with a seed to `resample` by, to as many of its sessions
    drawn with replacement.
    """
    decisions = LoggedDecisions.load(dataset, "train")
    mdp = decisions.mdp(rewards, gamma)
    if not len(mdp.reward):
        raise InputError(f"{dataset.path} has no training decisions to learn values from; prepare a larger log.")
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        whole = decision_values.with_history(options, played.policy.history)
        critic = FittedQ(played, decisions, whole, decision_values.unit_of(mdp), gamma).to(played.policy.device)
    decision_values.fit(critic, decisions, mdp, console, label, capture=_capturable(played), resample=resample)
    return critic


@torch.no_grad()
def _capturable(played: ListPolicy) -> bool:
    """Lists that are drawn, and the head of a baseline, are made on the host; all but kernels wait for the device."""
    policy = played.policy
    if not played.exact or not isinstance(policy, NetworkPolicy):
        return False
    return (
        backend_for(played.head(batch_from_histories([[]], policy.n_items, policy.history, policy.device))) == "kernels"
    )


def _after(batch: Batch) -> Batch:
    """The same rows after their actions."""
    return batch.with_columns(position=batch.position + 1, recent=batch.next_recent)
