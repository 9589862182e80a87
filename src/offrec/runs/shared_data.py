"""Data that runs on one dataset share: the log on the device and the events that evaluate a checkpoint."""

from typing import Literal, TypeVar

import numpy as np
import torch

from offrec.algorithms.user_model import UserModel
from offrec.catalogue.shard import Shard
from offrec.data.dataset import Dataset, SplitName
from offrec.data.list_log import ListEpochs, ListLog, read_lists
from offrec.data.neighbours import NeighbourCounts, count_neighbours
from offrec.data.replay import Epochs, Replay, automatic_batch_size
from offrec.data.rewards import (
    behaviour_rewards,
    event_rewards,
    event_rewards_or_none,
    item_rewards,
    reward_shift,
    split_rewards,
)
from offrec.data.transitions import transitions
from offrec.evaluation import ScoredEvents
from offrec.models.agent import LogFacts, return_spread
from offrec.models.item_features import ItemFeatures, dataset_features
from offrec.models.neighbours import STEPS
from offrec.runs.options import RunOptions
from offrec.types import Batch, Floats

T = TypeVar("T")
PILOT_SESSIONS = 4096  # training sessions that select a user model's form of choice
DIAGNOSTIC_ROWS = 2048  # validation rows used for diagnostics, which cost passes over the catalogue


class SharedData:
    """Creates each part on first use, once for all runs that need it.

    Args:
        dataset: The dataset of the runs.
    """

    shard: Shard | None = None  # the items that this process stores, if other processes store the others

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._replays: dict[object, Replay] = {}
        self._scored_events: dict[object, ScoredEvents] = {}
        self._diagnostic_batches: dict[object, list[Batch]] = {}
        self._neighbours: dict[int, NeighbourCounts] = {}
        self._features: dict[object, ItemFeatures | None] = {}

    def replay(self, options: RunOptions, device: torch.device) -> Replay:
        """Return the training sessions on the device."""
        key = self._key(options, device)
        if key not in self._replays:
            self._replays[key] = self._build_replay("train", options, device)
        return self._replays[key]

    def epochs(
        self, options: RunOptions, device: torch.device, *, round_sizes: bool = False, use_kernel: bool = False
    ) -> Epochs:
        """Return the batches of a run."""
        replay = self.replay(options, device)
        batch_size = options.training.batch_size or automatic_batch_size(len(replay.items))
        return Epochs(replay, batch_size, options.seed, round_sizes=round_sizes, use_kernel=use_kernel)

    def scored_events(self, options: RunOptions, device: torch.device) -> ScoredEvents:
        """Return the validation events that evaluate a checkpoint."""
        history = options.network.history
        if (history, device) not in self._scored_events:
            events = ScoredEvents(self.dataset, "validation", history, device)
            self._scored_events[history, device] = events.cache_batches()
        return self._scored_events[history, device]

    def diagnostic_batches(self, options: RunOptions, device: torch.device) -> list[Batch]:
        """Return the validation batches for diagnostics; they are the same after every epoch."""
        key = self._key(options, device)
        if key not in self._diagnostic_batches:
            replay, batches = self._build_replay("validation", options, device), list[Batch]()
            for index in replay.plan_shuffled(DIAGNOSTIC_ROWS // 4, seed=0):
                if sum(map(len, batches)) < DIAGNOSTIC_ROWS:
                    batches.append(replay.batch(index))
            self._diagnostic_batches[key] = batches
        return self._diagnostic_batches[key]

    def log_facts(self, options: RunOptions, device: torch.device) -> LogFacts:
        """Return the facts about the log that an agent needs, except log π̂_b and neighbours, which take longer."""
        return_to_go = self.replay(options, device).mdp[2]
        unit = return_spread(return_to_go.cpu()) if options.reward_unit == "returns" else 1.0
        return LogFacts(options.gamma, unit, self._shift(options), torch.tensor(self.dataset.train_counts))

    def neighbours(self, options: RunOptions) -> NeighbourCounts | None:
        """Return the neighbours of each item in the training sessions, if the learner adds them to its policy."""
        number = options.learner.needs.neighbours
        if number and number not in self._neighbours:
            counts = count_neighbours(self.dataset.split("train"), self.dataset.n_items, number, STEPS)
            self._neighbours[number] = counts
        return self._neighbours.get(number)

    def list_epochs(self, options: RunOptions, device: torch.device) -> ListEpochs:
        """Return the batches of a user model."""
        log = self._read_lists(self.dataset, "train", options, device)
        return ListEpochs(log, options.training.batch_size, options.seed)

    def pilot_lists(self, epochs: ListEpochs, options: RunOptions, device: torch.device) -> ListLog:
        """Return the lists of the first training sessions, to which a user model's pilots are fitted."""
        return epochs.log.first_sessions(PILOT_SESSIONS)

    def validation_lists(self, options: RunOptions, device: torch.device) -> ListLog:
        """Return the validation lists of a user model."""
        return self._read_lists(self.dataset, "validation", options, device)

    def item_rewards(self, options: RunOptions) -> Floats:
        """Return the mean rewards of behaviours, or of the behaviours of each item that this process stores."""
        return item_rewards(self.dataset, options.reward)

    def from_leader(self, value: T) -> T:
        """Return the value of the process that decides for all."""
        return value

    @staticmethod
    def _read_lists(dataset: Dataset, split: SplitName, options: RunOptions, device: torch.device) -> ListLog:
        assert isinstance(options.learner, UserModel)
        return read_lists(dataset, split, options.learner.memory, options.learner.negatives, device)

    def features(self, options: RunOptions, device: torch.device) -> ItemFeatures | None:
        """Return the features of the items that the networks of a run read."""
        key = (options.network.features, device)
        if key not in self._features:
            self._features[key] = dataset_features(self.dataset, options.network.features, self.shard)
        return self._features[key]

    def bytes(self, device: torch.device) -> int:
        """Return the bytes of the log on a device."""
        parts: list[Replay | ScoredEvents] = [*self._replays.values(), *self._scored_events.values()]
        return sum(part.bytes for part in parts if part.device == device)

    def rewards(self, options: RunOptions, *, needed: bool) -> Floats:
        """[E] `event_rewards`, at least of the training and validation sessions that this process reads."""
        return event_rewards(self.dataset, options.reward, needed=needed)

    def known_rewards(self, options: RunOptions) -> Floats | None:
        """[E] `event_rewards_or_none`, at least of all validation sessions."""
        return event_rewards_or_none(self.dataset, options.reward)

    def _rewards(self, options: RunOptions) -> Floats:
        return self.rewards(options, needed=_needs_reward(options))

    def _shift(self, options: RunOptions) -> float:
        if not options.reward_shift:
            return 0.0
        return reward_shift(split_rewards(self.dataset.split("train"), self._rewards(options)))

    def _build_replay(self, split: Literal["train", "validation"], options: RunOptions, device: torch.device) -> Replay:
        sessions = self.dataset.split(split)
        rewards = self._rewards(options) + np.float32(self._shift(options))
        mdp = transitions(sessions, rewards, options.gamma)
        return Replay(sessions, mdp, self.dataset.n_items, options.network.history, options.training.encode, device)

    def _key(self, options: RunOptions, device: torch.device) -> object:
        rewards = behaviour_rewards(self.dataset, options.reward, needed=_needs_reward(options)).tolist()
        return (*rewards, options.reward_shift, options.gamma), options.network.history, options.training.encode, device


def _needs_reward(options: RunOptions) -> bool:
    return options.learner.needs_reward or options.select in ("reward", "value")
