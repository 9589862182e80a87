"""Fitted Q evaluation: what a given policy's choices are worth, learned from the log of another.

    Q(s,a) ← r + discount · V(s′)       V(s) = E_{a ~ π(·|s)}[Q̄(s,a)], exactly
    Q(s,a⁻) ← patience · V(s)           picks only: an unlogged item is taken to be ignored, and to leave the state as
                                        it is

Where lists were served, a list is worth the mean of its items' values (an assumption), and one that was ignored leaves
the state as it is, at the log's own cost: nothing has to be made up.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from offrec import losses
from offrec.agent import evaluating, frozen, return_spread
from offrec.catalogue import Head
from offrec.console import Advance, Console
from offrec.critic import CriticOptions, Target, unlogged
from offrec.data.dataset import Dataset
from offrec.data.replay import Epochs
from offrec.data.transitions import Floats
from offrec.errors import InputError, Interrupted, RunError
from offrec.estimation.decided import Decided
from offrec.estimation.played import Played
from offrec.isolation import Isolation
from offrec.job import automatic_batch_size, tables
from offrec.networks import Network, NetworkOptions
from offrec.optimiser import Optimiser
from offrec.training import LOOK_EVERY, stop_requests
from offrec.types import Batch, Doubles, Size
from offrec.update import Job, Update

BATCH_SIZE = 1024


@dataclass(frozen=True)
class FittedQOptions:
    network: NetworkOptions = field(default_factory=lambda: NetworkOptions(width=64, dropout=0.1))
    critic: CriticOptions = field(default_factory=lambda: CriticOptions(target_rate=0.02))
    updates: int = 3000
    learning_rate: float = 0.002
    batch_size: int | None = None
    patience: float = 0.9
    """Picks only: what is left of a state's value after an ignored item; never more than γ."""
    seed: int = 0


class Values(NamedTuple):
    """In the log's own units."""

    q: Doubles  # [D] of the logged decision
    v: Doubles  # [D] of its state


