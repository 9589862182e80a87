"""The data that one rank of several reads: its sessions of each split, and its part of what is known about items."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from offrec.data.dataset import Dataset, SplitName
from offrec.data.list_log import ListEpochs, ListLog, count_lists
from offrec.data.neighbours import NeighbourCounts, count_neighbours
from offrec.data.rank_epochs import RankEpochs, RankListEpochs
from offrec.data.replay import Epochs, automatic_batch_size
from offrec.data.rewards import event_rewards, event_rewards_or_none, item_rewards
from offrec.data.segments import segment_sessions
from offrec.errors import InputError
from offrec.evaluation import Ranks as EventRanks
from offrec.evaluation import ScoredEvents
from offrec.evaluation.exposure import Exposure, ExposureCounter
from offrec.models.agent import LogFacts
from offrec.models.neighbours import STEPS
from offrec.models.user_agent import VALIDATED
from offrec.policy import Policy
from offrec.runs.options import RunOptions
from offrec.runs.shared_data import PILOT_SESSIONS, SharedData, T
from offrec.training.ranks import Ranks
from offrec.types import Doubles, Floats


class RankData(SharedData):
    """The part of a dataset that one rank reads.

    Args:
        dataset: The whole dataset; its arrays are memory-mapped.
        ranks: The processes.

    Raises:
        InputError: If a rank has no training sessions.
    """

    def __init__(self, dataset: Dataset, ranks: Ranks) -> None:
        super().__init__(own_part(dataset, ranks))
        self.whole, self.ranks, self.shard = dataset, ranks, ranks.shard(dataset.n_items)

    def epochs(
        self, options: RunOptions, device: torch.device, *, round_sizes: bool = False, use_kernel: bool = False
    ) -> Epochs:
        """Return this rank's part of the batches of a run."""
        if self.ranks.data_ranks == 1:
            return super().epochs(options, device, use_kernel=use_kernel)
        train = self.whole.split("train")
        batch_size = options.training.batch_size or automatic_batch_size(train.events)
        segments = segment_sessions(train, options.network.history, options.training.encode)
        return RankEpochs(self.replay(options, device), segments, batch_size, options.seed, use_kernel=use_kernel)

    def scored_events(self, options: RunOptions, device: torch.device) -> Any:
        """Return the validation events of all ranks, of which each ranks its own."""
        if self.ranks.data_ranks == 1:
            return super().scored_events(options, device)
        return RankScoredEvents(self.dataset, self.whole, options.network.history, device, self.ranks)

    def log_facts(self, options: RunOptions, device: torch.device) -> LogFacts:
        """Return the facts about the log of all ranks."""
        facts, train = super().log_facts(options, device), self.dataset.split("train")
        if self.ranks.data_ranks == 1:
            return facts
        if options.reward_unit == "returns":
            facts = replace(facts, unit=self._spread(self.replay(options, device).mdp[2].cpu().double()))
        return replace(facts, first_event=int(train.offsets[0]))

    def _spread(self, returns: torch.Tensor) -> float:
        """Return `return_spread` of the returns of all ranks."""
        gather = self.ranks.gather_data
        count = sum(gather(len(returns)))
        mean = sum(gather(float(returns.sum()))) / count
        spread = (sum(gather(float((returns - mean).square().sum()))) / count) ** 0.5
        size = sum(gather(float(returns.abs().sum()))) / count
        return spread if spread > 1e-6 * size else size or 1.0

    def neighbours(self, options: RunOptions) -> NeighbourCounts | None:
        """Return the neighbours of the items that this rank stores, and the shares of its events."""
        number = options.learner.needs.neighbours
        if not number:
            return None
        if number not in self._neighbours:
            part = None if self.shard is None else self.shard.rows(1)
            counts = count_neighbours(self.whole.split("train"), self.dataset.n_items, number, STEPS, part)
            train = self.dataset.split("train")
            own = slice(int(train.offsets[0]) if self.ranks.data_ranks > 1 else 0, int(train.offsets[-1]))
            shares, totals = (torch.from_numpy(one[own].copy()) for one in (counts.own_shares, counts.own_totals))
            if self.shard is not None:  # each rank has counted the events after its own items
                for one in (shares, totals):
                    dist.all_reduce(one, group=self.ranks.control_group if _is_nccl() else self.shard.group)
            self._neighbours[number] = replace(counts, own_shares=shares.numpy(), own_totals=totals.numpy())
        return self._neighbours[number]

    def rewards(self, options: RunOptions, *, needed: bool) -> Floats:
        """[E] the rewards of the training and validation sessions of this rank; 0 for all other events."""
        if self.ranks.data_ranks == 1:
            return super().rewards(options, needed=needed)
        parts = [_events_of(self.dataset, split) for split in ("train", "validation")]
        return event_rewards(self.dataset, options.reward, needed=needed, parts=parts)

    def known_rewards(self, options: RunOptions) -> Floats | None:
        """[E] the rewards of all validation sessions, from which all ranks compute figures; 0 for all other events."""
        if self.ranks.data_ranks == 1:
            return super().known_rewards(options)
        return event_rewards_or_none(self.whole, options.reward, parts=[_events_of(self.whole, "validation")])

    def list_epochs(self, options: RunOptions, device: torch.device) -> ListEpochs:
        """Return this rank's part of the batches of a user model."""
        if self.ranks.data_ranks == 1:
            return super().list_epochs(options, device)
        lengths = count_lists(self.whole, "train")
        before = count_lists(_with_range(self.whole, "train", last=_first_of(self.dataset, "train")), "train")
        log = self._read_lists(self.dataset, "train", options, device)
        if not all(self.ranks.gather(log.sessions)):
            raise InputError(
                f"{self.whole.path} has {len(lengths):,} training sessions with lists, too few for "
                f"{self.ranks.data_ranks} groups of ranks; start fewer processes or raise --catalogue-ranks."
            )
        return RankListEpochs(log, lengths, len(before), options.training.batch_size, options.seed)

    def pilot_lists(self, epochs: ListEpochs, options: RunOptions, device: torch.device) -> ListLog:
        """Return the lists of the first training sessions of all ranks."""
        if self.ranks.data_ranks == 1:
            return super().pilot_lists(epochs, options, device)
        return self._read_lists(_first_sessions(self.whole, "train", PILOT_SESSIONS), "train", options, device)

    def validation_lists(self, options: RunOptions, device: torch.device) -> ListLog:
        """Return the validation lists that all ranks evaluate."""
        return self._read_lists(_first_sessions(self.whole, "validation", VALIDATED), "validation", options, device)

    def item_rewards(self, options: RunOptions) -> Floats:
        """Return the mean rewards of behaviours, or of the behaviours of each item that this rank stores."""

        def add(own: Doubles) -> Doubles:
            total = torch.from_numpy(own.astype(np.float64)).to(self.ranks.device)
            dist.all_reduce(total, group=self.ranks.data_group)
            return np.asarray(total.cpu().numpy())

        part = None if self.shard is None else self.shard.rows()
        return item_rewards(self.dataset, options.reward, part, add)

    def from_leader(self, value: T) -> T:
        """Return the leader's value on all ranks."""
        return self.ranks.from_leader(value)


