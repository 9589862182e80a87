"""The decisions of a log: served lists or, if the log has only picks, each pick as a list of one item.

A served list has a propensity, and it is a decision even if the visitor ignored it; the state then does not change. In
a log of picks it is unknown what was ignored, and the propensities have to be estimated.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from offrec.data.dataset import Dataset, SplitName
from offrec.data.replay import Replay
from offrec.data.segments import Segmentation, Segments
from offrec.data.transitions import Transitions, transitions
from offrec.types import Batch, Decisions, Doubles, Floats, Longs, Sessions, Size

EXPOSURE_CAP = 10.0  # of exposure weights, relative to their mean
RECENT = 8  # last picks that the log may show again


@dataclass(frozen=True)
class LoggedDecisions:
    """The D decisions of a split."""

    dataset: Dataset
    sessions: Sessions
    decisions: Decisions  # of the whole log; only the offsets are those of the split
    has_lists: bool  # whether the log has served lists with propensities, not only picks

    @staticmethod
    def load(dataset: Dataset, split: SplitName) -> "LoggedDecisions":
        """Load the decisions of a split."""
        sessions, lists = dataset.split(split), dataset.split_decisions(split)
        decisions = _picks_as_decisions(dataset.sessions, sessions) if lists is None else lists
        return LoggedDecisions(dataset, sessions, decisions, lists is not None)

    def __len__(self) -> int:
        return len(self.decisions)

    @property
    def k(self) -> int:
        """Items per list."""
        return self.decisions.k

    @property
    def first(self) -> int:
        """Number of the split's first decision in the whole log."""
        return int(self.decisions.offsets[0])

    @property
    def rows(self) -> slice:
        """The split's decisions in the whole log."""
        return slice(self.first, int(self.decisions.offsets[-1]))

    @property
    def offsets(self) -> Longs:
        """[S + 1] first decision of each session, starting at 0."""
        return (np.asarray(self.decisions.offsets) - self.first).astype(np.int64)

    @property
    def picked_event(self) -> Longs:
        """[D] the event that was picked from the list; −1 if none."""
        return np.asarray(self.decisions.event[self.rows])

    @property
    def picked_item(self) -> Longs:
        """[D] the item that was picked from the list; −1 if none."""
        picked = self.picked_event
        items = np.append(np.asarray(self.sessions.items), -1).astype(np.int64)
        return np.where(picked >= 0, items[picked], -1)

    @property
    def lists(self) -> Longs:
        """[D, K] the items of each list."""
        return np.asarray(self.decisions.items[self.rows]).astype(np.int64)

    @property
    def log_propensity(self) -> Doubles:
        """[D] log probability of each list under the logging policy."""
        return np.asarray(self.decisions.log_propensity[self.rows])

    def behaviour(self) -> Longs:
        """[D] behaviour of the pick; the number of behaviours if nothing was picked."""
        event = self.picked_event
        behaviour, picked = np.full(len(event), len(self.dataset.behaviours)), event >= 0
        behaviour[picked] = self.sessions.behaviours[event[picked]]
        return behaviour

    def transitions(self, rewards: Floats | None, gamma: float) -> Transitions:
        """Return transitions whose steps are decisions; an ignored list has reward 0.

        Args:
            rewards: Reward of every event of the dataset; None: all are 0.
            gamma: Discount per decision.
        """
        steps = Sessions(self.lists[:, 0].astype(np.int32), self.behaviour().astype(np.uint8), self.offsets)
        return transitions(steps, None if rewards is None else self._rewards_of_picks(rewards), gamma)

    def rewards(self, rewards: Floats) -> tuple[Doubles, dict[str, Doubles]]:
        """[D] the reward of each decision, and the share of it from each behaviour."""
        behaviour, reward = self.behaviour(), self._rewards_of_picks(rewards).astype(np.float64)
        names = enumerate(self.dataset.behaviours)
        return reward, {name: np.where(behaviour == number, reward, 0.0) for number, name in names}

    def _rewards_of_picks(self, rewards: Floats) -> Floats:
        picked = self.picked_event
        return np.where(picked >= 0, np.append(rewards, np.float32(0))[picked], np.float32(0))

    def exposure_weights(self, cap: float = EXPOSURE_CAP, *, earlier: bool = True) -> Doubles | None:
        """[D] weights with mean 1 under which the shown items do not depend on what the logging policy knew.

            Π_{u ≤ t} share(item_u | picks before) / propensity_u,    at most `cap` times their mean

        The logging policy may know more about a visitor than the log contains. Visitors who are shown an item then like
        it more than other visitors with the same history, and the history itself depends on earlier lists. With these
        weights the decisions count as if items had been shown by the log's own shares, given the history alone
        (stabilised weights, Robins et al. 2000).

        Args:
            cap: Largest weight, relative to the mean.
            earlier: Whether to include the decisions before the current one.

        Returns:
            The weights; None for unknown propensities, and for lists with several items, where a few large weights
            would dominate.
        """
        log_propensity = self.log_propensity
        if not self.has_lists or self.k > 1 or not np.isfinite(log_propensity).all():
            return None
        if not len(log_propensity):
            return np.ones(0)
        log_ratio = np.log(self._shares_given_history()) - log_propensity
        if earlier:
            total = np.cumsum(log_ratio)
            before = (total - log_ratio)[np.minimum(self.offsets[:-1], len(total) - 1)]
            log_ratio = total - np.repeat(before, np.diff(self.offsets))
        weight = np.exp(log_ratio - log_ratio.max())
        return _cap_at_mean(weight / weight.mean(), cap)

    def _shares_given_history(self) -> Doubles:
        """[D] share of the shown item given the picks before it: a mixture of the overall share and of recent picks."""
        shown = self.lists[:, 0]
        overall = np.bincount(shown, minlength=self.dataset.n_items) / len(shown)
        recent, count = self._recent_picks()
        is_recent = (recent == shown[:, None]).any(1)
        known = count > 0
        by_chance = np.where(recent >= 0, overall[recent], 0.0).sum(1)
        observed, chance = float(is_recent[known].sum()), float(by_chance[known].sum())
        again = max(0.0, (observed - chance) / max(1.0, known.sum() - chance))  # weight of recent picks in the mixture
        weight = np.where(known, again, 0.0)
        return np.asarray((1 - weight) * overall[shown] + weight * is_recent / np.maximum(count, 1))

    def _recent_picks(self) -> tuple[Longs, Longs]:
        """Return the distinct last picks before each decision [D, RECENT], padded with −1, and their number [D]."""
        start = np.repeat(np.asarray(self.sessions.offsets[:-1]), np.diff(self.offsets))
        state = start + np.asarray(self.decisions.positions[self.rows])
        items = np.append(np.asarray(self.sessions.items).astype(np.int64), -1)  # a log may have no picks at all
        recent = np.full((len(state), RECENT), -1, np.int64)
        for place in range(RECENT):
            position = state - 1 - place
            item = np.where(position >= start, items[np.maximum(position, 0)], -1)
            recent[:, place] = np.where((recent[:, :place] == item[:, None]).any(1), -1, item)
        return recent, (recent >= 0).sum(1)

    def replay(self, mdp: Transitions, history: int, segmentation: Segmentation, device: torch.device) -> Replay:
        """Return a replay whose rows are decisions; `event` is the number of the decision in the whole log."""
        if self.has_lists:
            return ListReplay(self, mdp, history, device)
        return Replay(self.sessions, mdp, self.dataset.n_items, history, segmentation, device)

    def resample(self, replay: Replay, seed: int) -> Replay:
        """Draw a bootstrap resample of the sessions, and keep only their part of the replay."""
        offsets = np.asarray(self.decisions.offsets)  # for a log of picks, a decision is an event
        first = replay.number if isinstance(replay, ListReplay) else replay.segments.first
        session = np.searchsorted(offsets, first, side="right") - 1
        chosen = np.random.default_rng(seed).integers(len(self.sessions), size=len(self.sessions))
        index = np.repeat(np.arange(len(session)), np.bincount(chosen, minlength=len(self.sessions))[session])
        return replay.subset(index)