class Critic(nn.Module):
    """Q of the policy played, and its target network."""

    lists: Tensor | None
    ignored: Tensor | None

    def __init__(self, played: Played, decided: Decided, options: FittedQOptions, unit: float, gamma: float) -> None:
        super().__init__()
        self.played, self.n_items, self.unit, self.options = played, decided.n_items, unit, options.critic
        self.stay_discount = min(gamma, options.patience)
        self.ground = 0 if decided.served else options.critic.ground
        self.critic = Network(self.n_items, options.critic.network(options.network), value=True)
        self.target = Target(frozen(deepcopy(self.critic)), options.critic)
        self.show(decided)

    def show(self, decided: Decided) -> None:
        """The lists of which batches are to speak."""
        self.first = decided.inside.start
        lists, ignored = (torch.from_numpy(decided.lists), torch.from_numpy(decided.picked < 0))
        device = next(self.parameters()).device
        self.register_buffer("lists", lists.to(device) if decided.served else None, persistent=False)
        self.register_buffer("ignored", ignored.to(device) if decided.served else None, persistent=False)

    def train(self, mode: bool = True) -> "Critic":
        super().train(mode)
        self.target.eval()
        return self

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        next_value, stay_value = self._backed_up(batch)
        q = self.critic(batch)
        worth, rewards, discounts = (
            self.logged(q, batch)[:, None],
            batch.reward[:, None] / self.unit,
            batch.discount[:, None],
        )
        if not self.ground:
            return {"loss": losses.td(worth, rewards, discounts, next_value)[:, 0]}
        others = q.at(unlogged(batch.action, self.ground, self.n_items))
        like = torch.ones_like(others)
        errors = losses.td(
            torch.cat([worth, others], 1),
            torch.cat([rewards, 0 * like], 1),
            torch.cat([discounts, self.stay_discount * like], 1),
            next_value,
            stay_value,
        )
        return {"loss": losses.grounded(errors, self.options.ground_weight)}

    @torch.no_grad()
    def _backed_up(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """V(s′) and V(s), [B] each, by the target network."""
        after = _after(batch)
        network = self.target.network
        states, next_states = network.states_and_next(batch)
        next_value = self._expect(after, network.head(next_states, after.recent))
        if not self.ground and self.ignored is None:
            return next_value, next_value
        stay_value = self._expect(batch, network.head(states, batch.recent))
        if self.ignored is not None:
            next_value = torch.where(self.ignored[batch.event - self.first], stay_value, next_value)
        return next_value, stay_value

    def _expect(self, batch: Batch, q: Head) -> Tensor:
        generator = None
        if not self.played.exact:
            generator = torch.Generator(batch.action.device).manual_seed(int(torch.randint(1 << 62, ())))
        return self.played.expect(self.played.head(batch), q, generator)

    def logged(self, q: Head, batch: Batch) -> Tensor:
        """[B] what the logged decision is worth."""
        if self.lists is None:
            return q.at(batch.action[:, None])[:, 0]
        lists = self.lists[batch.event - self.first]
        inside = lists < self.n_items
        worth = torch.where(inside, q.at(lists.clamp(max=self.n_items - 1)), 0.0)
        return worth.sum(1) / inside.sum(1)

    def after(self) -> None:
        self.target.follow(self.critic)

    @torch.no_grad()
    def values(self, decided: Decided, batch_size: int = BATCH_SIZE) -> Values:
        """Of the decisions of a split it was not fitted to."""
        mdp = decided.mdp(np.zeros(len(decided.behaviours), dtype=np.float32), 0.0)
        self.show(decided)
        device = next(self.parameters()).device
        replay = decided.replay(mdp, self.played.policy.history, "exact", device)
        found = np.zeros((2, decided.inside.stop - self.first))
        with evaluating(self):
            for batch in replay.batches(batch_size):
                q = self.critic(batch)
                pair = torch.stack([self.logged(q, batch), self._expect(batch, q)]).double() * self.unit
                found[:, (batch.event - self.first).cpu().numpy()] = pair.cpu().numpy()
        return Values(found[0], found[1])


def fit(
    played: Played,
    dataset: Dataset,
    rewards: Floats,
    gamma: float,
    options: FittedQOptions,
    console: Console,
    *,
    label: str = "fitted Q",
    resample: int | None = None,
) -> Critic:
    """Q of the policy played, fitted to the training split or, with a seed to `resample` by, to as many of its sessions
    drawn with replacement.
    """
    decided, device = Decided.of(dataset, "train"), played.policy.device
    mdp = decided.mdp(rewards, gamma)
    if not len(mdp.reward):
        raise InputError(f"{dataset.path} has no training decisions to learn values from; prepare a larger log.")
    network = replace(options.network, history=played.policy.history)
    options = replace(options, network=network)
    unit = return_spread(torch.from_numpy(mdp.to_go))
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        critic = Critic(played, decided, options, unit, gamma).to(device)
    replay = decided.replay(mdp, network.history, "sessions", device)
    replay = replay if resample is None else decided.resampled(replay, resample)
    # What is drawn on the host, or counted there, cannot be captured; a baseline's head is.
    captured = device.type == "cuda" and played.exact and isinstance(getattr(played.policy, "agent", None), nn.Module)
    size = options.batch_size or automatic_batch_size(len(mdp.reward))
    epochs = Epochs(replay, size, options.seed, rounded=captured)
    job = Job(critic, critic.loss, epochs, dict, None, after=critic.after, tables=tables(critic, dataset.n_items))
    with console.steps(label, options.updates) as advance:
        _train(job, options, device, captured, advance)
    return critic


def _train(job: Job, options: FittedQOptions, device: torch.device, captured: bool, advance: Advance) -> None:
    optimiser = Optimiser(job.module, options.learning_rate, [t for t in job.tables if t.requires_grad])
    update, isolation = Update(job, optimiser, device, capture=captured), Isolation(options.seed, device)
    done, shown = 0, 0
    with stop_requests() as stop, isolation(), job.around():
        job.module.train()
        for size in _sizes(job, update, options.updates):
            if stop.is_set():
                raise Interrupted("Stopped while fitting values; nothing of it is kept.")
            update(size)
            done += 1
            if done % LOOK_EVERY == 0 or done == options.updates:
                fault = update.look()[1]
                if fault is not None:
                    raise RunError(f"The loss of fitted Q became {fault.value} after {done} updates; lower its rate.")
                # The last half ever more slowly: values settle instead of following the last batches.
                optimiser.rate = options.learning_rate * min(1.0, 2 * (1 - done / options.updates) + 0.02)
                advance(done - shown)
                shown = done
    isolation.finish()


def _sizes(job: Job, update: Update, updates: int) -> Iterator[Size]:
    done = epoch = 0
    while done < updates:
        sizes = job.batches.begin(epoch)[: updates - done]
        update.begin(0, {})
        yield from sizes
        done, epoch = done + len(sizes), epoch + 1


def _after(batch: Batch) -> Batch:
    """The same rows after their actions."""
    return replace(batch, position=batch.position + 1, recent=batch.next_recent)
