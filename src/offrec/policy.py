"""The policy interface that evaluation, estimation, the simulated shop and serving use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from offrec.catalogue import Head, log_prob, rank_last, top_k
from offrec.data.item_properties import ItemProperties
from offrec.data.replay import batch_from_histories
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.types import Batch

Id = str | int


@dataclass(frozen=True)
class Recommendation:
    """A ranked list of items."""

    items: list[Id]  # item ids of the log, best first
    scores: list[float]
    probabilities: list[float] | None  # π(item | history); None for a policy that is not a distribution
    unknown: int  # number of skipped items in the history, because the catalogue does not contain them
    titles: list[str | None] | None = None  # None if the items have no titles

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object with one row per item."""
        rows: list[dict[str, Any]] = [
            {"item": item, "score": score} for item, score in zip(self.items, self.scores, strict=True)
        ]
        for row, probability in zip(rows, self.probabilities or [], strict=False):
            row["probability"] = probability
        for row, title in zip(rows, self.titles or [], strict=False):
            row["title"] = title
        return {"recommendations": rows, "unknown": self.unknown}


class Policy:
    """Scores every item of the catalogue for any history. Subclasses implement `head`.

    Args:
        vocabulary: The catalogue's items.
        history: Maximum number of recent items that the policy reads.
        device: The device to compute on.
        data_hash: Hash of the training dataset. The policy can only be evaluated on that dataset.
    """

    name: str
    item_properties: ItemProperties | None = None  # titles and features of the items, if the dataset has any
    source_shop: dict[str, Any] | None = None  # the simulated shop that generated the log, if any
    stochastic = False  # whether softmax(head) is a distribution to sample from
    learns_from_lists = False  # whether its sessions also use the lists that were shown, and not only the picks

    def __init__(
        self, vocabulary: Vocabulary, history: int, device: torch.device, data_hash: str | None = None
    ) -> None:
        self.vocabulary, self.history, self.device = vocabulary, history, device
        self.data_hash = data_hash

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return len(self.vocabulary)

    def head(self, batch: Batch) -> Head:
        """Return the scores of all items for each row of a batch."""
        raise NotImplementedError

    def start_sessions(self, rows: int, recent: Tensor | None = None) -> "SessionStates":
        """Return the state of sessions, for a policy that is played step by step.

        Args:
            rows: The number of sessions.
            recent: [rows, h] the picks before the first step, most recent first and padded with n_items; None for new
                sessions.
        """
        return PickHistory(self, rows, recent)

    def recommend(
        self,
        history: Sequence[Id],
        k: int = 10,
        *,
        skip_recent: int = 0,
        exclude_seen: bool = False,
        exclude: Sequence[Id] = (),
        candidates: Sequence[Id] | None = None,
        shown: Sequence[tuple[Sequence[Id], Id | None]] = (),
    ) -> Recommendation:
        """Recommend the k best items for a history.

        Args:
            history: Item ids, oldest first. Unknown ids are skipped and counted.
            k: Number of items. The result is shorter if fewer items are allowed.
            skip_recent: How many of the last items of the history to rank below all other items.
            exclude_seen: Whether to exclude the items of the history.
            exclude: Item ids to exclude.
            candidates: Item ids to choose from, or None for the whole catalogue. Lists are planned among them, without
                the excluded items.
            shown: The lists that the visitor was shown, oldest first, each with the pick from it or None. The picks
                must be the last items of `history`, which may be empty. Policies that do not learn from lists use
                only the picks.

        Returns:
            The items with their scores and, if the policy is a distribution, their probabilities.

        Raises:
            InputError: If `k` or `skip_recent` is out of range, every item is excluded, or the picks of `shown` are not
                the end of the history.

        Example:
            >>> policy.recommend([12, 55, 9], k=3, exclude_seen=True).items
        """
        if not 1 <= k <= self.n_items:
            raise InputError(f"k must be between 1 and {self.n_items}, the number of items in the catalogue; got {k}.")
        if isinstance(history, str):
            raise InputError(f"history must be a list of item ids, oldest first; got the string {history!r}.")
        check_skip_recent(skip_recent)
        history = complete_history(history, shown)
        seen, unknown = self.vocabulary.encode(history)
        excluded = set(self.vocabulary.encode(exclude)[0]) | (set(seen) if exclude_seen else set())
        allowed = [] if candidates is None else sorted(set(self._candidates(candidates)) - excluded)
        if not (allowed if candidates is not None else self.n_items - len(excluded)):
            raise InputError("No item is left to recommend: every allowed item is excluded; exclude fewer items.")
        with torch.no_grad():
            if self.learns_from_lists and (shown or excluded or candidates is not None):
                lists = encode_shown(self.vocabulary, shown)
                picks = sum(one.picked is not None for one in lists)
                states = sessions_after_lists(self, [seen[: len(seen) - picks]], [lists])
                among = None if candidates is None else items_mask(allowed, self)
                without = torch.tensor([sorted(excluded)], device=self.device) if excluded else None
                head = states.head(torch.zeros(1, dtype=torch.long, device=self.device), among, without)
            else:
                head = self.head(batch_from_histories([seen], self.n_items, self.history, self.device))
            if skip_recent and seen:
                head = rank_last(head, torch.tensor([seen[-skip_recent:]], device=self.device))
            if candidates is None:
                values, items = _best(head, sorted(excluded), min(k, self.n_items - len(excluded)))
            else:
                values, items = _best_among(head, torch.tensor(allowed, dtype=torch.long, device=self.device), k)
            probabilities = log_prob(head, items)[0].exp().tolist() if self.stochastic and items.numel() else None
        ids = [self.vocabulary.id(item) for item in items[0].tolist()]
        return Recommendation(ids, values[0].tolist(), probabilities, unknown, self.titles(items[0].tolist()))

    def titles(self, items: Sequence[int]) -> list[str | None] | None:
        """Return the titles of item indices, or None if the items have no titles."""
        if self.item_properties is None or self.item_properties.titles is None:
            return None
        return [self.item_properties.title(item) for item in items]

    def _candidates(self, candidates: Sequence[Id]) -> list[int]:
        known, _ = self.vocabulary.encode(candidates)
        if not known:
            raise InputError("candidates contains no item of the catalogue; pass item ids of the log.")
        return known


