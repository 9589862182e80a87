"""Compute the best lists of a policy with as few passes over the catalogue as possible."""

from collections.abc import Callable

import torch
from torch import Tensor

from offrec.catalogue import Head, logsumexp
from offrec.catalogue.lists import ItemLists, finish_lists, top_lists
from offrec.catalogue.screened_pass import ScreenedPass
from offrec.catalogue.screening import Screening
from offrec.models.neighbours import NeighbourTerm
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy
from offrec.types import Batch


class BestLists:
    """Computes the heads and the best lists of a policy.

    A network's neighbours are added to its head with weights that depend on the logsumexp. The items that they correct
    are known before it, so one screened pass computes the logsumexp and finds the best other items.

    Args:
        policy: The policy. It does not learn from lists.
        screening: The screening of the policy's item table, if it is already known.

    Attributes:
        screening: The screening; None before the first list, and for small catalogues and policies without a network.
    """

    def __init__(self, policy: Policy, screening: Screening | None = None) -> None:
        self.policy, self.screening = policy, screening

    @property
    def uses_int8(self) -> bool:
        """Whether lists without probabilities use int8 products; neighbours need the logsumexp in any case."""
        needs_lse = isinstance(self.policy, NetworkPolicy) and self.policy.neighbours is not None
        return self.screening is not None and self.screening.uses_int8 and not needs_lse

    def head(self, batch: Batch) -> tuple[Head, Tensor | None]:
        """Return the head of a batch, and its recent items [B, H] if their neighbours are not added yet."""
        if isinstance(self.policy, NetworkPolicy) and self.policy.neighbours is not None:
            head = self.policy.head_before_neighbours(batch)
            if Screening.supports(head):
                return head, batch.recent
            return self.policy.neighbours.mix(head, batch.recent), None
        return self.policy.head(batch), None

    def add_neighbours(self, head: Head, recent: Tensor | None) -> Head:
        """Add the neighbours of recent items, if they are not added yet."""
        if recent is None:
            return head
        screened = ScreenedPass(head, 1, self._screening_of(head), head.items)
        lse = screened.logsumexp(head).to(head.dtype) if screened.succeeded else logsumexp(head)
        return self._neighbours.mix(head, recent, lse)

    def top_lists(self, head: Head, k: int, allowed: Tensor | None, lse: bool) -> ItemLists:
        """Return the k best items of each row of a complete head; see `offrec.catalogue.lists.top_lists`."""
        if isinstance(self.policy, NetworkPolicy) and not self.policy.learns_from_lists and Screening.supports(head):
            return top_lists(head, k, allowed, self._screening_of(head), lse)
        return top_lists(head, k, allowed, lse=lse)

    def complete_and_rank(
        self,
        head: Head,
        recent: Tensor,
        k: int,
        allowed: Tensor | None,
        restricted: Tensor,
        restrict: Callable[[Head], tuple[Head, Head]],
    ) -> tuple[Head, ItemLists]:
        """Add neighbours and compute the best lists, in one pass if possible.

        Args:
            head: The head before neighbours are added.
            recent: [B, H] the recent items.
            k: Items per list.
            allowed: [A] bool, the items that a list may contain, or None for all.
            restricted: [B, n] the items that `restrict` corrects; indices from A on are padding.
            restrict: Returns, for the head with neighbours, the head whose probabilities are returned, and the head to
                rank by.

        Returns:
            The head whose probabilities are returned, and the lists.
        """
        known = [self._neighbours.near(recent), restricted]
        corrected = torch.cat(known if head.items is None else [head.items, *known], 1)
        screened = ScreenedPass(head, k, self._screening_of(head), corrected, allowed)
        if not screened.succeeded:
            complete, ranked = restrict(self.add_neighbours(head, recent))
            return complete, top_lists(ranked, k, allowed)
        lse = screened.logsumexp(head).to(head.dtype)
        complete, ranked = restrict(self._neighbours.mix(head, recent, lse))
        return complete, finish_lists(screened, ranked)

    @property
    def _neighbours(self) -> NeighbourTerm:
        assert isinstance(self.policy, NetworkPolicy)
        assert self.policy.neighbours is not None
        return self.policy.neighbours

    def _screening_of(self, head: Head) -> Screening:
        if self.screening is None or not self.screening.fits(head):
            self.screening = Screening(head)
        return self.screening
