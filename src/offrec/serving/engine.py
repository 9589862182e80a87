"""Rank items for many queries with one forward pass and one pass over the catalogue."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.catalogue import Head, log_prob, rank_last
from offrec.catalogue.head import ALL_MASKED
from offrec.catalogue.lists import ItemLists, position_log_probs, sample_lists
from offrec.catalogue.screening import Screening
from offrec.data.replay import batch_from_histories
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy, ShownList, items_mask, sessions_after_lists
from offrec.serving.best_lists import BestLists
from offrec.serving.exploration import Blend
from offrec.types import Batch

SHARED_EXCLUSIONS = 64  # rows with at most this many exclusions share one padded tensor
LONG_LIST = 100  # queries with longer lists, or
MANY_EXCLUSIONS = 1024  # more exclusions, form separate groups, because all rows of a group are padded to the largest


class AllowedItems:
    """A set of items that many queries share, stored as one bit per item.

    Args:
        mask: [A] whether an item is in the set.
    """

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.n_items, self.count = len(mask), int(np.count_nonzero(mask))
        self.bits = np.packbits(mask)

    def mask(self) -> NDArray[np.bool_]:
        """Return [A] whether an item is in the set."""
        return np.unpackbits(self.bits, count=self.n_items).view(np.bool_)


@dataclass(frozen=True)
class Query:
    """A request for one list. Items are indices into the policy's catalogue.

    Attributes:
        history: The items of the session, oldest first.
        k: The number of items to return.
        excluded: Items that must not be returned.
        candidates: The items to choose from, without the excluded ones; None for the whole catalogue.
        temperature: The temperature of a sampled list; None for the k best items.
        logging: Whether to also return the probabilities under π̂_b.
        skip_recent: How many of the last items of the history rank below all other items.
        allowed: The items to choose from, without the excluded ones; None for the whole catalogue. Ignored if
            `candidates` is set.
        shown: The lists that the visitor was shown, in order. Their picks are the last items of the history. Policies
            that do not learn from lists ignore them.
        blend: Sample the list from a blend of the best list and a random one; `temperature` is then None.
        explorer: The policy that random lists of the blend are sampled from; None to sample uniformly.
        probabilities: Whether to return π(item | history), which needs the sum over the whole catalogue.
    """

    history: Sequence[int]
    k: int
    excluded: frozenset[int] = frozenset()
    candidates: Sequence[int] | None = None
    temperature: float | None = None
    logging: bool = False
    skip_recent: int = 0
    allowed: AllowedItems | None = None
    shown: Sequence[ShownList] = ()
    blend: Blend | None = None
    explorer: Policy | None = None
    probabilities: bool = True


@dataclass(frozen=True)
class QueryResult:
    """The list for a query.

    Attributes:
        items: The items, in the order of the list.
        scores: The score of each item.
        probabilities: π(item | history) over the whole catalogue; None for a policy that is not a distribution, or if
            the query does not request them.
        position_probabilities: Sampled lists: the probability of each item given the items before it.
        log_probability: Sampled lists: the log probability of the ordered list.
        logging_probabilities: π̂_b(item | history), if the query requests it.
    """

    items: list[int]
    scores: list[float]
    probabilities: list[float] | None
    position_probabilities: list[float] | None = None
    log_probability: float | None = None
    logging_probabilities: list[float] | None = None


class Engine:
    """Compute lists for a policy. Not safe for concurrent calls: use one thread per engine.

    Args:
        policy: The policy.
        seed: The seed of sampled lists; None takes one from the operating system.
        screening: The screening of another engine of the same policy, if any.
    """

    def __init__(self, policy: Policy, seed: int | None = None, screening: Screening | None = None) -> None:
        self.policy, self.best = policy, BestLists(policy, screening)
        if isinstance(policy, NetworkPolicy):
            policy.agent.eval()
        self.generator = torch.Generator(policy.device)
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)
        self.blend_generator = torch.Generator()  # on the CPU
        self.blend_generator.manual_seed(self.generator.initial_seed())

    @property
    def has_logging_policy(self) -> bool:
        """Whether the policy's run contains π̂_b."""
        agent = self.policy.agent if isinstance(self.policy, NetworkPolicy) else None
        return agent is not None and (agent.prior is not None or agent.needs.logging == "own")

    @property
    def screening(self) -> Screening | None:
        """The screening of the policy's item table; None before the first list and if it is not used."""
        return self.best.screening

    @property
    def products(self) -> str:
        """The precision of the products that find the best items, "float32" or "int8"; lists are the same."""
        return "int8" if self.best.uses_int8 else "float32"

    @property
    def passes(self) -> dict[str, int]:
        """The number of passes over the catalogue, by how the best items were found."""
        return {} if self.screening is None else asdict(self.screening.passes)

    @torch.inference_mode()
    def rank(self, queries: Sequence[Query]) -> list[QueryResult]:
        """Compute the lists of many queries.

        Args:
            queries: The queries.

        Returns:
            One result per query, in the same order.
        """
        order = sorted(range(len(queries)), key=lambda row: _group(queries[row]))  # groups become slices of the head
        rows = [queries[row] for row in order]
        histories = [list(query.history) for query in rows]
        batch = batch_from_histories(histories, self.policy.n_items, self.policy.history, self.policy.device)
        head, recent = (None, None) if self.policy.learns_from_lists else self.best.head(batch)
        results: list[QueryResult] = []
        while len(results) < len(rows):
            first, group = len(results), _group(rows[len(results)])
            last = next((row for row in range(first, len(rows)) if _group(rows[row]) != group), len(rows))
            part = rows[first:last]
            if head is None:  # candidates restrict the plan, so each query with candidates has its own
                parts = [part] if part[0].candidates is None else [[query] for query in part]
                results += [result for one in parts for result in self._rank_group(self._plan(one), None, one)]
            else:
                own = None if recent is None else recent[first:last]
                results += self._rank_group(head.slice_rows(first, last), own, part)
        if any(query.logging for query in rows):
            results = self._with_logging_probabilities(batch, rows, results)
        return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]

    def _plan(self, queries: list[Query]) -> Head:
        """Return the head of a policy that learns from lists, for queries with the same allowed items.

        Lists are planned without the excluded items of each query, so that the mask of the group changes nothing.
        """
        before = []
        for query in queries:
            picks = sum(one.picked is not None for one in query.shown)
            before.append(query.history[: len(query.history) - picks])
        states = sessions_after_lists(self.policy, before, [query.shown for query in queries])
        rows, items = torch.arange(len(queries), device=self.policy.device), queries[0].allowed
        if queries[0].candidates is not None:
            return states.head(rows, items_mask(queries[0].candidates, self.policy))
        allowed = None if items is None else self._mask(items)
        excluded = _padded([list(query.excluded) for query in queries], self.policy.n_items, self.policy.device)
        return states.head(rows, allowed, excluded if excluded.shape[1] else None)

    def _mask(self, items: AllowedItems) -> Tensor:
        return torch.from_numpy(items.mask()).to(self.policy.device)

    def _rank_group(self, head: Head, recent: Tensor | None, queries: list[Query]) -> list[QueryResult]:
        """Compute the lists of queries of one group; `recent` are items whose neighbours the head still lacks."""
        k = min(max(query.k for query in queries), self.policy.n_items)
        needs_lse, items = self._needs_lse(queries[0]), queries[0].allowed
        if queries[0].candidates is not None:
            head = _lower_recent(self.best.add_neighbours(head, recent), queries)
            lse = self.best.top_lists(head, 1, None, True).lse if needs_lse else _nan(head)
            rows = enumerate(queries)
            return [self._rank_candidates(head.slice_rows(row, row + 1), query, lse[row]) for row, query in rows]
        allowed = None if items is None else self._mask(items)
        if queries[0].temperature is not None:
            head = _lower_recent(self.best.add_neighbours(head, recent), queries)
            temperatures = [query.temperature for query in queries]
            temperature = torch.tensor(temperatures, dtype=torch.double, device=head.state.device)
            lists = sample_lists(_mask_excluded(head, queries), k, temperature, self.generator, allowed)
        elif recent is not None:

            def restrict(head: Head) -> tuple[Head, Head]:
                lowered = _lower_recent(head, queries)
                return lowered, _mask_excluded(lowered, queries)

            restricted = torch.cat([_recent_to_lower(queries, head), _excluded(queries, head)], 1)
            head, lists = self.best.complete_and_rank(head, recent, k, allowed, restricted, restrict)
        else:
            head = _lower_recent(head, queries)
            lists = self.best.top_lists(_mask_excluded(head, queries), k, allowed, needs_lse)
        lse = _lse_of_catalogue(lists.lse, head, queries) if needs_lse else lists.lse
        if queries[0].blend is not None:
            best = self._results(lists, lse, queries)
            return [
                self._sample_blend(head.slice_rows(row, row + 1), query, best[row], lse[row])
                for row, query in enumerate(queries)
            ]
        return self._results(lists, lse, queries)

    def _needs_lse(self, query: Query) -> bool:
        return self.policy.stochastic and query.probabilities

    def _sample_blend(self, head: Head, query: Query, best: QueryResult, lse: Tensor) -> QueryResult:
        """Replace the best list of one row by one from the blend."""
        assert query.blend is not None
        if not best.items:
            return best
        pool = _pool(query, head.n_items)
        first = torch.tensor(best.items)
        other = None
        if query.explorer is not None:
            history = [list(query.history)]
            device, length = query.explorer.device, query.explorer.history
            other = query.explorer.head(batch_from_histories(history, head.n_items, length, device))
        items, log_probs = query.blend.sample(first, head.n_items, pool, self.blend_generator, other)
        values = replace(head, support=None).at(items[None].to(head.state.device))  # the random list ignores it
        lists = ItemLists(items[None], values, lse[None], log_probs[None])
        return self._results(lists, lse[None], [query])[0]

    def _rank_candidates(self, head: Head, query: Query, lse: Tensor) -> QueryResult:
        """Rank the candidates of one row by looking up their scores, without a pass over the catalogue."""
        assert query.candidates is not None
        candidates = torch.tensor([sorted(query.candidates)], device=head.state.device)
        values = head.at(candidates)
        if query.temperature is None:
            order = values.sort(stable=True, dim=1, descending=True).indices
            log_positions = None
        else:
            scaled = values.double() / query.temperature
            noise = torch.empty_like(scaled).exponential_(generator=self.generator)
            order = (scaled - noise.log_()).argsort(dim=1, descending=True)  # Gumbel top-k
            log_positions = position_log_probs(scaled.gather(1, order))
        lists = ItemLists(candidates.gather(1, order), values.gather(1, order), lse[None], log_positions)
        result = self._results(lists, lse[None], [query])[0]
        return result if query.blend is None else self._sample_blend(head, query, result, lse)

    def _results(self, lists: ItemLists, lse: Tensor, queries: list[Query]) -> list[QueryResult]:
        """Cut the padded lists to the lengths of the queries. `lse` [B] is the logsumexp over the whole catalogue."""
        lengths = (lists.values > ALL_MASKED).sum(1).tolist()  # masked items are sorted last
        items, scores = lists.items.tolist(), lists.values.tolist()
        needs_lse = self._needs_lse(queries[0])
        probabilities = (lists.values.double() - lse[:, None]).exp().tolist() if needs_lse else None
        log_positions = None if lists.log_probs is None else lists.log_probs.tolist()
        results = []
        for row, query in enumerate(queries):
            n = min(query.k, lengths[row])
            logs = None if log_positions is None else log_positions[row][:n]
            results.append(
                QueryResult(
                    items[row][:n],
                    scores[row][:n],
                    None if probabilities is None else probabilities[row][:n],
                    None if logs is None else [math.exp(log) for log in logs],
                    None if logs is None else math.fsum(logs),
                )
            )
        return results

    def _with_logging_probabilities(
        self, batch: Batch, queries: list[Query], results: list[QueryResult]
    ) -> list[QueryResult]:
        head = _logging_head(self.policy, batch)
        completed = []
        for row, (query, result) in enumerate(zip(queries, results, strict=True)):
            if query.logging and result.items:
                items = torch.tensor([result.items], device=self.policy.device)
                probabilities = log_prob(head.slice_rows(row, row + 1), items)[0].exp().tolist()
                result = replace(result, logging_probabilities=probabilities)
            completed.append(result)
        return completed


