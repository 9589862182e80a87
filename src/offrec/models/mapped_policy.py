"""A policy in the item indices of a larger catalogue, such as that of a log with newer items."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue import Head
from offrec.catalogue.head import MASKED, Support
from offrec.data.dataset import Dataset
from offrec.data.vocabulary import Vocabulary, match_ids
from offrec.errors import InputError
from offrec.policy import Policy, SessionStates, batch_of_recent
from offrec.types import Batch


def in_catalogue(policy: Policy, dataset: Dataset) -> Policy:
    """Return the policy in the item indices of a dataset that has its items and newer ones.

    Raises:
        InputError: If the dataset lacks an item of the policy.
    """
    if policy.data_hash == dataset.meta["data_hash"] or policy.vocabulary == dataset.vocabulary:
        return policy
    missing = missing_items(policy, dataset.vocabulary)
    if missing:
        raise InputError(
            f"{dataset.path} does not contain the item {missing[0]!r} of {policy.name}, so the probabilities of its "
            "lists are unknown; prepare the log again with --catalogue RUN --keep-new-items."
        )
    return MappedPolicy(policy, dataset.vocabulary)


class MappedPolicy(Policy):
    """A policy whose items have the indices of another catalogue.

    The policy never shows items that it does not know, and it does not see picks of them. Its probabilities are
    unchanged, so the other catalogue must contain all of its items.

    Args:
        policy: The policy.
        vocabulary: The other catalogue.

    Raises:
        ValueError: If the catalogue lacks an item of the policy.
    """

    def __init__(self, policy: Policy, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, policy.history, policy.device, policy.data_hash)
        self.policy, self.name, self.stochastic = policy, policy.name, policy.stochastic
        self.source_shop, self.learns_from_lists = policy.source_shop, policy.learns_from_lists
        missing = missing_items(policy, vocabulary)
        if missing:
            raise ValueError(f"the catalogue does not contain {missing[0]!r}")
        own = match_ids(policy.vocabulary, vocabulary)
        is_known = own >= 0
        index = torch.from_numpy(np.append(np.where(is_known, own, policy.n_items), policy.n_items))
        self._to_own = index.to(policy.device)  # [A + 1]; the last entry is for padding
        self._source = self._to_own[:-1].clamp(max=policy.n_items - 1)
        self._is_known = torch.from_numpy(is_known).to(policy.device)
        outer = np.full(policy.n_items + 1, len(vocabulary))
        outer[own[is_known]] = np.flatnonzero(is_known)
        self._to_outer = torch.from_numpy(outer).to(policy.device)
        self._tables: list[tuple[Tensor, Tensor]] = []  # of the last heads, and their mapped copies

    def head(self, batch: Batch) -> Head:
        """Return the scores of all items for each row of a batch."""
        recent = self.own_recent(batch.recent)
        return self.map_head(self.policy.head(batch_of_recent(recent, self.policy.n_items)))

    def start_sessions(self, rows: int, recent: Tensor | None = None) -> SessionStates:
        """Return the state of sessions of the policy."""
        return _MappedStates(
            self, self.policy.start_sessions(rows, None if recent is None else self.own_recent(recent))
        )

    def own_recent(self, recent: Tensor) -> Tensor:
        """Return picks [B, H] in the policy's indices, most recent first, without those that it does not know."""
        own = self.own_items(recent)
        order = (own == self.policy.n_items).to(torch.uint8).argsort(dim=1, stable=True)
        return own.gather(1, order)

    def own_items(self, items: Tensor) -> Tensor:
        """Return items in the policy's indices; unknown ones and padding have its n_items."""
        return self._to_own[items.clamp(max=self.n_items)]

    def own_mask(self, allowed: Tensor) -> Tensor:
        """Return which of the policy's items [A] are marked."""
        return allowed[self._to_outer[:-1]]

    def map_head(self, head: Head) -> Head:
        """Return a head of the policy over the other catalogue. Unknown items are masked."""
        bias = head.table.new_zeros(len(self._source)) if head.bias is None else head.bias[self._source]
        support = head.support and Support(self.map_head(head.support.head), head.support.bound)
        return replace(
            head,
            table=self._map_table(head.table),
            bias=torch.where(self._is_known, bias, MASKED),
            items=None if head.items is None else self._to_outer[head.items.clamp(max=self.policy.n_items)],
            unique=None,
            support=support,
            full_precision=head.full_precision and self.map_head(head.full_precision),
        )

    def _map_table(self, table: Tensor) -> Tensor:
        for known, mapped in self._tables:
            if known is table:
                return mapped
        self._tables = [(table, table[self._source]), *self._tables[:1]]  # a head and its support
        return self._tables[0][1]


class _MappedStates:
    """The sessions of a policy, in the indices of the other catalogue."""

    def __init__(self, mapped: MappedPolicy, states: SessionStates) -> None:
        self.mapped, self.states = mapped, states

    def head(self, rows: Tensor, allowed: Tensor | None = None, excluded: Tensor | None = None) -> Head:
        own = None if allowed is None else self.mapped.own_mask(allowed)
        without = None if excluded is None else self.mapped.own_items(excluded)
        return self.mapped.map_head(self.states.head(rows, own, without))

    def observe(self, rows: Tensor, lists: Tensor, items: Tensor) -> None:
        own = self.mapped.own_items(items)
        # The policy must not take the pick of an item that it does not know for an ignored list.
        is_clear = (items >= self.mapped.n_items) | (own < self.mapped.policy.n_items)
        self.states.observe(rows[is_clear], self.mapped.own_items(lists)[is_clear], own[is_clear])


def missing_items(policy: Policy, vocabulary: Vocabulary) -> list[int | str]:
    """Return the items of a policy that a catalogue lacks."""
    absent = np.flatnonzero(match_ids(vocabulary, policy.vocabulary) < 0)
    return [policy.vocabulary.id(int(index)) for index in absent]