@dataclass(frozen=True)
class ShownList:
    """A list that a visitor was shown, and the pick from it. Items are numbered as in a policy's catalogue."""

    items: Sequence[int]
    picked: int | None  # None if nothing was picked


class SessionStates(Protocol):
    """What a policy knows about running sessions. Items are numbered as in the policy's catalogue."""

    def head(self, rows: Tensor, allowed: Tensor | None = None, excluded: Tensor | None = None) -> Head:
        """Return the scores of all items for some sessions.

        Lists are planned among the items that `allowed` [A] marks, without those of the session in `excluded` [n, h],
        padded with n_items. The scores of other items are not masked.
        """
        ...

    def observe(self, rows: Tensor, lists: Tensor, items: Tensor) -> None:
        """Receive the lists [n, k] that some sessions were shown and their picks [n]; n_items means no pick."""
        ...


def complete_history(history: Sequence[Id], shown: Sequence[tuple[Sequence[Id], Id | None]]) -> Sequence[Id]:
    """Return the history of a session with lists: if it is empty, the picks from the lists.

    Raises:
        InputError: If a pick is not in its list, or the history does not end with the picks.
    """
    picks = [picked for _, picked in shown if picked is not None]
    for number, (items, picked) in enumerate(shown):
        if items and picked is not None and str(picked) not in map(str, items):
            raise InputError(
                f"shown[{number}]: the pick {picked!r} is not among its items; give a pick from no list an empty list."
            )
    if not history:
        return picks
    if picks and list(map(str, history[-len(picks) :])) != list(map(str, picks)):
        raise InputError("history does not end with the picks of shown; give all picks of the session, in order.")
    return history


def encode_shown(vocabulary: Vocabulary, shown: Sequence[tuple[Sequence[Id], Id | None]]) -> list[ShownList]:
    """Translate the ids of lists. A list whose pick is not in the catalogue says nothing, and is left out."""
    lists = []
    for items, item in shown:
        picked = None if item is None else vocabulary.index(item)
        if item is None or picked is not None:
            lists.append(ShownList(vocabulary.encode(items)[0], picked))
    return lists


def sessions_after_lists(
    policy: Policy, picks: Sequence[Sequence[int]], shown: Sequence[Sequence[ShownList]]
) -> SessionStates:
    """Return the state of sessions after picks whose lists are unknown, followed by lists that were shown.

    Args:
        policy: The policy.
        picks: Per session, the items before the first list, oldest first.
        shown: Per session, the lists in order.
    """
    rows, n_items = len(picks), policy.n_items
    longest = max(1, min(policy.history, max(map(len, picks), default=0)))
    recent = [([*reversed(one)] + [n_items] * longest)[:longest] for one in picks]
    states = policy.start_sessions(rows, torch.tensor(recent, device=policy.device).reshape(rows, longest))
    for step in range(max(map(len, shown), default=0)):
        index = [row for row in range(rows) if step < len(shown[row])]
        lists = [shown[row][step] for row in index]
        width = max(1, max(len(one.items) for one in lists))
        padded = [([*one.items] + [n_items] * width)[:width] for one in lists]
        items = [n_items if one.picked is None else one.picked for one in lists]
        states.observe(*(torch.tensor(part, device=policy.device) for part in (index, padded, items)))
    return states


