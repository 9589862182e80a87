"""One fit of an estimate as a task for another process, which adds the result to a cache in the dataset's folder.

`python -m offrec.estimation.fit_tasks PARENT` reads JSON lines: first the `Job`, then tasks. It writes a line after
each task. A fit of Q depends on the policy only through the lists that it shows, so a task contains these lists and no
policy.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.json_files import parse_json
from offrec.data.parent_process import end_with_parent
from offrec.data.rewards import event_rewards
from offrec.estimation import value_at_5
from offrec.estimation.collect import load_logging_model
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.passes import load_or_fit_number
from offrec.evaluation import EvaluationSplit
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from offrec.policy import Policy
from offrec.training.loop import TrainingOptions
from offrec.types import Batch, Longs

CPU, QUIET = torch.device("cpu"), Console(quiet=True)


@dataclass(frozen=True)
class Job:
    """What all tasks of an estimate share."""

    dataset: str
    split: EvaluationSplit
    gamma: float
    reward: Mapping[str, float]
    seed: int
    values: Mapping[str, Any]
    training: Mapping[str, Any]

    @classmethod
    def of(cls, dataset: Dataset, split: EvaluationSplit, options: EstimateOptions) -> Self:
        """Return the job of an estimate."""
        values, training = asdict(options.values), asdict(options.training)
        path = str(dataset.path.resolve())
        return cls(path, split, options.gamma, dict(options.reward), options.seed, values, training)

    def options(self) -> EstimateOptions:
        """Return the options of the estimate that a fit depends on."""
        network, critic = NetworkOptions(**self.values["network"]), CriticOptions(**self.values["critic"])
        values = ValueOptions(**{**self.values, "network": network, "critic": critic})
        training = TrainingOptions(**self.training)
        return EstimateOptions(gamma=self.gamma, reward=self.reward, seed=self.seed, values=values, training=training)


@dataclass(frozen=True)
class FitTask:
    """Fit Q of a policy that shows its top k. The folder contains its lists: train.npy and evaluated.npy."""

    folder: str
    history: int
    number: int
    kind: str = "q"

    def run(self, job: Job, dataset: Dataset) -> None:
        """Add the fit to the cache."""
        options, evaluated = job.options(), LoggedDecisions.load(dataset, job.split)
        train = LoggedDecisions.load(dataset, "train")
        arrays = [np.load(Path(self.folder) / f"{name}.npy", allow_pickle=False) for name in ("train", "evaluated")]
        policy = ShownLists(dataset, self.history, {train.first: arrays[0], evaluated.first: arrays[1]})
        list_policy, rewards = ListPolicy(policy, "topk", arrays[0].shape[1]), event_rewards(dataset, dict(job.reward))
        lists = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
        load_or_fit_number(policy.name, list_policy, evaluated, rewards, options, self.number, lists, QUIET)


@dataclass(frozen=True)
class LoggingTask:
    """Fit the logging policy."""

    network: Mapping[str, Any]
    kind: str = "logging"

    def run(self, job: Job, dataset: Dataset) -> None:
        """Add the fit to the cache."""
        options = job.options()
        load_logging_model(dataset, NetworkOptions(**self.network), options.training, CPU, QUIET, options.seed)


@dataclass(frozen=True)
class ValueTask:
    """Fit the values of logged decisions, for value@5."""

    history: int
    kind: str = "value@5"

    def run(self, job: Job, dataset: Dataset) -> None:
        """Add the fit to the cache."""
        options, rewards = job.options(), event_rewards(dataset, dict(job.reward))
        settings = options.values.with_history(self.history)
        value_at_5.load_or_fit(dataset, rewards, value_at_5.GAMMA, settings, CPU, QUIET)


Task = FitTask | LoggingTask | ValueTask
KINDS: dict[str, type[Task]] = {"q": FitTask, "logging": LoggingTask, "value@5": ValueTask}


class ShownLists(Policy):
    """A policy that shows given lists at the decisions of a log.

    Args:
        dataset: The log.
        history: Maximum number of recent items that the policy reads.
        lists: First decision → [D, k] the lists at this decision and at those that follow it.
    """

    name = "given lists"

    def __init__(self, dataset: Dataset, history: int, lists: Mapping[int, Longs]) -> None:
        super().__init__(dataset.vocabulary, history, CPU, dataset.meta["data_hash"])
        end, k = max(first + len(part) for first, part in lists.items()), next(iter(lists.values())).shape[1]
        self.lists = torch.zeros(end, k, dtype=torch.long)
        for first, part in lists.items():
            self.lists[first : first + len(part)] = torch.from_numpy(part)
        self.scores = torch.arange(k, 0, -1, dtype=torch.float32)

    def head(self, batch: Batch) -> Head:
        """Return a head whose best items are those of the list, in its order."""
        lists, nothing = self.lists[batch.event], self.scores.new_zeros(len(batch), 0)
        return Head(nothing, nothing.new_zeros(self.n_items, 0), None, lists, self.scores.expand(lists.shape))


def main() -> None:
    """Run the tasks of the standard input."""
    end_with_parent(int(sys.argv[1]))
    torch.set_num_threads(1)
    job = Job(**parse_json(sys.stdin.readline()))
    dataset = Dataset.open(job.dataset)
    for line in sys.stdin:
        fields = parse_json(line)
        KINDS[fields["kind"]](**fields).run(job, dataset)
        os.write(1, b"done\n")


if __name__ == "__main__":
    main()
