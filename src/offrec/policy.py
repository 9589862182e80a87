"""Policy: what evaluation, the shop and serving see, and all they see."""

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
    items: list[Id]  # best first, under the log's own ids
    scores: list[float]
    probabilities: list[float] | None  # π(item | history); None for a policy that is no distribution
    unknown: int  # how many items of the history the catalogue does not know: they were skipped

    def as_json(self) -> dict[str, Any]:
        rows = [{"item": item, "score": score} for item, score in zip(self.items, self.scores, strict=True)]
        for row, probability in zip(rows, self.probabilities or [], strict=False):
            row["probability"] = probability
        return {"recommendations": rows, "unknown": self.unknown}


class Policy:
    """A head for every history. Subclasses say how; the rest is the same for all."""

    name: str
    home: dict[str, Any] | None = None  # the simulated shop its log comes from, if it comes from one
    stochastic = False  # is softmax(head) a distribution worth reading?

    def __init__(
        self, vocabulary: Vocabulary, history: int, device: torch.device, data_hash: str | None = None
    ) -> None:
        self.vocabulary, self.history, self.device = vocabulary, history, device
        self.data_hash = data_hash  # of the dataset it was made from: it may be judged on no other

    @property
    def n_items(self) -> int:
        return len(self.vocabulary)

    def head(self, batch: Batch) -> Head:
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
        """Return the k best items after a history.

        Args:
            history: Item ids of the log, oldest first. Ids that are not in the catalogue are ignored.
            k: Number of items.
            exclude_seen: Leave out the items of the history.
            exclude: Item ids to leave out.
            candidates: Recommend only these item ids.

        Returns:
            Items, scores and, if the policy is stochastic, probabilities; best first.

        Raises:
            InputError: k is not valid, the history is text, or no item is left to recommend.

        Example:
            >>> policy.recommend([12, 55, 9], k=10, exclude_seen=True).items
        """
        if not 1 <= k <= self.n_items:
            raise InputError(f"k is {k}; it must lie between 1 and the catalogue's {self.n_items} items.")
        if isinstance(history, str):
            raise InputError(f"The history is the text {history!r}; give a list of item ids, oldest first.")
        seen, unknown = self.vocabulary.encode(history)
        barred = set(self.vocabulary.encode(exclude)[0]) | (set(seen) if exclude_seen else set())
        with torch.no_grad():
            head = self.head(batch_from_histories([seen], self.n_items, self.history, self.device))
            allowed = [] if candidates is None else sorted(set(self._candidates(candidates)) - barred)
            if not (allowed if candidates is not None else self.n_items - len(barred)):
                raise InputError("Nothing is left to recommend: every item that may be shown is excluded.")
            if candidates is None:
                values, items = _best(head, sorted(barred), min(k, self.n_items - len(barred)))
            else:
                values, items = _best_among(head, torch.tensor(allowed, dtype=torch.long, device=self.device), k)
            probabilities = log_prob(head, items)[0].exp().tolist() if self.stochastic and items.numel() else None
        ids = [self.vocabulary.id(item) for item in items[0].tolist()]
        return Recommendation(ids, values[0].tolist(), probabilities, unknown)

    def _candidates(self, candidates: Sequence[Id]) -> list[int]:
        known, _ = self.vocabulary.encode(candidates)
        if not known:
            raise InputError("None of the candidates is in the catalogue; give ids as they stand in the log.")
        return known


def _best(head: Head, barred: list[int], k: int) -> tuple[Tensor, Tensor]:
    if barred:
        head = head.mask(torch.tensor([barred], device=head.state.device))
    return top_k(head, k)


def _best_among(head: Head, allowed: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values = head.at(allowed[None])
    order = values.sort(stable=True, dim=1, descending=True).indices[:, :k]
    return values.gather(1, order), allowed[order]
