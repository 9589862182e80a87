"""Classes of states for state-marginal weights, from what a visitor did last. Available for every log.

A class consists of the reactions to the last two lists (picked or not), and of the group of the last pick. Items are
grouped by what the sessions earned from their pick on: the mean over the picks of the log, shrunk to the overall mean.
Groups have about the same number of decisions. Items that keep visitors and items that make them leave are therefore in
different groups, so that states of a class have similar values.

The mean weight of a few sessions varies too much, and all later weights are multiplied by it. At each step, classes of
fewer than `MIN_SESSIONS` sessions are therefore merged, if necessary with the smallest of the others.
"""

import numpy as np

from offrec.types import Doubles, Longs

GROUPS = 4  # of last picks
MIN_SESSIONS = 20  # of a class at a step
PSEUDO_COUNT = 20.0  # picks with the overall mean that are added to those of each item


def classify_states(offsets: Longs, item: Longs, reward: Doubles) -> Longs:
    """[D] class of the state before each decision.

    Args:
        offsets: [S + 1] first decision of each session.
        item: [D] the picked item; −1 if nothing was picked.
        reward: [D] the reward of each decision.
    """
    decisions = np.arange(len(item))
    step = decisions - np.repeat(offsets[:-1], np.diff(offsets))
    picked = item >= 0
    # The most recent decision with a pick, before the current one and in the same session.
    latest = np.maximum.accumulate(np.where(picked, decisions, -1))
    before = np.concatenate([[-1], latest[:-1]])[: len(item)]
    has_pick = before >= decisions - step
    group = np.zeros(len(item), np.int64)  # 0: no pick yet
    if has_pick.any():
        value = _value_of_items(offsets, item, reward)[item[before[has_pick]]]
        group[has_pick] = np.searchsorted(np.quantile(value, np.linspace(0, 1, GROUPS + 1)[1:-1]), value) + 1
    reactions = [np.concatenate([np.zeros(back, bool), picked])[: len(item)] & (step >= back) for back in (1, 2)]
    return merge_small_classes((group * 2 + reactions[0]) * 2 + reactions[1], step, MIN_SESSIONS)


def merge_small_classes(state: Longs, step: Longs, smallest: int) -> Longs:
    """[D] the classes `state` [D], numbered from 0; at each step the small ones become the class −1.

    These are the classes of fewer than `smallest` sessions and, if they have fewer than that together, the smallest of
    the other classes. The class −1 is therefore small only if it is the only class of its step.
    """
    steps, classes = (int(one.max(initial=-1)) + 1 for one in (step, state))
    count = np.bincount(step * classes + state, minlength=steps * classes).reshape(steps, classes)
    order = np.argsort(count, axis=1, kind="stable")
    sessions = np.take_along_axis(count, order, 1)  # [T, C] smallest class first
    before = np.cumsum(sessions, axis=1) - sessions  # [T, C] sessions in smaller classes
    merged = np.empty_like(count, dtype=bool)
    np.put_along_axis(merged, order, (sessions < smallest) | ((before > 0) & (before < smallest)), 1)
    return np.where(merged[step, state], -1, state)


def _value_of_items(offsets: Longs, item: Longs, reward: Doubles) -> Doubles:
    """[A] mean reward of a session from the pick of each item on, shrunk to the overall mean; needs a pick."""
    total = np.concatenate([[0.0], np.cumsum(reward)])
    return_to_go = np.repeat(total[offsets[1:]], np.diff(offsets)) - total[:-1]
    picked = item >= 0
    count = np.bincount(item[picked])
    overall = float(return_to_go[picked].mean())
    sums = np.bincount(item[picked], return_to_go[picked])
    return np.asarray((sums + PSEUDO_COUNT * overall) / (count + PSEUDO_COUNT))