def _events_of(dataset: Dataset, split: SplitName) -> slice:
    offsets = dataset.split(split).offsets
    return slice(int(offsets[0]), int(offsets[-1]))


def _first_of(dataset: Dataset, split: str) -> int:
    first: int = dataset.meta["splits"][split][0]
    return first


def _with_range(dataset: Dataset, split: str, *, last: int) -> Dataset:
    """Return a dataset whose split ends before the session `last`."""
    splits = dict(dataset.meta["splits"]) | {split: [_first_of(dataset, split), last]}
    return replace(dataset, meta={**dataset.meta, "splits": splits})


def _first_sessions(dataset: Dataset, split: SplitName, count: int) -> Dataset:
    """Return a dataset whose split ends after its first `count` sessions with lists, or with events."""
    decisions = dataset.split_decisions(split)
    offsets = np.asarray((dataset.split(split) if decisions is None else decisions).offsets)
    with_lists = np.flatnonzero(np.diff(offsets) > 0)[:count]
    first = _first_of(dataset, split)
    return _with_range(dataset, split, last=first + (int(with_lists[-1]) + 1 if len(with_lists) else 0))


def _is_nccl() -> bool:
    return dist.get_backend() == "nccl"


def own_part(dataset: Dataset, ranks: Ranks) -> Dataset:
    """Return a dataset whose training and validation sessions are those of one rank."""
    if ranks.data_ranks == 1:
        return dataset
    splits = dict(dataset.meta["splits"])
    for name in ("train", "validation"):
        sessions = dataset.split(name)
        first, last = ranks.own_sessions(sessions)
        splits[name] = [splits[name][0] + first, splits[name][0] + last]
    own = replace(dataset, meta={**dataset.meta, "splits": splits})
    counts = ranks.gather((own.split("train").events, ranks.data_index))
    without = [index for events, index in counts if events == 0]
    if without:
        raise InputError(
            f"{dataset.path} has {len(dataset.split('train')):,} training sessions, too few for {ranks.data_ranks} "
            "groups of ranks; start fewer processes or raise --catalogue-ranks."
        )
    total = torch.from_numpy(own.train_counts.copy())  # of this rank's sessions; all ranks need those of all sessions
    dist.all_reduce(total, group=ranks.control_group)
    own.__dict__["train_counts"] = (total // ranks.catalogue_ranks).numpy()  # the ranks of a group counted the same
    return own


class RankScoredEvents:
    """The scored validation events of all ranks. Each rank ranks those of its own sessions.

    Args:
        own: The dataset with this rank's sessions.
        whole: The dataset with all sessions.
        history: History length of the policies.
        device: Device of the policies.
        ranks: The processes.
    """

    def __init__(self, own: Dataset, whole: Dataset, history: int, device: torch.device, ranks: Ranks) -> None:
        self.ranks, self.whole, self.device = ranks, whole, device
        self.events: ScoredEvents | None = None
        problem = None
        try:
            self.events = ScoredEvents(own, "validation", history, device).cache_batches()
        except InputError as error:  # another rank may have scored events
            problem = error
        if not any(ranks.gather(self.events is not None)) and problem is not None:
            raise problem

    @property
    def bytes(self) -> int:
        """Bytes on the device."""
        return 0 if self.events is None else self.events.bytes

    def ranks_and_exposure(self, policy: Policy) -> tuple[EventRanks, Exposure]:
        """Rank the logged items of all ranks, and count the items of lists, as `ScoredEvents` does."""
        counter = ExposureCounter(self.whole.train_counts, self.device)
        own: tuple[Any, ...] = (np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))
        if self.events is not None:
            ranked = self.events.rank_and_count(policy, counter)
            own = (ranked.event, ranked.behaviour, ranked.rank)
        parts = self.ranks.gather_data(own)
        counts = counter.counts.cpu()
        dist.all_reduce(counts, group=self.ranks.control_group)
        counter.counts = (counts / self.ranks.catalogue_ranks).to(self.device)
        counter.lists = sum(self.ranks.gather_data(counter.lists))
        event, behaviour, rank = (np.concatenate(column) for column in zip(*parts, strict=True))
        return EventRanks(event, behaviour, rank), counter.figures()
