"""Items found by a piece of their id, the popular ones first."""

import torch

from offrec.data.replay import batch_from_histories
from offrec.policy import Id, Policy

END = "\0"  # between ids; one that holds it is found by what stands before it at most


class ItemSearch:
    """Popular is what the policy thinks likely of a new visitor: a run keeps no counts of its log.

    All ids stand in one text, in that order, so that a million of them are searched without a loop in Python.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy) -> None:
        from offrec.catalogue.tiled import tiles

        head = policy.head(batch_from_histories([[]], policy.n_items, policy.history, policy.device))
        scores = torch.cat([z[0] for _, z in tiles(head)])
        self.vocabulary = policy.vocabulary
        self.order = scores.argsort(descending=True, stable=True).tolist()
        words = [str(self.vocabulary.id(index)).casefold().replace(END, "") for index in self.order]
        self.text = END + END.join(words) + END

    def find(self, query: str, limit: int) -> list[Id]:
        """Those that begin with the query, then those that hold it elsewhere; letters' case does not count."""
        query = query.casefold()
        if END in query:
            return []
        if not query:
            return [self.vocabulary.id(index) for index in self.order[:limit]]
        found = self._places(END + query, 1, limit, set())
        found += self._places(query, 0, limit - len(found), set(found))
        return [self.vocabulary.id(self.order[place]) for place in found]

    def _places(self, piece: str, skip: int, limit: int, known: set[int]) -> list[int]:
        found: list[int] = []
        at = place = 0
        while len(found) < limit:
            there = self.text.find(piece, at)
            if there < 0:
                break
            place += self.text.count(END, at, there + skip)
            if place - 1 not in known:
                found.append(place - 1)
            at = self.text.find(END, there + skip)  # on to the next id
        return found
