"""Fit a Q network to logged decisions. Fitted Q evaluation and value@5 share this code.

    Q(s,a)  ← reward + discount · V     for the logged decision; a list is worth the mean of its items (an assumption)
    Q(s,a⁻) ← patience · V(s)           logs of picks only: an unlogged item is assumed to be ignored, which leaves the
                                        state unchanged

In a log of served lists, ignored lists are decisions themselves, so no such assumption is needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from offrec import losses
from offrec.backbones.gru import GRU
from offrec.catalogue import Head
from offrec.catalogue.backend import has_triton
from offrec.catalogue.corrections import UniqueItems, unique_items
from offrec.console import Console
from offrec.data.replay import Epochs, automatic_batch_size
from offrec.data.transitions import Transitions
from offrec.errors import InputError, Interrupted, RunError
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.models.agent import return_spread
from offrec.models.critic import CriticOptions, sample_unlogged
from offrec.models.network import Network, NetworkOptions, item_tables
from offrec.training.isolation import Isolation
from offrec.training.loop import READ_EVERY
from offrec.training.optimiser import Optimiser
from offrec.training.stop_requests import stop_requests
from offrec.training.update import TrainingTask, Update
from offrec.types import Batch, Size


@dataclass(frozen=True)
class ValueOptions:
    """Options for fitting a Q network to logged decisions."""

    network: NetworkOptions = field(default_factory=lambda: NetworkOptions(width=64, dropout=0.1))
    critic: CriticOptions = field(default_factory=lambda: CriticOptions(target_rate=0.02))
    updates: int = 2000
    learning_rate: float = 0.002
    batch_size: int | None = None
    patience: float = 0.9
    """Logs of picks only: share of the state value that remains after an ignored item; at most γ."""
    seed: int = 0
    capture: bool = True
    """Capture updates as CUDA graphs if possible."""

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise InputError(f"updates must be at least 1; got {self.updates}.")
        if not 0 <= self.patience < 1:
            raise InputError(f"patience must be at least 0 and below 1; got {self.patience}.")

    def with_history(self, history: int) -> "ValueOptions":
        """Return these options with another history length."""
        return replace(self, network=replace(self.network, history=history))


class DecisionValues(nn.Module):
    """Q over logged decisions. Internally it is scaled by `unit`, the spread of the returns."""

    lists: Tensor | None
    ignored: Tensor | None

    def __init__(self, decisions: LoggedDecisions, options: ValueOptions, unit: float, gamma: float) -> None:
        super().__init__()
        self.n_items, self.unit, self.options = decisions.dataset.n_items, unit, options
        self.discount_if_ignored = min(gamma, options.patience)
        self.ground = 0 if decisions.has_lists else options.critic.ground
        self.critic = Network(self.n_items, options.critic.network(options.network), value=True)
        if isinstance(self.critic.backbone, GRU):
            self.critic.backbone.is_fast_on_cpu = True
        self.set_decisions(decisions)

    @property
    def device(self) -> torch.device:
        return self.critic.bias.device

    def set_decisions(self, decisions: LoggedDecisions) -> None:
        """Set the decisions that the next batches refer to."""
        self.first = decisions.first
        lists, ignored = torch.from_numpy(decisions.lists), torch.from_numpy(decisions.picked_event < 0)
        self.register_buffer("lists", lists.to(self.device) if decisions.has_lists else None, persistent=False)
        self.register_buffer("ignored", ignored.to(self.device) if decisions.has_lists else None, persistent=False)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss per row, {"loss": [B]}."""
        raise NotImplementedError

    def after_update(self) -> None:
        """Hook that is called after every optimiser step."""

    def logged_value(self, q: Head, batch: Batch) -> Tensor:
        """[B] Q of the logged decision."""
        if self.lists is None:
            return q.at(batch.action[:, None])[:, 0]
        lists = self.lists[batch.event - self.first]
        inside = lists < self.n_items
        return self.item_values(q, batch).sum(1) / inside.sum(1)

    def item_values(self, q: Head, batch: Batch) -> Tensor:
        """[B, K] q of the items of the logged list, 0 after its end. Needs served lists."""
        assert self.lists is not None
        lists = self.lists[batch.event - self.first]
        return torch.where(lists < self.n_items, q.at(lists.clamp(max=self.n_items - 1)), 0.0)

    def unique_recent(self, batch: Batch) -> UniqueItems | None:
        """Return the recent items of a batch without duplicates, for several networks; None if they do not matter."""
        return None if self.critic.repeat is None else unique_items(batch.recent, self.n_items)

    def squared_errors(
        self,
        batch: Batch,
        reward: Tensor,
        discount: Tensor,
        next_value: Tensor,
        value_if_ignored: Tensor,
        unique: UniqueItems | None = None,
    ) -> dict[str, Tensor]:
        """Return the squared errors per row, [B].

        They are (Q − sg[reward + discount · next value])², and (Q − sg[patience · value])² for unlogged items.
        `unique`: from `unique_recent`, if it was called for this batch.
        """
        q = self.critic.logged_head(batch, unique) if batch.action.is_cpu else self.critic(batch)
        reward, discount = reward[:, None], discount[:, None]
        if not self.ground:
            return {"loss": losses.td(self.logged_value(q, batch)[:, None], reward, discount, next_value)[:, 0]}
        others = sample_unlogged(batch.action, self.ground, self.n_items)
        value = q.at(torch.cat([batch.action[:, None], others], 1))  # logs of picks: the logged decision is one item
        reward = torch.cat([reward, reward.new_zeros(others.shape)], 1)
        discount = torch.cat([discount, discount.new_full(others.shape, self.discount_if_ignored)], 1)
        errors = losses.td(value, reward, discount, next_value, value_if_ignored)
        return {"loss": losses.grounded(errors, self.options.critic.ground_weight)}


