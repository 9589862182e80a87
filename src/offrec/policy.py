"""Policy: the interface between policies and evaluation, estimation, the shop and serving."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue import Head, log_prob, top_k
from offrec.data.replay import batch_from_histories
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.types import Batch

Id = str | int


@dataclass(frozen=True)
class Recommendation:
    """A ranked list of items."""

    items: list[Id]  # best first, as the log's ids
    scores: list[float]
    probabilities: list[float] | None  # π(item | history); None for a policy that is not a distribution
    unknown: int  # number of items in the history that are not in the catalogue; they are skipped

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object with one row per item."""
        rows = [{"item": item, "score": score} for item, score in zip(self.items, self.scores, strict=True)]
        for row, probability in zip(rows, self.probabilities or [], strict=False):
            row["probability"] = probability
        return {"recommendations": rows, "unknown": self.unknown}


class Policy:
    """Scores every item of the catalogue after any history. A subclass implements `head`.

    Args:
        vocabulary: The catalogue's items.
        history: Number of most recent items that the policy reads.
        device: Where it computes.
        data_hash: Hash of the dataset that it was trained on. It can only be evaluated on that dataset.
    """

    name: str
    source_shop: dict[str, Any] | None = None  # the simulated shop that its log comes from, if any
    stochastic = False  # whether softmax(head) is a distribution to sample from

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

    def recommend(
        self,
        history: Sequence[Id],
        k: int = 10,
        *,
        exclude_seen: bool = False,
        exclude: Sequence[Id] = (),
        candidates: Sequence[Id] | None = None,
    ) -> Recommendation:
        """Recommend the k best items after a history.

        Args:
            history: Item ids of the log, oldest first. Unknown ids are skipped and counted.
            k: Number of items; fewer are returned if fewer may be shown.
            exclude_seen: Do not recommend items of the history.
            exclude: Item ids not to recommend.
            candidates: Item ids to choose from; all items if None.

        Returns:
            The items with their scores and, if the policy is a distribution, their probabilities.

        Raises:
            InputError: `k` is out of range, or no item is left to recommend.

        Example:
            >>> policy.recommend([12, 55, 9], k=3, exclude_seen=True).items
        """
        if not 1 <= k <= self.n_items:
            raise InputError(f"k must be between 1 and {self.n_items}, the size of the catalogue; got {k}.")
        if isinstance(history, str):
            raise InputError(f"history must be a list of item ids, oldest first; got the text {history!r}.")
        seen, unknown = self.vocabulary.encode(history)
        excluded = set(self.vocabulary.encode(exclude)[0]) | (set(seen) if exclude_seen else set())
        with torch.no_grad():
            head = self.head(batch_from_histories([seen], self.n_items, self.history, self.device))
            allowed = [] if candidates is None else sorted(set(self._candidates(candidates)) - excluded)
            if not (allowed if candidates is not None else self.n_items - len(excluded)):
                raise InputError("No item is left to recommend; every item that may be shown is excluded.")
            if candidates is None:
                values, items = _best(head, sorted(excluded), min(k, self.n_items - len(excluded)))
            else:
                values, items = _best_among(head, torch.tensor(allowed, dtype=torch.long, device=self.device), k)
            probabilities = log_prob(head, items)[0].exp().tolist() if self.stochastic and items.numel() else None
        ids = [self.vocabulary.id(item) for item in items[0].tolist()]
        return Recommendation(ids, values[0].tolist(), probabilities, unknown)

    def _candidates(self, candidates: Sequence[Id]) -> list[int]:
        known, _ = self.vocabulary.encode(candidates)
        if not known:
            raise InputError("candidates contains no item of the catalogue; use the item ids of the log.")
        return known


def _best(head: Head, excluded: list[int], k: int) -> tuple[Tensor, Tensor]:
    if excluded:
        head = head.mask(torch.tensor([excluded], device=head.state.device))
    return top_k(head, k)


def _best_among(head: Head, allowed: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values = head.at(allowed[None])
    order = values.sort(stable=True, dim=1, descending=True).indices[:, :k]
    return values.gather(1, order), allowed[order]