class PickHistory:
    """The last picks of sessions, for policies that read nothing else.

    Args:
        policy: The policy.
        rows: The number of sessions.
        recent: [rows, h] earlier picks, most recent first and padded with n_items; None if there are none.
    """

    def __init__(self, policy: Policy, rows: int, recent: Tensor | None = None) -> None:
        self.policy = policy
        self.recent = torch.full((rows, policy.history), policy.n_items, device=policy.device)
        if recent is not None:
            self.recent[:, : recent.shape[1]] = recent[:, : policy.history]

    def head(self, rows: Tensor, allowed: Tensor | None = None, excluded: Tensor | None = None) -> Head:
        """Return the scores of all items for some sessions. They do not depend on `allowed` and `excluded`."""
        return self.policy.head(batch_of_recent(self.recent[rows], self.policy.n_items))

    def observe(self, rows: Tensor, lists: Tensor, items: Tensor) -> None:
        """Append the picks of some sessions. The lists are not used."""
        rows, items = (part[items < self.policy.n_items] for part in (rows, items))
        self.recent[rows] = torch.cat([items[:, None], self.recent[rows, :-1]], 1)


def batch_of_recent(recent: Tensor, n_items: int) -> Batch:
    """Return a batch of histories [B, H], most recent first and padded with n_items, with one row each."""
    position = (recent < n_items).sum(1)
    index = position[:, None] - 1 - torch.arange(max(1, int(position.max())), device=recent.device)
    oldest_first = recent.gather(1, index.clamp(min=0))
    tokens = torch.where(index >= 0, oldest_first, n_items)
    rows = torch.arange(len(recent), device=recent.device)
    zeros, no_reward = torch.zeros_like(rows), torch.zeros(len(recent), device=recent.device)
    weight = torch.full_like(no_reward, 1 / max(1, len(recent)))
    return Batch(tokens, rows, position, recent, zeros, zeros, no_reward, no_reward, no_reward, weight)


class SkipRecent(Policy):
    """A policy that ranks the last picks of the visitor below all other items, in their own order.

    A sampled list contains the last picks only if no other item is left.

    Args:
        policy: Any policy. It reads at most `policy.history` picks, so at most that many are ranked last.
        picks: The number of last picks.

    Example:
        >>> shop.rollout(SkipRecent(policy, 8))
    """

    def __init__(self, policy: Policy, picks: int) -> None:
        check_skip_recent(picks)
        super().__init__(policy.vocabulary, policy.history, policy.device, policy.data_hash)
        self.policy, self.picks = policy, picks
        self.name, self.source_shop, self.stochastic = policy.name, policy.source_shop, policy.stochastic
        self.item_properties, self.learns_from_lists = policy.item_properties, policy.learns_from_lists

    def head(self, batch: Batch) -> Head:
        """Return the head of the policy, with the last picks of each row ranked last."""
        return rank_last(self.policy.head(batch), batch.recent[:, : self.picks])

    def start_sessions(self, rows: int, recent: Tensor | None = None) -> SessionStates:
        """Return the state of sessions: that of the policy, and the picks that are ranked last."""
        return _SkipRecentStates(self, rows, recent)


class _SkipRecentStates(PickHistory):
    def __init__(self, policy: SkipRecent, rows: int, recent: Tensor | None = None) -> None:
        super().__init__(policy, rows, recent)
        self.picks, self.states = policy.picks, policy.policy.start_sessions(rows, recent)

    def head(self, rows: Tensor, allowed: Tensor | None = None, excluded: Tensor | None = None) -> Head:
        return rank_last(self.states.head(rows, allowed, excluded), self.recent[rows, : self.picks])

    def observe(self, rows: Tensor, lists: Tensor, items: Tensor) -> None:
        super().observe(rows, lists, items)
        self.states.observe(rows, lists, items)


def check_skip_recent(picks: int) -> None:
    """Raise InputError if a number of last picks is negative."""
    if picks < 0:
        raise InputError(f"skip_recent must be at least 0; got {picks}.")


def _best(head: Head, excluded: list[int], k: int) -> tuple[Tensor, Tensor]:
    if excluded:
        head = head.mask(torch.tensor([excluded], device=head.state.device))
    return top_k(head, k)


def items_mask(items: Iterable[int], policy: Policy) -> Tensor:
    """[A] whether each item of a policy's catalogue is one of these."""
    mask = torch.zeros(policy.n_items, dtype=torch.bool, device=policy.device)
    mask[list(items)] = True
    return mask


def _best_among(head: Head, allowed: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values = head.at(allowed[None])
    order = values.sort(stable=True, dim=1, descending=True).indices[:, :k]
    return values.gather(1, order), allowed[order]
