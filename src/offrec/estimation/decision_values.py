"""What Q of the policy judged and Q of the policy that logged have in common: a network over decisions, its fitting.

    Q(s,a)  ← reward + discount · V     of the logged decision; a list is worth the mean of its items (an assumption)
    Q(s,a⁻) ← patience · V(s)           picks only: an unlogged item is taken to be ignored, and to leave the state
                                        as it is

Where lists were served, those that were ignored are decisions like others, and nothing has to be made up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from offrec import losses
from offrec.catalogue import Head
from offrec.catalogue.backend import has_triton
from offrec.console import Console
from offrec.data.replay import Epochs, automatic_batch_size
from offrec.data.transitions import Transitions
from offrec.errors import InputError, Interrupted, RunError
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.models.agent import return_spread
from offrec.models.critic import CriticOptions, unlogged
from offrec.models.network import Network, NetworkOptions, item_tables
from offrec.training.isolation import Isolation
from offrec.training.loop import LOOK_EVERY, stop_requests
from offrec.training.optimiser import Optimiser
from offrec.training.update import TrainingTask, Update
from offrec.types import Batch, Size


@dataclass(frozen=True)
class ValueOptions:
    network: NetworkOptions = field(default_factory=lambda: NetworkOptions(width=64, dropout=0.1))
    critic: CriticOptions = field(default_factory=lambda: CriticOptions(target_rate=0.02))
    updates: int = 2000
    learning_rate: float = 0.002
    batch_size: int | None = None
    patience: float = 0.9
    """Picks only: what is left of a state's value after an ignored item; never more than γ."""
    seed: int = 0
    capture: bool = True
    """Capture updates as CUDA graphs, where that can be."""

    def __post_init__(self) -> None:
        if self.updates < 1 or not 0 <= self.patience < 1:
            raise InputError(
                f"There are {self.updates} updates of values and a patience of {self.patience}; give at least 1 update "
                "and a patience in [0, 1)."
            )


class DecisionValues(nn.Module):
    """Q over decisions. Inside, in units of the log's returns."""

    lists: Tensor | None
    ignored: Tensor | None

    def __init__(self, decisions: LoggedDecisions, options: ValueOptions, unit: float, gamma: float) -> None:
        super().__init__()
        self.n_items, self.unit, self.options = decisions.n_items, unit, options
        self.discount_if_ignored = min(gamma, options.patience)
        self.ground = 0 if decisions.has_lists else options.critic.ground
        self.critic = Network(self.n_items, options.critic.network(options.network), value=True)
        self.show(decisions)

    @property
    def device(self) -> torch.device:
        return self.critic.bias.device

    def show(self, decisions: LoggedDecisions) -> None:
        """The decisions of which batches are to speak."""
        self.first = decisions.inside.start
        lists, ignored = (torch.from_numpy(decisions.lists), torch.from_numpy(decisions.picked < 0))
        self.register_buffer("lists", lists.to(self.device) if decisions.has_lists else None, persistent=False)
        self.register_buffer("ignored", ignored.to(self.device) if decisions.has_lists else None, persistent=False)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError

    def after(self) -> None:
        """What an update does besides the optimiser's step."""

    def logged(self, q: Head, batch: Batch) -> Tensor:
        """[B] what the logged decision is worth."""
        if self.lists is None:
            return q.at(batch.action[:, None])[:, 0]
        lists = self.lists[batch.event - self.first]
        inside = lists < self.n_items
        worth = torch.where(inside, q.at(lists.clamp(max=self.n_items - 1)), 0.0)
        return worth.sum(1) / inside.sum(1)

    def squared(
        self, batch: Batch, rewards: Tensor, discounts: Tensor, next_value: Tensor, value_if_ignored: Tensor
    ) -> dict[str, Tensor]:
        """All [B]: (Q − sg[reward + discount · next value])², and of unlogged items (Q − sg[patience · value])²."""
        q = self.critic(batch)
        worth, earned, kept = (column[:, None] for column in (self.logged(q, batch), rewards, discounts))
        if not self.ground:
            return {"loss": losses.td(worth, earned, kept, next_value)[:, 0]}
        others = q.at(unlogged(batch.action, self.ground, self.n_items))
        worth = torch.cat([worth, others], 1)
        earned = torch.cat([earned, torch.zeros_like(others)], 1)
        kept = torch.cat([kept, torch.full_like(others, self.discount_if_ignored)], 1)
        errors = losses.td(worth, earned, kept, next_value, value_if_ignored)
        return {"loss": losses.grounded(errors, self.options.critic.ground_weight)}


def unit_of(mdp: Transitions) -> float:
    return return_spread(torch.from_numpy(mdp.return_to_go))


def fit(
    values: DecisionValues,
    decisions: LoggedDecisions,
    mdp: Transitions,
    console: Console,
    label: str,
    *,
    capture: bool = True,
    resample: int | None = None,
) -> None:
    """To the decisions or, with a seed to `resample` by, to those of as many sessions drawn with replacement.
    `capture`: nothing in the loss waits for the host.
    """
    options, device = values.options, values.device
    captured = capture and options.capture and device.type == "cuda" and has_triton()
    replay = decisions.replay(mdp, options.network.history, "sessions", device)
    replay = replay if resample is None else decisions.resampled(replay, resample)
    size = options.batch_size or automatic_batch_size(len(mdp.reward))
    epochs = Epochs(replay, size, options.seed, rounded=captured)
    moving = [table for table in item_tables(values, values.n_items) if table.requires_grad]
    task = TrainingTask(values, values.loss, epochs, dict, None, after=values.after, tables=moving)
    optimiser = Optimiser(values, options.learning_rate, moving)
    update, isolation = Update(task, optimiser, device, capture=captured), Isolation(options.seed, device)
    with console.steps(label, options.updates) as advance, stop_requests() as stop, isolation():
        values.train()
        for done, length in enumerate(_sizes(task, update, options.updates), start=1):
            if stop.is_set():
                raise Interrupted("Stopped while fitting values; nothing of it is kept.")
            update(length)
            if done % LOOK_EVERY == 0 or done == options.updates:
                fault = update.look()[1]
                if fault is not None:
                    raise RunError(f"The loss of fitted values became {fault.value} after {done} updates.")
                # The last half ever more slowly: values settle instead of following the last batches.
                optimiser.rate = options.learning_rate * min(1.0, 2 * (1 - done / options.updates) + 0.02)
                advance((done - 1) % LOOK_EVERY + 1)
    isolation.finish()
    values.eval()


def with_history(options: ValueOptions, history: int) -> ValueOptions:
    """States as long as the policy's."""
    return replace(options, network=replace(options.network, history=history))


def _sizes(task: TrainingTask, update: Update, updates: int) -> Iterator[Size]:
    done = epoch = 0
    while done < updates:
        sizes = task.batches.begin(epoch)[: updates - done]
        update.begin(0, {})
        yield from sizes
        done, epoch = done + len(sizes), epoch + 1
