"""A log as decisions: the lists that were served, or, where only picks were kept, each pick as a list of one.

served   lists with their propensities; one that was ignored is a decision too, and leaves the state as it is
picks    what was ignored is not known; propensities have to be estimated
"""

from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offrec.data.dataset import Dataset, SplitName
from offrec.data.replay import Replay, Segmentation, Segments
from offrec.data.transitions import Floats, Transitions, transitions
from offrec.types import Batch, Decisions, Doubles, Longs, Sessions, Size


@dataclass(frozen=True)
class LoggedDecisions:
    """The decisions of a split."""

    sessions: Sessions
    decisions: Decisions
    has_lists: bool
    n_items: int
    behaviours: list[str]

    @staticmethod
    def load(dataset: Dataset, split: SplitName) -> "LoggedDecisions":
        sessions, lists = dataset.split(split), dataset.split_decisions(split)
        has_lists = lists is not None
        return LoggedDecisions(
            sessions, lists or _picks(dataset.sessions, sessions), has_lists, dataset.n_items, dataset.behaviours
        )

    @property
    def k(self) -> int:
        return self.decisions.k

    @property
    def inside(self) -> slice:
        """Where the split's decisions stand among all."""
        return slice(int(self.decisions.offsets[0]), int(self.decisions.offsets[-1]))

    @property
    def picked(self) -> Longs:
        """[D] the event picked, −1: none."""
        return np.asarray(self.decisions.event[self.inside])

    @property
    def lists(self) -> Longs:
        """[D, K]"""
        return np.asarray(self.decisions.items[self.inside]).astype(np.int64)

    def behaviour(self) -> Longs:
        """[D] what was done with the pick; one number more than there are behaviours where nothing was picked."""
        picked = self.picked
        found = np.asarray(self.sessions.behaviours)[picked.clip(min=0)].astype(np.int64)
        return np.where(picked >= 0, found, len(self.behaviours))

    def mdp(self, rewards: Floats, gamma: float) -> Transitions:
        """A step is a decision. `rewards`: of each behaviour; an ignored list earns nothing."""
        offsets = np.asarray(self.decisions.offsets) - self.inside.start
        steps = Sessions(self.lists[:, 0].astype(np.int32), self.behaviour().astype(np.uint8), offsets)
        return transitions(steps, np.append(rewards, np.float32(0)), gamma)

    def rewards(self, rewards: Floats) -> tuple[Doubles, dict[str, Doubles]]:
        """[D], and each behaviour's part of it."""
        behaviour = self.behaviour()
        earned = np.append(rewards, np.float32(0)).astype(np.float64)[behaviour]
        parts = {name: np.where(behaviour == number, earned, 0.0) for number, name in enumerate(self.behaviours)}
        return earned, parts

    def blind(self) -> Doubles | None:
        """[D] an item's share of all that was shown over its chance at this decision, 1 on average; None where lists
        are longer (few weights would be left) or their chances not known.

        What logged may have known more of a visitor than the picks so far. Then who is shown an item likes it more
        than others with the same picks would. So weighted, decisions are as if items had been shown to anyone.
        """
        chance = np.asarray(self.decisions.log_propensity[self.inside])
        if not self.has_lists or self.k > 1 or not np.isfinite(chance).all():
            return None
        shown = np.bincount(self.lists[:, 0], minlength=self.n_items)
        weight = (shown / max(1, len(self.lists)))[self.lists[:, 0]] / np.exp(chance)
        return np.asarray(weight / weight.mean()) if len(weight) else weight

    def replay(self, mdp: Transitions, history: int, how: Segmentation, device: torch.device) -> Replay:
        """Batches whose rows are decisions and whose `event` is the decision's number in the whole log."""
        if self.has_lists:
            return ListReplay(self, mdp, history, device)
        return Replay(self.sessions, mdp, self.n_items, history, how, device)

    def resampled(self, replay: Replay, seed: int) -> Replay:
        """Only the segments of sessions drawn with replacement; the log lies on the device once."""
        offsets = np.asarray(self.decisions.offsets)  # of picks: where sessions begin among the events
        first = replay.number if isinstance(replay, ListReplay) else replay.segments.first
        session = np.searchsorted(offsets, first, side="right") - 1
        drawn = np.random.default_rng(seed).integers(len(self.sessions), size=len(self.sessions))
        index = np.repeat(np.arange(len(session)), np.bincount(drawn, minlength=len(self.sessions))[session])
        part = copy(replay)
        part.segments, part.rows, part.lengths = replay.segments[index], replay.rows[index], replay.lengths[index]
        part.bounds = replay.bounds[:, torch.from_numpy(index).to(replay.device)]
        if isinstance(part, ListReplay):
            part.number = part.number[index]
            part.number_there = torch.from_numpy(part.number).to(replay.device)
        return part


class ListReplay(Replay):
    """A row is a list served, its state the picks before it, encoded by itself. `action` is the item picked or, if none
    was, the list's first.
    """

    def __init__(self, log: LoggedDecisions, mdp: Transitions, history: int, device: torch.device) -> None:
        sessions, decisions = log.sessions, log.decisions
        nothing = transitions(sessions, np.zeros(len(log.behaviours), dtype=np.float32), 0.0)
        super().__init__(sessions, nothing, log.n_items, history, "windows", device)
        start = np.repeat(np.asarray(sessions.offsets[:-1]), np.diff(decisions.offsets))
        state = start + np.asarray(decisions.positions[log.inside])
        self.segments = Segments(np.maximum(start, state - history), state, state + 1)
        self.rows, self.lengths = np.ones_like(state), self.segments.end - self.segments.begin
        bounds = np.stack([self.segments.begin, self.segments.first, self.segments.end]) - self.base
        self.bounds = torch.from_numpy(bounds).to(device)
        # A list after the last pick of all has a state and no event: one is added for it.
        self.items = torch.cat([self.items, self.items.new_zeros(1)])
        self.mdp = torch.cat([self.mdp, self.mdp.new_zeros(3, 1)], 1)
        self.first_decision = log.inside.start
        self.number = np.arange(len(state)) + self.first_decision  # [P] the decision of each segment, in the whole log
        self.number_there = torch.from_numpy(self.number).to(device)
        self.steps = torch.tensor(np.stack([mdp.reward, mdp.discount, mdp.return_to_go]), device=device)
        picked = log.picked
        taken = np.where(picked >= 0, np.asarray(sessions.items)[picked.clip(min=0)], log.lists[:, 0])
        self.taken = torch.from_numpy(taken.astype(np.int64)).to(device)

    def gather(self, order: Tensor, edges: Tensor, step: Tensor, size: Size, *, by_kernel: bool = False) -> Batch:
        batch = super().gather(order, edges, step, size, by_kernel=by_kernel)
        number = self.number_there[self._index(order, edges, step, size)[0][batch.segment]]
        row = number - self.first_decision
        reward, discount, return_to_go = self.steps[:, row]
        changed = {"action": self.taken[row], "event": number, "reward": reward}
        return batch.with_columns(**changed, discount=discount, return_to_go=return_to_go)


def _picks(whole: Sessions, split: Sessions) -> Decisions:
    events = len(whole.items)
    starts = np.repeat(np.asarray(whole.offsets[:-1]), np.diff(whole.offsets))
    return Decisions(
        split.offsets,
        (np.arange(events) - starts).astype(np.int32),
        np.asarray(whole.items)[:, None],
        np.full(events, np.nan),
        np.arange(events),
    )
