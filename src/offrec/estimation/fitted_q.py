"""Fitted Q evaluation: learn the value of a policy's choices from the log of another policy.

    Q(s,a) ← r + discount · V(s′)       V(s) = E_{a ~ π(·|s)}[Q̄(s,a)], exactly; Q̄ is the target network

An ignored item or list leaves the state unchanged (`decision_values.py`). If single items were shown with known
propensities, decisions are weighted by `LoggedDecisions.exposure_weights`; otherwise π would get credit for what the
logging policy knew about the visitors.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue import Head, top_k
from offrec.catalogue.backend import backend_for
from offrec.catalogue.corrections import UniqueItems
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError
from offrec.estimation.decision_values import DecisionValues, ValueOptions, fit_values, return_unit
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.models.agent import freeze
from offrec.models.critic import Target
from offrec.models.network import eval_mode
from offrec.models.network_policy import NetworkPolicy
from offrec.types import Batch, Doubles, Floats

BATCH_SIZE = 1024


class PolicyValues(NamedTuple):
    """Q and V of a policy at logged decisions, in units of the reward."""

    q: Doubles  # [D] of the logged decision
    v: Doubles  # [D] of the state of each decision
    items: Doubles | None = None  # [D, k] q of each item of a served list, for policies that sample their lists


class FittedQ(DecisionValues):
    """Q of the evaluated policy, with its target network."""

    exposure_weight: Tensor | None
    top_lists: Tensor | None  # [D, k] what the policy shows at each training decision, if it shows its top k

    def __init__(
        self,
        list_policy: ListPolicy,
        decisions: LoggedDecisions,
        options: ValueOptions,
        unit: float,
        gamma: float,
    ) -> None:
        super().__init__(decisions, options, unit, gamma)
        self.list_policy = list_policy
        self.target = Target(freeze(deepcopy(self.critic)), options.critic)
        weight = decisions.exposure_weights()
        on_device = None if weight is None else torch.from_numpy(weight).float()
        self.register_buffer("exposure_weight", on_device, persistent=False)
        self.register_buffer("top_lists", None, persistent=False)

    def train(self, mode: bool = True) -> "FittedQ":
        super().train(mode)
        self.target.eval()
        return self

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        if self.top_lists is not None and self.lists is None and batch.action.is_cpu:
            unique = self.unique_recent(batch)
            next_value, value_if_ignored = self._target_values_of_picks(batch, self.top_lists, unique)
        else:
            unique = None
            next_value, value_if_ignored = self._target_values(batch)
        reward = batch.reward / self.unit
        errors = self.squared_errors(batch, reward, batch.discount, next_value, value_if_ignored, unique)
        if self.exposure_weight is None:
            return errors
        return {"loss": self.exposure_weight[batch.event - self.first] * errors["loss"]}

    def after_update(self) -> None:
        self.target.follow(self.critic)

    @torch.no_grad()
    def _target_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return V(s′) and V(s) of the target network, [B] each. After an ignored list, s′ equals s."""
        network, next_batch = self.target.network, _after_action(batch)
        states, next_states = network.states_and_next(batch)
        lists, next_lists = self._known_lists(batch)
        next_value = self._expected_value(next_batch, network.head(next_states, next_batch.recent), next_lists)
        if not self.ground and self.ignored is None:
            return next_value, next_value
        value_if_ignored = self._expected_value(batch, network.head(states, batch.recent), lists)
        if self.ignored is not None:
            next_value = torch.where(self.ignored[batch.event - self.first], value_if_ignored, next_value)
        return next_value, value_if_ignored

    @torch.no_grad()
    def _target_values_of_picks(self, batch: Batch, lists: Tensor, unique: UniqueItems | None) -> tuple[Tensor, Tensor]:
        """Compute `_target_values` for the known lists of a log of picks, with half as many states.

        The state after a row is that of the next row of its segment. Only the last row of a segment needs a state of
        its own, and only if its session continues in another segment.
        """
        network, row = self.target.network, batch.event - self.first
        is_last = torch.ones_like(row, dtype=torch.bool)
        torch.ne(batch.segment[1:], batch.segment[:-1], out=is_last[:-1])
        others = (is_last & (batch.discount > 0)).nonzero()[:, 0]
        inputs, weights = network.tables()
        states, next_states = torch.split(network.logged_states(batch, inputs, others), [len(row), len(others)])
        value = network.head(states, batch.recent, weights, unique).at(lists[row]).mean(1)
        next_value = value.roll(-1)
        if len(others):
            head = network.head(next_states, batch.next_recent[others], weights)
            next_value[others] = head.at(lists[row[others] + 1]).mean(1)
        return next_value, value

    def _known_lists(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """[B, k] the policy's top lists in the states of a batch and in the next states, if they were collected.

        The next state is that of the next decision. After the last decision of a session its value has discount 0.
        """
        if self.top_lists is None:
            return None, None
        row = batch.event - self.first
        return self.top_lists[row], self.top_lists[(row + 1).clamp(max=len(self.top_lists) - 1)]

    def _expected_value(self, batch: Batch, q: Head, lists: Tensor | None = None) -> Tensor:
        if lists is not None:
            return q.at(lists).mean(1)
        generator = None
        if not self.list_policy.is_exact:
            generator = torch.Generator(batch.action.device).manual_seed(int(torch.randint(1 << 62, ())))
        return self.list_policy.expected_value(self.list_policy.head(batch), q, generator)

    @torch.no_grad()
    def values(self, decisions: LoggedDecisions, batch_size: int = BATCH_SIZE) -> PolicyValues:
        """Return Q and V at the decisions of another split."""
        mdp = decisions.transitions(None, 0.0)
        self.set_decisions(decisions)
        replay = decisions.replay(mdp, self.list_policy.policy.history, "exact", self.device)
        values = np.zeros((2, len(mdp.reward)))
        has_items = self.lists is not None and self.list_policy.play == "sample"
        items = np.zeros((len(decisions), decisions.k)) if has_items else None
        with eval_mode(self), torch.random.fork_rng():
            torch.manual_seed(self.options.seed)
            for batch in replay.batches(batch_size):
                q = self.critic(batch)
                pair = torch.stack([self.logged_value(q, batch), self._expected_value(batch, q)])
                values[:, (batch.event - self.first).cpu().numpy()] = (pair.double() * self.unit).cpu().numpy()
                if items is not None:
                    of_items = self.item_values(q, batch).double() * self.unit
                    items[(batch.event - self.first).cpu().numpy()] = of_items.cpu().numpy()
        return PolicyValues(values[0], values[1], items)


def fit_q(
    list_policy: ListPolicy,
    dataset: Dataset,
    rewards: Floats,
    gamma: float,
    options: ValueOptions,
    console: Console,
    *,
    label: str = "fitted Q",
    resample_seed: int | None = None,
    top_lists: Tensor | None = None,
) -> FittedQ:
    """Fit Q of a policy to the training split.

    Args:
        list_policy: The policy to evaluate.
        dataset: The log.
        rewards: Reward of every event of the dataset.
        gamma: Discount per decision.
        options: How Q is fitted.
        console: Shows the progress.
        label: Name of the progress bar.
        resample_seed: If given, fit to a bootstrap resample of the training sessions with this seed.
        top_lists: [D, k] what the policy shows at the training decisions, if it shows its top k and they are known.
            Refits share it, but not the weights: refits that started from those of another fit varied four times less.

    Returns:
        The fitted Q.

    Raises:
        InputError: If the training split has no decisions.
    """
    decisions = LoggedDecisions.load(dataset, "train")
    mdp = decisions.transitions(rewards, gamma)
    if not len(mdp.reward):
        raise InputError(f"{dataset.path} has no training decisions; Q needs at least one. Prepare a larger log.")
    options = options.with_history(list_policy.policy.history)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        fitted = FittedQ(list_policy, decisions, options, return_unit(mdp), gamma).to(list_policy.policy.device)
    if list_policy.play == "topk":
        fitted.top_lists = collect_top_lists(list_policy, decisions) if top_lists is None else top_lists
    capture = _can_capture(list_policy)
    fit_values(fitted, decisions, mdp, console, label, capture=capture, resample_seed=resample_seed)
    return fitted


@torch.no_grad()
def collect_top_lists(list_policy: ListPolicy, decisions: LoggedDecisions) -> Tensor:
    """[D, k] what the policy shows at each decision. Updates read it, because ranking the catalogue again is slow."""
    policy = list_policy.policy
    replay = decisions.replay(decisions.transitions(None, 0.0), policy.history, "exact", policy.device)
    lists = torch.zeros(len(decisions), list_policy.k, dtype=torch.long, device=policy.device)
    for batch in replay.batches(BATCH_SIZE):
        lists[batch.event - decisions.first] = top_k(list_policy.head(batch), list_policy.k)[1]
    return lists


@torch.no_grad()
def _can_capture(list_policy: ListPolicy) -> bool:
    """Return whether an update never waits for the host. Sampled lists and baselines do."""
    policy = list_policy.policy
    if not list_policy.is_exact or not isinstance(policy, NetworkPolicy):
        return False
    return (
        backend_for(list_policy.head(batch_from_histories([[]], policy.n_items, policy.history, policy.device)))
        == "kernels"
    )


def _after_action(batch: Batch) -> Batch:
    """Return the states that follow the actions of a batch."""
    return batch.with_columns(position=batch.position + 1, recent=batch.next_recent)
