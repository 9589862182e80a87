"""Data that runs on one dataset share: the log on the device and the events that evaluate a checkpoint."""

from typing import Literal

import numpy as np
import torch

from offrec.data.dataset import Dataset
from offrec.data.neighbours import NeighbourCounts, count_neighbours
from offrec.data.replay import Replay
from offrec.data.rewards import behaviour_rewards, event_rewards, reward_shift, split_rewards
from offrec.data.transitions import transitions
from offrec.evaluation import ScoredEvents
from offrec.models.agent import LogFacts, return_spread
from offrec.models.item_features import ItemFeatures, dataset_features
from offrec.models.neighbours import STEPS
from offrec.runs.options import RunOptions
from offrec.types import Batch, Floats

DIAGNOSTIC_ROWS = 2048  # validation rows used for diagnostics, which cost passes over the catalogue


class SharedData:
    """Creates each part on first use, once for all runs that need it.

    Args:
        dataset: The dataset of the runs.
    """

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

    def features(self, options: RunOptions, device: torch.device) -> ItemFeatures | None:
        """Return the features of the items that the networks of a run read."""
        key = (options.network.features, device)
        if key not in self._features:
            self._features[key] = dataset_features(self.dataset, options.network.features)
        return self._features[key]

    def bytes(self, device: torch.device) -> int:
        """Return the bytes of the log on a device."""
        parts: list[Replay | ScoredEvents] = [*self._replays.values(), *self._scored_events.values()]
        return sum(part.bytes for part in parts if part.device == device)

    def _rewards(self, options: RunOptions) -> Floats:
        return event_rewards(self.dataset, options.reward, needed=_needs_reward(options))

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