def _group(query: Query) -> tuple[int, ...]:
    """Return the sort key of queries that are computed in one pass."""
    allowed = 0 if query.allowed is None else id(query.allowed)
    if query.candidates is not None:
        return True, query.probabilities, allowed  # one by one, without padding
    large = (query.k > LONG_LIST, len(query.excluded) > MANY_EXCLUSIONS)
    return False, query.probabilities, query.temperature is not None, query.blend is not None, *large, allowed


def _pool(query: Query, n_items: int) -> Tensor | None:
    """Return the items that a query allows, ascending; None for the whole catalogue."""
    if query.candidates is not None:
        return torch.tensor(sorted(query.candidates))
    if query.allowed is None and not query.excluded:
        return None
    mask = np.ones(n_items, np.bool_) if query.allowed is None else query.allowed.mask()
    mask[list(query.excluded)] = False
    return torch.from_numpy(np.flatnonzero(mask))


def _logging_head(policy: Policy, batch: Batch) -> Head:
    """Return the head of π̂_b: a separate network, or a second head on the policy's states."""
    assert isinstance(policy, NetworkPolicy)
    agent = policy.agent
    if agent.prior is not None:
        head: Head = agent.prior(batch)
        return head
    assert agent.actor is not None
    assert agent.actor.second is not None
    second: Head = agent.actor.second.head(agent.actor.states(batch), batch.recent)
    return second


