"""Find items by a part of their id or by words of their title, popular items first."""

from collections.abc import Callable

import torch

from offrec.data.replay import batch_from_histories
from offrec.policy import Id, Policy

SEPARATOR = "\0"  # separates entries; removed from entries that contain it


class ItemSearch:
    """An index of a policy's item ids and titles.

    A run contains no counts of its log, so an item's popularity is its score for a new visitor. All ids are joined
    into one text in this order, and so are all titles, so that a million items can be searched without a Python loop.

    Args:
        policy: The policy whose catalogue is searched.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy) -> None:
        from offrec.catalogue.tiled import tiles

        head = policy.head(batch_from_histories([[]], policy.n_items, policy.history, policy.device))
        scores = torch.cat([tile[0] for _, tile in tiles(head)])
        self.vocabulary = policy.vocabulary
        self.order: list[int] = scores.argsort(descending=True, stable=True).tolist()
        self.ids = _join([str(self.vocabulary.id(index)) for index in self.order])
        titles = policy.titles(self.order)
        self.titles = None if titles is None else _join([title or "" for title in titles])

    def find(self, query: str, limit: int) -> list[Id]:
        """Find items as `find_indices` does, and return their ids."""
        return [self.vocabulary.id(index) for index in self.find_indices(query, limit)]

    def find_indices(self, query: str, limit: int) -> list[int]:
        """Find items whose id starts with the query, then items whose id contains it, then items by title.

        A title matches if each word of the query begins a word of the title. The search ignores case.

        Args:
            query: The part of an id, or words; empty for the most popular items.
            limit: The largest number of items.

        Returns:
            The item indices.
        """
        query = query.casefold()
        if SEPARATOR in query:
            return []
        if not query:
            return self.order[:limit]
        positions = _matches(self.ids, SEPARATOR + query, 1, limit, set())
        positions += _matches(self.ids, query, 0, limit - len(positions), set(positions))
        if self.titles is not None and (words := query.split()):
            longest = max(words, key=len)
            positions += _matches(
                self.titles,
                longest,
                0,
                limit - len(positions),
                set(positions),
                lambda title: _begin_words(title, words),
            )
        return [self.order[position] for position in positions]


def _join(entries: list[str]) -> str:
    return SEPARATOR + SEPARATOR.join(entry.casefold().replace(SEPARATOR, "") for entry in entries) + SEPARATOR


def _begin_words(title: str, words: list[str]) -> bool:
    """Return whether each of the words begins a word of a title."""
    title_words = "".join(sign if sign.isalnum() else " " for sign in title).split()
    return all(any(one.startswith(word) for one in (*title_words, *title.split())) for word in words)


def _matches(
    text: str,
    pattern: str,
    skip: int,
    limit: int,
    known: set[int],
    accept: Callable[[str], bool] = lambda entry: True,
) -> list[int]:
    """Return the positions of entries that match a pattern and are accepted, except those in `known`."""
    matches: list[int] = []
    start = separators = 0
    while len(matches) < limit:
        match = text.find(pattern, start)
        if match < 0:
            break
        separators += text.count(SEPARATOR, start, match + skip)
        end = text.find(SEPARATOR, match + skip)  # continue at the next entry
        if separators - 1 not in known and accept(text[text.rfind(SEPARATOR, 0, match + skip) + 1 : end]):
            matches.append(separators - 1)
        start = end
    return matches
