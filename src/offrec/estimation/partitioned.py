"""Estimate on several machines: each computes the columns of some batches of decisions, or one fit of Q.

The batches are those of one machine, and their columns are put into the order of the log before anything is summed. The
estimates, their intervals and the verdicts are therefore those of one machine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.estimation.collect import ColumnPass, LoggingModel, Progress, load_logging_model
from offrec.estimation.decision_values import one_thread
from offrec.estimation.fitted_q import PolicyValues
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.passes import LocalPasses, fit_number
from offrec.estimation.served_policy import ListProbabilities, ProbabilityPass
from offrec.estimation.session_lists import SESSIONS, replay_sessions
from offrec.evaluation import EvaluationSplit
from offrec.evaluation.partitioned import LoadPolicy, MapEngine
from offrec.models.mapped_policy import in_catalogue
from offrec.policy import Policy
from offrec.types import Doubles, Floats, Longs

QUIET = Console(quiet=True)


@dataclass(frozen=True)
class _Task:
    """What a machine needs to apply a policy to the log."""

    load: LoadPolicy
    dataset: Path
    split: EvaluationSplit
    options: EstimateOptions
    lists: dict[str, Any]  # the fields of `ListPolicy`

    def open(self) -> tuple[ListPolicy, LoggedDecisions]:
        """Load the policy and the decisions on this machine."""
        dataset = Dataset.open(self.dataset)
        policy = in_catalogue(self.load(dataset), dataset)
        return ListPolicy(policy, **self.lists), LoggedDecisions.load(dataset, self.split)


class RemotePasses(LocalPasses):
    """Runs the passes of one policy through an engine.

    Args:
        engine: Runs the parts. All machines need the folders of the policy and of the dataset.
        load: Loads the policy there.
        split: The sessions that the estimate uses.
        options: Options of the estimate.
    """

    def __init__(self, engine: MapEngine, load: LoadPolicy, split: EvaluationSplit, options: EstimateOptions) -> None:
        self.engine, self.load, self.split, self.options = engine, load, split, options

    def _task(self, list_policy: ListPolicy, dataset: Dataset) -> _Task:
        lists = {one.name: getattr(list_policy, one.name) for one in fields(ListPolicy) if one.name != "policy"}
        return _Task(self.load, dataset.path.resolve(), self.split, self.options, lists)

    def _by_batch(self, step: Callable[..., Any], count: int, *shared: Any) -> Iterator[Any]:
        """Call a step for groups of batches and yield what it returns for each batch."""
        groups = [
            list(range(first, count, 2 * self.engine.slots)) for first in range(min(count, 2 * self.engine.slots))
        ]
        for results in self.engine.map(step, groups, *shared):
            yield from results

    def columns(self, one: ColumnPass, progress: Progress | None = None) -> Doubles:
        """[4, D] the columns of a pass."""
        task, columns, done = self._task(one.list_policy, one.decisions.dataset), np.zeros((4, len(one.decisions))), 0
        arrays = tuple(None if given is None else given.cpu().numpy() for given in (one.cluster, one.planned))
        is_known = one.logging is not None
        for row, values in self._by_batch(_columns, len(one.batches), task, is_known, one.batch_size, *arrays):
            columns[:, row] = values
            done += len(row)
            if progress is not None:
                progress(done, len(one.decisions))
        return columns

    def best_lists(self, policy: Policy, decisions: LoggedDecisions, k: int) -> Tensor:
        """[D, k] the policy's best list at each decision, after all lists before it."""
        task = self._task(ListPolicy(policy, "topk", k), decisions.dataset)
        parts = list(self.engine.map(_best_lists, list(range(0, len(decisions.sessions), SESSIONS)), task))
        return torch.from_numpy(np.concatenate([np.zeros((0, k), np.int64), *parts])).to(policy.device)

    def list_probabilities(
        self, list_policy: ListPolicy, decisions: LoggedDecisions, cluster: Tensor | None = None
    ) -> ListProbabilities:
        """Compute the probabilities of the logged lists and of their parts."""
        one = ProbabilityPass(list_policy, decisions, cluster)
        task, clusters = self._task(list_policy, decisions.dataset), None if cluster is None else cluster.numpy()
        return one.collect(self._by_batch(_probabilities, len(one.batches), task, clusters))

    def fitted_values(
        self,
        name: str,
        list_policy: ListPolicy,
        decisions: LoggedDecisions,
        rewards: Floats,
        options: EstimateOptions,
        fits: int,
        console: Console,
    ) -> list[PolicyValues]:
        """Return Q and V of the decisions by several fits, which run concurrently."""
        task, values = self._task(list_policy, decisions.dataset), []
        with console.counter(f"{name}: fits of Q") as progress:
            for one in self.engine.map(_fit, list(range(fits)), name, task):
                values.append(one)
                progress(len(values), fits)
        return values


def _columns(
    numbers: Sequence[int], task: _Task, has_logging: bool, batch_size: int, cluster: Longs | None, planned: Any
) -> list[tuple[Longs, Doubles]]:
    """Compute the columns of some batches."""
    list_policy, decisions = task.open()
    device = list_policy.policy.device
    logging = _logging_model(task, list_policy, decisions) if has_logging else None
    clusters, lists = (None if one is None else torch.from_numpy(one.copy()).to(device) for one in (cluster, planned))
    return list(ColumnPass(list_policy, decisions, logging, clusters, lists, batch_size).run(numbers))


def _logging_model(task: _Task, list_policy: ListPolicy, decisions: LoggedDecisions) -> LoggingModel:
    """Load the logging policy, which the machine of the command has fitted and stored next to the dataset."""
    policy, options = list_policy.policy, task.options
    network = options.network_for(policy)
    return load_logging_model(decisions.dataset, network, options.training, policy.device, QUIET, options.seed)


def _best_lists(first: int, task: _Task) -> Longs:
    """Return the best lists of a block of sessions."""
    list_policy, decisions = task.open()
    last = min(first + SESSIONS, len(decisions.sessions))
    return np.asarray(replay_sessions(list_policy.policy, decisions, list_policy.k, first, last).cpu().numpy())


def _probabilities(
    numbers: Sequence[int], task: _Task, cluster: Longs | None
) -> list[tuple[Longs, tuple[Doubles, ...]]]:
    clusters = None if cluster is None else torch.from_numpy(cluster.copy())
    return list(ProbabilityPass(*task.open(), clusters).run(numbers))


def _fit(number: int, name: str, task: _Task) -> PolicyValues:
    """Fit Q once, and return its values at the decisions."""
    list_policy, decisions = task.open()
    rewards = event_rewards(decisions.dataset, dict(task.options.reward))
    with one_thread() if list_policy.play == "topk" else nullcontext():
        return fit_number(name, list_policy, decisions, rewards, task.options, number, QUIET).values(decisions)
