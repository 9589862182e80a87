"""Find items by a part of their id, popular items first."""

import torch

from offrec.data.replay import batch_from_histories
from offrec.policy import Id, Policy

SEPARATOR = "\0"  # separates ids; removed from ids that contain it


class ItemSearch:
    """An index of a policy's item ids.

    A run contains no counts of its log, so an item's popularity is its score for a new visitor. All ids are joined
    into one text in this order, so that a million ids can be searched without a Python loop.

    Args:
        policy: The policy whose catalogue is searched.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy) -> None:
        from offrec.catalogue.tiled import tiles

        head = policy.head(batch_from_histories([[]], policy.n_items, policy.history, policy.device))
        scores = torch.cat([tile[0] for _, tile in tiles(head)])
        self.vocabulary = policy.vocabulary
        self.order = scores.argsort(descending=True, stable=True).tolist()
        ids = [str(self.vocabulary.id(index)).casefold().replace(SEPARATOR, "") for index in self.order]
        self.text = SEPARATOR + SEPARATOR.join(ids) + SEPARATOR

    def find(self, query: str, limit: int) -> list[Id]:
        """Find items whose id starts with the query, then items whose id contains it. The search ignores case.

        Args:
            query: The part of an id; empty for the most popular items.
            limit: The largest number of items.

        Returns:
            The item ids.
        """
        query = query.casefold()
        if SEPARATOR in query:
            return []
        if not query:
            return [self.vocabulary.id(index) for index in self.order[:limit]]
        positions = self._matches(SEPARATOR + query, 1, limit, set())
        positions += self._matches(query, 0, limit - len(positions), set(positions))
        return [self.vocabulary.id(self.order[position]) for position in positions]

    def _matches(self, pattern: str, skip: int, limit: int, known: set[int]) -> list[int]:
        """Return positions in `order` of the ids that match the pattern, except those in `known`."""
        matches: list[int] = []
        start = separators = 0
        while len(matches) < limit:
            match = self.text.find(pattern, start)
            if match < 0:
                break
            separators += self.text.count(SEPARATOR, start, match + skip)
            if separators - 1 not in known:
                matches.append(separators - 1)
            start = self.text.find(SEPARATOR, match + skip)  # continue at the next id
        return matches