def return_unit(mdp: Transitions) -> float:
    """Return the spread of the returns, the unit in which Q is fitted."""
    return return_spread(torch.from_numpy(mdp.return_to_go))


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for each operation on a CPU inside a `with` block.

    The operations of a fit are too small for several threads. With one, rounding errors do not depend on the number of
    cores, or on how many fits run concurrently.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit_values(
    values: DecisionValues,
    decisions: LoggedDecisions,
    mdp: Transitions,
    console: Console,
    label: str,
    *,
    capture: bool = True,
    resample_seed: int | None = None,
) -> None:
    """Fit the network to logged decisions.

    Args:
        values: The network, changed in place.
        decisions: The decisions to fit to.
        mdp: Their transitions.
        console: Shows the progress.
        label: Name of the progress bar.
        capture: Whether the loss can be captured as a CUDA graph, that is, never waits for the host.
        resample_seed: If given, fit to a bootstrap resample of the sessions with this seed.

    Raises:
        Interrupted: If the user stops the fit.
        RunError: If the loss is not finite.
    """
    options, device = values.options, values.device
    is_captured = capture and options.capture and device.type == "cuda" and has_triton()
    replay = decisions.replay(mdp, options.network.history, "sessions", device)
    if resample_seed is not None:
        replay = decisions.resample(replay, resample_seed)
    batch_size = options.batch_size or automatic_batch_size(len(mdp.reward))
    epochs = Epochs(replay, batch_size, options.seed, round_sizes=is_captured)
    tables = [table for table in item_tables(values, values.n_items) if table.requires_grad]
    task = TrainingTask(values, values.loss, epochs, dict, None, after=values.after_update, tables=tables)
    optimiser = Optimiser(values, options.learning_rate, tables)
    update, isolation = Update(task, optimiser, device, capture=is_captured), Isolation(options.seed, device)
    try:
        with console.steps(label, options.updates) as advance, stop_requests() as stop, isolation():
            values.train()
            for done, size in enumerate(_batch_sizes(task, update, options.updates), start=1):
                if stop.is_set():
                    raise Interrupted("Stopped while fitting values; nothing was saved.")
                update(size)
                if done % READ_EVERY == 0 or done == options.updates:
                    fault = update.read()[1]
                    if fault is not None:
                        raise RunError(
                            f"The loss of the Q network became {fault.value} after {done} updates; it must stay finite."
                        )
                    # The learning rate decays over the second half, so that the final values are not dominated by the
                    # last batches.
                    optimiser.rate = options.learning_rate * min(1.0, 2 * (1 - done / options.updates) + 0.02)
                    advance((done - 1) % READ_EVERY + 1)
    finally:
        isolation.close()
        update.close()
    values.eval()


def _batch_sizes(task: TrainingTask, update: Update, updates: int) -> Iterator[Size]:
    """Yield the size of each batch, epoch by epoch, until the number of updates is reached."""
    done = epoch = 0
    while done < updates:
        sizes = task.batches.begin(epoch)[: updates - done]
        update.begin(0, {})
        yield from sizes
        done, epoch = done + len(sizes), epoch + 1
