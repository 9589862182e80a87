"""The server's operations, independent of HTTP: recommend, record events, search items, reload."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from offrec.console import Console
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError, first_line
from offrec.policy import Id, Policy, complete_history, encode_shown
from offrec.serving.decision_log import DecisionLog
from offrec.serving.engine import AllowedItems, Query, QueryResult
from offrec.serving.errors import RequestError
from offrec.serving.exploration import Blend
from offrec.serving.item_lists import ItemLists
from offrec.serving.item_search import ItemSearch
from offrec.serving.memory import release_memory
from offrec.serving.metrics import Metrics
from offrec.serving.micro_batching import MicroBatcher, QueueFullError
from offrec.serving.options import BatchingOptions
from offrec.serving.schemas import EventRequest, RecommendRequest, RequestLimits
from offrec.serving.served_policy import ServedPolicy
from offrec.serving.traffic_split import TrafficSplit


class PolicySlot:
    """The current policy of a name, with its batcher and its item search.

    Args:
        served: The policy.
        batcher: Answers its queries.
    """

    def __init__(self, served: ServedPolicy, batcher: MicroBatcher) -> None:
        self.served, self.batcher = served, batcher
        self._search: asyncio.Future[ItemSearch] | None = None

    async def item_search(self) -> ItemSearch:
        """Return the item search, which is built on the first call."""
        if self._search is None:
            self._search = asyncio.ensure_future(asyncio.to_thread(ItemSearch, self.served.policy))
        return await asyncio.shield(self._search)


RELEASE_SECONDS = 1.0  # after a reload; by then, requests to the old policies have been answered
LoadPolicy = Callable[[str], ServedPolicy]  # loads and checks the policy of a name
RequestReload = Callable[[str | None], Awaitable[dict[str, Any]]]


class Service:
    """Answer requests for one or more policies.

    All methods run in one event loop; slow work runs in threads.

    Args:
        served: The policies; the first one is the default.
        load: Loads a policy again, for `reload`.
        limits: The limits of a request.
        batching: How requests are grouped into batches.
        log: The decision log; None to write none.
        console: Prints reloads and losses of the decision log.
        skip_recent: The default of `skip_recent` in a request.
        lists: The lists of items that requests can name; None for an empty temporary folder.
        split: Assigns policies to sessions whose requests name none; None to use the default policy.
        explore: How sampled lists are made; None to sample them from the policy.
    """

    def __init__(
        self,
        served: list[ServedPolicy],
        load: LoadPolicy,
        limits: RequestLimits,
        batching: BatchingOptions,
        log: DecisionLog | None,
        console: Console,
        skip_recent: int = 0,
        lists: ItemLists | None = None,
        split: TrafficSplit | None = None,
        explore: Blend | None = None,
    ) -> None:
        self.explore = explore
        self._same_catalogue: dict[tuple[str, str], bool] = {}  # by the fingerprints of two policies
        self.skip_recent, self.lists, self.split = skip_recent, lists or ItemLists(), split
        self.limits, self.batching, self.log, self.load, self.console = limits, batching, log, load, console
        self.metrics = Metrics()
        self.metrics.report_policies(lambda: {name: slot.served.fingerprint for name, slot in self.slots.items()})
        if log is not None:
            self.metrics.report_decision_log(lambda: asdict(log.counts), lambda: log.failure is not None)
        self.stop_reason: str | None = None
        self.slots = {one.name: self._create_slot(one) for one in served}
        self.default = served[0].name
        self._reload_lock = asyncio.Lock()
        self.request_reload: RequestReload | None = None  # set in a worker process, whose supervisor reloads all
        self.read_metrics = self.metrics.text

    def _create_slot(self, served: ServedPolicy) -> PolicySlot:
        options = self.batching
        batcher = MicroBatcher(
            served.engine,
            max_batch=options.max_batch,
            max_waiting=options.max_waiting,
            wait_seconds=options.wait_ms / 1000,
            observe=partial(self.metrics.observe_batch, served.name),
        )
        return PolicySlot(served, batcher)

    def slot(self, policy: str | None) -> PolicySlot:
        """Return the slot of a policy.

        Args:
            policy: The name; None for the default policy.

        Returns:
            The slot.

        Raises:
            RequestError: If the policy does not exist (404) or the server is stopping (503).
        """
        if self.stop_reason is not None:
            raise RequestError(503, f"The server is stopping: {self.stop_reason}.")
        if policy is not None and policy not in self.slots:
            raise RequestError(404, f"policy {policy[:80]!r} does not exist; the policies are {', '.join(self.slots)}.")
        return self.slots[policy or self.default]

    async def recommend(self, request: RecommendRequest) -> dict[str, Any]:
        """Compute a list and write it to the decision log.

        Args:
            request: The validated request.

        Returns:
            The fields of `RecommendResponse`.

        Raises:
            RequestError: If the request is invalid for this policy (422) or too many requests are waiting (503).
        """
        is_split = self.split is not None and request.policy is None and request.session_id is not None
        slot = self.slot(self.split.assign(request.session_id) if is_split else request.policy)  # type: ignore[union-attr,arg-type]
        served = slot.served
        _check_against_policy(served, request, self.explore)
        request = _complete_history(request)
        skip_recent = self.skip_recent if request.skip_recent is None else request.skip_recent
        allow, deny = _names(request.allow), _names(request.deny)
        allowed = await self._allowed_items(served, allow, deny)
        query, unknown_items = _build_query(served.policy.vocabulary, request, skip_recent, allowed)
        if request.sample and self.explore is not None:
            query = replace(query, temperature=None, blend=self.explore, explorer=self._explorer(served))
        try:
            result = await slot.batcher.rank(query)
        except QueueFullError as error:
            raise RequestError(503, "Too many requests are waiting; repeat the request in a moment.") from error
        if not result.items:
            raise RequestError(422, "No item is left to recommend: the policy excludes every allowed item.")
        ids = [served.policy.vocabulary.id(item) for item in result.items]
        request_id = request.request_id or uuid.uuid4().hex
        # exclude_seen and skip_recent count as restrictions even if the history is empty. Otherwise the first lists of
        # each visit would be the only unrestricted lists in the log.
        restricted = bool(query.excluded or skip_recent or request.exclude_seen or allow or deny)
        restricted = restricted or query.candidates is not None
        logged = request.log and await self._log_list(served, request, request_id, ids, result, restricted, is_split)
        return {
            "request_id": request_id,
            "policy": served.name,
            "fingerprint": served.fingerprint,
            "items": _describe_items(ids, result, served.policy.titles(result.items)),
            "log_probability": result.log_probability,
            "unknown_items": unknown_items,
            "restricted": restricted,
            "logged": logged,
        }

    def _explorer(self, served: ServedPolicy) -> Policy | None:
        """Return the policy that --explore samples random lists from; it must have the same catalogue."""
        if self.explore is None or self.explore.policy is None:
            return None
        other = self.slots[self.explore.policy].served
        pair = (served.fingerprint, other.fingerprint)
        if pair not in self._same_catalogue:  # a comparison of a million ids
            self._same_catalogue[pair] = served.policy.vocabulary == other.policy.vocabulary
        if not self._same_catalogue[pair] or not other.policy.stochastic:
            reason = "has no probabilities" if self._same_catalogue[pair] else "has another catalogue"
            raise RequestError(422, f"sample is true, but {other.name}, which --explore names, {reason}.")
        return other.policy

    async def _log_list(
        self,
        served: ServedPolicy,
        request: RecommendRequest,
        request_id: str,
        ids: list[Id],
        result: QueryResult,
        restricted: bool,
        is_split: bool,
    ) -> bool:
        if self.log is None:
            return False
        record = {
            "kind": "list",
            "request_id": request_id,
            "time": _unix_milliseconds(),
            "session_id": request.session_id,
            "policy": served.name,
            "fingerprint": served.fingerprint,
            "history": [_catalogue_id(served.policy.vocabulary, item) for item in request.history],
            "items": ids,
            "position_probabilities": result.position_probabilities,
            "log_probability": result.log_probability,
            "sampled": request.sample,
            "temperature": request.temperature or 1.0,
            "restricted": restricted,
        }
        if request.sample and self.explore is not None:
            record["explore"] = str(self.explore)
        if is_split:
            record["split"] = str(self.split)
        record |= {name: names for name in ("allow", "deny") if (names := _names(getattr(request, name)))}
        return await self.log.record(record)

    async def _allowed_items(self, served: ServedPolicy, allow: list[str], deny: list[str]) -> AllowedItems | None:
        """Return the items that the lists of a request leave; a list of a million ids is read in a thread."""
        if not allow and not deny:
            return None
        cached = self.lists.cached(served, allow, deny)
        return cached or await asyncio.to_thread(self.lists.allowed, served, allow, deny)

    async def record_event(self, event: EventRequest) -> dict[str, Any]:
        """Write an event to the decision log.

        Args:
            event: The validated request.

        Returns:
            The fields of `EventResponse`.

        Raises:
            RequestError: If the server has no decision log (409) or cannot write it (503).
        """
        self.slot(None)
        if self.log is None:
            raise RequestError(409, "This server has no decision log; start it with --log FOLDER.")
        item: Id = event.item
        for slot in self.slots.values():
            if (index := slot.served.policy.vocabulary.index(item)) is not None:
                item = slot.served.policy.vocabulary.id(index)
                break
        record = {
            "kind": "event",
            "request_id": event.request_id,
            "time": _unix_milliseconds(),
            "session_id": event.session_id,
            "item": item,
            "behaviour": event.behaviour,
        }
        if not await self.log.record(record):
            reason = self.log.failure or "the server is stopping"
            raise RequestError(503, f"The event was not recorded: the decision log cannot be written ({reason}).")
        return {"recorded": True}

    async def put_list(self, name: str, content: bytes, is_json: bool) -> dict[str, Any]:
        """Create or replace a list, and read it for each policy.

        Args:
            name: The name of the list.
            content: Its ids: a JSON array, or text with one id per line.
            is_json: Whether the content is JSON.

        Returns:
            The fields of `ChangedListResponse`.
        """
        self.slot(None)
        description = await asyncio.to_thread(self.lists.put, name, content, is_json)
        known = {}
        for slot in list(self.slots.values()):
            allowed = await asyncio.to_thread(self.lists.allowed, slot.served, [name], [])
            known[slot.served.name] = allowed.count
        self.console.line(f"list {name} has {description.items:,} items")
        return {**description.as_json(), "known": known}

    async def read_list(self, name: str, offset: int, limit: int) -> dict[str, Any]:
        """Return the fields of `ListItemsResponse`: a list, with `limit` ids from number `offset` on."""
        description = await asyncio.to_thread(self.lists.describe, name)
        ids = await asyncio.to_thread(self.lists.ids, name) if limit else []
        return {**description.as_json(), "ids": ids[offset : offset + limit]}

    async def describe_lists(self) -> dict[str, Any]:
        """Return the fields of `ListsResponse`."""
        return {"lists": [one.as_json() for one in await asyncio.to_thread(self.lists.describe_all)]}

    async def delete_list(self, name: str) -> dict[str, Any]:
        """Delete a list; return the fields of `DeletedResponse`."""
        self.lists.delete(name)
        self.console.line(f"list {name} is deleted")
        return {"deleted": name}

    def describe_policies(self) -> dict[str, Any]:
        """Return the fields of `PoliciesResponse`."""
        return {
            "policies": [slot.served.as_json() for slot in self.slots.values()],
            "default_policy": self.default,
            "split": None if self.split is None else self.split.shares,
            "limits": asdict(self.limits),
            "decision_log": self.log is not None,
        }

    async def search_items(self, query: str, limit: int, policy: str | None) -> dict[str, Any]:
        """Find items by a part of their id or by words of their title.

        Args:
            query: The part; empty for the most popular items.
            limit: The largest number of items.
            policy: The policy whose catalogue is searched; None for the default policy.

        Returns:
            The fields of `ItemsResponse`.
        """
        search = await self.slot(policy).item_search()
        items = await asyncio.to_thread(search.find_indices, query, limit)
        titles = self.slot(policy).served.policy.titles(items)
        ids = [search.vocabulary.id(item) for item in items]
        return {"items": ids} | ({} if titles is None else {"titles": titles})

    async def reload(self, policy: str | None) -> dict[str, Any]:
        """Load policies again. All are loaded and checked before the first one is swapped.

        Args:
            policy: The policy; None for all.

        Returns:
            The fields of `ReloadResponse`.

        Raises:
            RequestError: If a policy does not exist (404) or cannot be loaded (409); then none is swapped.
        """
        self.slot(policy)
        if self.request_reload is not None:
            return await self.request_reload(policy)
        async with self._reload_lock:
            loaded = []
            for name in [policy] if policy is not None else list(self.slots):
                try:
                    loaded.append(await asyncio.to_thread(self.load, name))
                except Exception as error:  # the old policy must remain if the new run is invalid
                    self.metrics.count_reload(succeeded=False)
                    reason = first_line(error).rstrip(".")
                    self.console.line(f"reload of {name} failed, the old policy remains: {reason}")
                    shown = self.slots[name].served.public_reason(reason)
                    raise RequestError(409, f"The reload failed and the old policy remains: {shown}.") from error
            for served in loaded:
                old = self.slots[served.name].served
                self.console.line(f"reloaded {served.name}: {old.fingerprint} → {served.fingerprint}")
            self.swap(loaded)
        return {"reloaded": {served.name: served.fingerprint for served in loaded}}

    def swap(self, loaded: list[ServedPolicy]) -> None:
        """Replace policies in one step. Requests that are being computed finish with the old ones.

        Args:
            loaded: The new policies, under the names of old ones.
        """
        for served in loaded:
            old = self.slots[served.name]
            self.slots[served.name] = self._create_slot(served)
            old.batcher.close()
        self.metrics.count_reload(succeeded=True)
        loop = asyncio.get_running_loop()
        loop.call_later(RELEASE_SECONDS, loop.run_in_executor, None, release_memory)

    def longest_batch(self) -> float:
        """Return for how many seconds the oldest batch of the current policies has been computed."""
        return max(slot.batcher.seconds_computing() for slot in self.slots.values())

    def log_status(self) -> str | None:
        """Return "ok", the reason why the decision log cannot be written, or None if there is no decision log."""
        return None if self.log is None else self.log.failure or "ok"

    def stop(self, reason: str) -> None:
        """Answer all further requests with 503 and the reason."""
        self.stop_reason = reason

    def close(self) -> None:
        """Answer the waiting queries, then write the rest of the decision log."""
        for slot in self.slots.values():
            slot.batcher.close()
        self.lists.close()
        if self.log is not None and (lost := self.log.close()):
            self.console.line(f"the decision log lost {lost:,} records")


def _shown(request: RecommendRequest) -> list[tuple[list[Id], Id | None]]:
    return [(one.items, one.picked) for one in request.shown]


def _complete_history(request: RecommendRequest) -> RecommendRequest:
    """Check that the picks of `shown` are the end of the history, or make them the history if it is empty."""
    try:
        history = complete_history(request.history, _shown(request))
    except InputError as error:
        raise RequestError(422, str(error)) from error
    return request if request.history else request.model_copy(update={"history": history})


def _check_against_policy(served: ServedPolicy, request: RecommendRequest, explore: Blend | None) -> None:
    """Check the fields that depend on the policy; pydantic has checked the others."""
    n_items = served.policy.n_items
    if request.k > n_items:
        raise RequestError(422, f"k is {request.k}; the catalogue of {served.name} has only {n_items} items.")
    if request.sample and not served.policy.stochastic and explore is None:
        raise RequestError(
            422,
            f"sample is true, but {served.name} has scores and no probabilities; set it to false, or start the server "
            "with --explore blend:0.1.",
        )
    if request.temperature is not None and explore is not None:
        raise RequestError(422, f"temperature has no effect with the server's --explore {explore}; omit it.")
    if request.temperature is not None and not request.sample:
        raise RequestError(422, "temperature applies to sampled lists only; set sample to true or omit temperature.")
    if request.logging_probability and not served.engine.has_logging_policy:
        raise RequestError(422, f"logging_probability is true, but the run of {served.name} contains no π̂_b.")


def _names(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _build_query(
    vocabulary: Vocabulary, request: RecommendRequest, skip_recent: int, allowed: AllowedItems | None
) -> tuple[Query, int]:
    """Translate item ids to indices; return the query and the number of unknown ids in the history."""
    history, unknown_items = vocabulary.encode(request.history)
    excluded = set(vocabulary.encode(request.exclude)[0]) | (set(history) if request.exclude_seen else set())
    candidates: list[int] | None = None
    if request.candidates is not None:
        known = set(vocabulary.encode(request.candidates)[0])
        if not known:
            raise RequestError(422, "candidates contains no item of the catalogue; expected at least one.")
        candidates = sorted(known - excluded)
        if allowed is not None:
            mask = allowed.mask()
            candidates = [item for item in candidates if mask[item]]
    n_allowed = len(vocabulary) if allowed is None else allowed.count
    if candidates == [] or not n_allowed or len(excluded) == len(vocabulary):
        raise RequestError(422, "No item is left to recommend: every allowed item is excluded.")
    temperature = (request.temperature or 1.0) if request.sample else None
    return (
        Query(
            history,
            request.k,
            frozenset(excluded),
            candidates,
            temperature,
            request.logging_probability,
            skip_recent,
            allowed,
            encode_shown(vocabulary, _shown(request)),
        ),
        unknown_items,
    )


def _describe_items(ids: list[Id], result: QueryResult, titles: list[str | None] | None) -> list[dict[str, Any]]:
    """Return the fields of `RecommendedItem` for each item."""
    rows = [{"item": item, "score": score, "probability": None} for item, score in zip(ids, result.scores, strict=True)]
    columns: dict[str, Sequence[Any] | None] = {
        "title": titles,
        "probability": result.probabilities,
        "position_probability": result.position_probabilities,
        "logging_probability": result.logging_probabilities,
    }
    for name, values in columns.items():
        for row, value in zip(rows, values or [], strict=False):
            row[name] = value
    return rows


def _catalogue_id(vocabulary: Vocabulary, item: Id) -> Id:
    """Return an id as the catalogue spells it ("12" becomes 12); unknown ids are unchanged."""
    index = vocabulary.index(item)
    return item if index is None else vocabulary.id(index)


def _unix_milliseconds() -> int:
    return int(time.time() * 1000)
