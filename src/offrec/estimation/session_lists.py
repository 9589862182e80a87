"""The lists that a policy would show at each logged decision, for policies that also learn from lists.

A user model updates its knowledge of a visitor after every list, whether something was picked or not. Its best list at
a decision therefore depends on all lists that the log showed before, not only on the picks.
"""

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue import top_k
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.policy import Policy
from offrec.types import Longs

SESSIONS = 4096  # played at once
CHECKED = 200  # sessions that decide whether a policy served a log
SERVED_SHARE = 0.5  # of the lists in the log of a policy that equal its own


@torch.no_grad()
def best_lists(policy: Policy, decisions: LoggedDecisions, k: int, sessions: int | None = None) -> Tensor:
    """Replay logged sessions and return the policy's best list at each decision.

    Args:
        policy: The policy. Its items are those of the log.
        decisions: The logged decisions.
        k: Length of the lists.
        sessions: Replay only this many sessions; None for all.

    Returns:
        [D, k] lists, in the order of the decisions.
    """
    count = len(decisions.sessions) if sessions is None else min(sessions, len(decisions.sessions))
    parts = [
        replay_sessions(policy, decisions, k, first, min(first + SESSIONS, count))
        for first in range(0, count, SESSIONS)
    ]
    return torch.cat([torch.zeros(0, k, dtype=torch.long, device=policy.device), *parts])


@torch.no_grad()
def replay_sessions(policy: Policy, decisions: LoggedDecisions, k: int, first: int, last: int) -> Tensor:
    """Return the best lists of the sessions from `first` to `last` − 1, as `best_lists` does."""
    rows = last - first
    offsets, events = decisions.offsets[first : last + 1], np.asarray(decisions.sessions.offsets)[first : last + 1]
    log = slice(int(offsets[0]), int(offsets[-1]))
    lists, picked = decisions.lists[log], decisions.picked_event[log]
    position = np.asarray(decisions.decisions.positions[decisions.rows])[log].astype(np.int64)
    items = np.append(np.asarray(decisions.sessions.items), policy.n_items).astype(np.int64)  # the last one: no pick
    states, best = policy.start_sessions(rows), torch.zeros(len(lists), k, dtype=torch.long, device=policy.device)
    no_list, seen = np.full((rows, lists.shape[1]), policy.n_items), np.zeros(rows, np.int64)

    def observe(row: Longs, shown: Longs, item: Longs) -> None:
        states.observe(*(torch.from_numpy(np.ascontiguousarray(one)).to(policy.device) for one in (row, shown, item)))

    lengths = np.diff(offsets)
    for step in range(int(lengths.max(initial=0))):
        row = np.flatnonzero(lengths > step)
        index = offsets[row] - offsets[0] + step
        while (behind := seen[row] < position[index]).any():  # picks that came from no list
            late = row[behind]
            observe(late, no_list[late], items[events[late] + seen[late]])
            seen[late] += 1
        best[torch.from_numpy(index).to(policy.device)] = top_k(
            states.head(torch.from_numpy(row).to(policy.device)), k
        )[1]
        observe(row, lists[index], items[picked[index]])
        seen[row] += picked[index] >= 0
    return best


def served_log(policy: Policy, decisions: LoggedDecisions) -> bool:
    """Return whether most lists of a log are the policy's own best lists, in the same order.

    A blend of a policy with random lists is such a log. The lists of other policies are different, so importance
    weights of a policy that shows its best items are then 0 for almost all sessions.
    """
    if not decisions.has_lists or not len(decisions) or policy.vocabulary != decisions.dataset.vocabulary:
        return False
    best = best_lists(policy, decisions, decisions.k, CHECKED).cpu().numpy()
    return len(best) > 0 and float((best == decisions.lists[: len(best)]).all(1).mean()) >= SERVED_SHARE
