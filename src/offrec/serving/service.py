"""The server's operations, independent of HTTP: recommend, record events, search items, reload."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

from offrec.console import Console
from offrec.policy import Id, Policy
from offrec.serving.decision_log import DecisionLog
from offrec.serving.engine import QueryResult
from offrec.serving.errors import RequestError
from offrec.serving.exploration import Blend
from offrec.serving.held_lists import HeldLists
from offrec.serving.item_lists import ItemLists
from offrec.serving.metrics import Metrics
from offrec.serving.micro_batching import QueueFullError
from offrec.serving.options import BatchingOptions
from offrec.serving.policy_slots import LoadPolicy, PolicySlot, PolicySlots
from offrec.serving.queries import (
    build_query,
    catalogue_id,
    check_request,
    describe_items,
    list_names,
    with_complete_history,
)
from offrec.serving.recent_requests import RecentRequests
from offrec.serving.schemas import EventRequest, RecommendRequest, RequestLimits
from offrec.serving.served_policy import ServedPolicy
from offrec.serving.traffic_split import TrafficSplit

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
        requests: The ids of logged lists, shared with other workers; None for this process alone.
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
        requests: RecentRequests | None = None,
    ) -> None:
        self.explore = explore
        self._same_catalogue: dict[tuple[str, str], bool] = {}  # by the fingerprints of two policies
        self.skip_recent, self.split = skip_recent, split
        self.limits, self.log, self.console = limits, log, console
        self.requests = requests or RecentRequests()
        self.metrics = Metrics()
        self.policies = PolicySlots(served, load, batching, self.metrics, console)
        self.lists = HeldLists(lists or ItemLists(), self.policies, console)
        if log is not None:
            self.metrics.report_decision_log(lambda: asdict(log.counts), lambda: log.failure is not None)
        self.stop_reason: str | None = None
        self.request_reload: RequestReload | None = None  # set in a worker process, whose supervisor reloads all
        self.read_metrics = self.metrics.text

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
        return self.policies.get(policy)

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
        check_request(served, request, self.explore)
        request = with_complete_history(request)
        skip_recent = self.skip_recent if request.skip_recent is None else request.skip_recent
        allow, deny = list_names(request.allow), list_names(request.deny)
        allowed = await self.lists.allowed(served, allow, deny)
        query, unknown = build_query(served.policy.vocabulary, request, skip_recent, allowed)
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
        if logged:
            self.requests.add(request_id, ids)
        self.metrics.count_unknown_items("history", unknown.history)
        self.metrics.count_unknown_items("shown", unknown.shown)
        return {
            "request_id": request_id,
            "policy": served.name,
            "fingerprint": served.fingerprint,
            "items": describe_items(ids, result, served.policy.titles(result.items)),
            "log_probability": result.log_probability,
            "unknown_items": unknown.history,
            "unknown_shown": unknown.shown,
            "restricted": restricted,
            "logged": logged,
        }

    def _explorer(self, served: ServedPolicy) -> Policy | None:
        """Return the policy that --explore samples random lists from; it must have the same catalogue."""
        if self.explore is None or self.explore.policy is None:
            return None
        other = self.policies.slots[self.explore.policy].served
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
            "history": [catalogue_id(served.policy.vocabulary, item) for item in request.history],
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
        record |= {name: names for name in ("allow", "deny") if (names := list_names(getattr(request, name)))}
        return await self.log.record(record)

    async def record_event(self, event: EventRequest) -> dict[str, Any]:
        """Write an event to the decision log.

        Events of unknown items and requests are written too: an item may be too new for the policies, and a list may
        have been served before the server was restarted.

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
        item = self.policies.catalogue_id(event.item)
        logged_item = event.item if item is None else item
        in_list = None if event.request_id is None else self.requests.may_contain(event.request_id, logged_item)
        is_known_request = None if event.request_id is None else in_list is not None
        record: dict[str, Any] = {
            "kind": "event",
            "request_id": event.request_id,
            "time": _unix_milliseconds(),
            "session_id": event.session_id,
            "item": logged_item,
            "behaviour": event.behaviour,
        }
        if event.reward is not None:
            record["reward"] = event.reward
        if not await self.log.record(record):
            reason = self.log.failure or "the server is stopping"
            raise RequestError(503, f"The event was not recorded: the decision log cannot be written ({reason}).")
        self.metrics.count_unknown_items("event", item is None)
        self.metrics.count_unknown_requests(is_known_request is False)
        self.metrics.count_unlisted_items(in_list is False)
        return {
            "recorded": True,
            "known_item": item is not None,
            "known_request": is_known_request,
            "in_list": in_list,
        }

    def describe_policies(self) -> dict[str, Any]:
        """Return the fields of `PoliciesResponse`."""
        return {
            "policies": [slot.served.as_json() for slot in self.policies.slots.values()],
            "default_policy": self.policies.default,
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
        return await self.policies.reload(policy)

    def log_status(self) -> str | None:
        """Return "ok", the reason why the decision log cannot be written, or None if there is no decision log."""
        return None if self.log is None else self.log.failure or "ok"

    def stop(self, reason: str) -> None:
        """Answer all further requests with 503 and the reason."""
        self.stop_reason = reason

    def close(self) -> None:
        """Answer the waiting queries, then write the rest of the decision log."""
        self.policies.close()
        self.lists.close()
        if self.log is not None and (lost := self.log.close()):
            self.console.line(f"the decision log lost {lost:,} records")


def _unix_milliseconds() -> int:
    return int(time.time() * 1000)