def _lower_recent(head: Head, queries: list[Query]) -> Head:
    return rank_last(head, _recent_to_lower(queries, head))


def _recent_to_lower(queries: list[Query], head: Head) -> Tensor:
    recent = [list(query.history[-query.skip_recent :]) if query.skip_recent else [] for query in queries]
    return _padded(recent, head.n_items, head.state.device)


def _mask_excluded(head: Head, queries: list[Query]) -> Head:
    items = _excluded(queries, head)
    return head.mask(items) if items.shape[1] else head


def _excluded(queries: list[Query], head: Head) -> Tensor:
    return _padded([list(query.excluded) for query in queries], head.n_items, head.state.device)


def _padded(rows: list[list[int]], n_items: int, device: torch.device) -> Tensor:
    """Return items as a tensor [B, n], padded with n_items."""
    longest = max(map(len, rows))
    padded = [[*items, *[n_items] * (longest - len(items))] for items in rows]
    return torch.tensor(padded, dtype=torch.long, device=device).view(len(rows), longest)


def _nan(head: Head) -> Tensor:
    return torch.full((head.n_rows,), torch.nan, dtype=torch.double, device=head.state.device)


def _lse_of_catalogue(lse: Tensor, head: Head, queries: list[Query]) -> Tensor:
    """Return the logsumexp over the whole catalogue: over the remaining items, plus the excluded ones."""
    lse = lse.clone()
    short = [sorted(query.excluded) if len(query.excluded) <= SHARED_EXCLUSIONS else [] for query in queries]
    longest = max(map(len, short))
    if longest:
        padded = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in short], device=head.state.device)
        values = head.at(padded.clamp(min=0)).double().masked_fill(padded < 0, -math.inf)
        lse = torch.logaddexp(lse, values.logsumexp(1))
    for row, query in enumerate(queries):
        if len(query.excluded) > SHARED_EXCLUSIONS:
            items = torch.tensor([sorted(query.excluded)], device=head.state.device)
            excluded = head.slice_rows(row, row + 1).at(items).double().logsumexp(1)
            lse[row] = torch.logaddexp(lse[row], excluded[0])
    return lse