class ListReplay(Replay):
    """A replay whose rows are served lists, each with its own encoding of the picks before it.

    `action` is the item that was picked or, if none was, the first item of the list.
    """

    def __init__(self, log: LoggedDecisions, mdp: Transitions, history: int, device: torch.device) -> None:
        sessions, decisions, dataset = log.sessions, log.decisions, log.dataset
        no_reward = transitions(sessions, None, 0.0)
        super().__init__(sessions, no_reward, dataset.n_items, history, "windows", device)
        start = np.repeat(np.asarray(sessions.offsets[:-1]), np.diff(decisions.offsets))
        state = start + np.asarray(decisions.positions[log.rows])
        self._set_segments(Segments(np.maximum(start, state - history), state, state + 1))
        # A list after the last pick of the log has a state but no event, so one event is appended.
        self.items = torch.cat([self.items, self.items.new_zeros(1)])
        self.mdp = torch.cat([self.mdp, self.mdp.new_zeros(3, 1)], 1)
        self.first_decision = log.first
        self.number = np.arange(len(state)) + self.first_decision  # [P] number of the decision in the whole log
        self.number_on_device = torch.from_numpy(self.number).to(device)
        self.steps = torch.tensor(np.stack([mdp.reward, mdp.discount, mdp.return_to_go]), device=device)
        item = log.picked_item
        self.action = torch.from_numpy(np.where(item >= 0, item, log.lists[:, 0])).to(device)

    def subset(self, indices: Longs) -> Self:
        """Return a replay of some lists; see `Replay.subset`."""
        part = super().subset(indices)
        part.number = self.number[indices]
        part.number_on_device = torch.from_numpy(part.number).to(self.device)
        return part

    def gather(self, order: Tensor, edges: Tensor, step: Tensor, size: Size, *, use_kernel: bool = False) -> Batch:
        """Gather a batch as `Replay.gather` does, with the columns of decisions instead of those of events."""
        batch = super().gather(order, edges, step, size, use_kernel=use_kernel)
        number = self.number_on_device[self._segment_indices(order, edges, step, size)[0][batch.segment]]
        row = number - self.first_decision
        reward, discount, return_to_go = self.steps[:, row]
        action = self.action[row]
        return batch.with_columns(
            action=action, event=number, reward=reward, discount=discount, return_to_go=return_to_go
        )


def _cap_at_mean(weight: Doubles, cap: float) -> Doubles:
    """Return the weights, capped at `cap` and scaled to mean 1."""
    capped = np.minimum(weight, cap)
    return np.asarray(capped / capped.mean())


def _picks_as_decisions(whole: Sessions, split: Sessions) -> Decisions:
    events = len(whole.items)
    starts = np.repeat(np.asarray(whole.offsets[:-1]), np.diff(whole.offsets))
    return Decisions(
        split.offsets,
        (np.arange(events) - starts).astype(np.int32),
        np.asarray(whole.items)[:, None],
        np.full(events, np.nan),
        np.arange(events),
    )
