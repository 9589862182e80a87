"""What the server does, whatever carries the messages: recommend, record, reload."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from offrec.console import Console
from offrec.data.vocabulary import Vocabulary
from offrec.errors import first_line
from offrec.policy import Id
from offrec.serving.decision_log import DecisionLog
from offrec.serving.engine import Answer, Query
from offrec.serving.errors import RequestError
from offrec.serving.item_search import ItemSearch
from offrec.serving.metrics import Metrics
from offrec.serving.micro_batching import MicroBatcher, QueueFullError
from offrec.serving.schemas import Event, Recommend
from offrec.serving.served_policy import ServedPolicy


@dataclass(frozen=True)
class Limits:
    k: int = 1000
    history: int = 1000
    exclude: int = 10_000
    candidates: int = 10_000
    body: int = 1 << 20


@dataclass(frozen=True)
class BatchingOptions:
    wait_ms: float = 2.0
    most: int = 64
    waiting: int = 1024


class PolicySlot:
    """A policy, what answers for it, and its items by popularity, made when first searched."""

    def __init__(self, served: ServedPolicy, batcher: MicroBatcher) -> None:
        self.served, self.batcher = served, batcher
        self._search: asyncio.Future[ItemSearch] | None = None

    async def search(self) -> ItemSearch:
        if self._search is None:
            self._search = asyncio.ensure_future(asyncio.to_thread(ItemSearch, self.served.policy))
        return await asyncio.shield(self._search)


Loader = Callable[[str], ServedPolicy]  # loads and checks the run of a name


class Service:
    """All methods run in one event loop; what takes long runs in threads."""

    def __init__(
        self,
        served: list[ServedPolicy],
        load: Loader,
        limits: Limits,
        batching: BatchingOptions,
        log: DecisionLog | None,
        say: Console,
    ) -> None:
        self.limits, self.batching, self.log, self.load, self.console = limits, batching, log, load, say
        self.metrics = Metrics()
        self.stopping: str | None = None  # why nobody is served any more
        self.slots = {one.name: self._slot(one) for one in served}
        self.default = served[0].name
        self._reloading = asyncio.Lock()

    def _slot(self, served: ServedPolicy) -> PolicySlot:
        watch = partial(self.metrics.batch, served.name)
        wait, most, waiting = self.batching.wait_ms / 1000, self.batching.most, self.batching.waiting
        return PolicySlot(served, MicroBatcher(served.engine, most=most, waiting=waiting, wait=wait, watch=watch))

    async def recommend(self, asked: Recommend) -> dict[str, Any]:
        slot = self.slot(asked.policy)
        served = slot.served
        self._check(served, asked)
        ask, unknown = _ask(served.policy.vocabulary, asked)
        try:
            answer = await slot.batcher.ask(ask)
        except QueueFullError as error:
            raise RequestError(503, "Too many requests are waiting; ask again in a moment.") from error
        if not answer.items:
            raise RequestError(422, "No item is left to recommend: the policy excludes every allowed item.")
        ids = [served.policy.vocabulary.id(item) for item in answer.items]
        request = asked.request_id or uuid.uuid4().hex
        # Also where nothing was seen yet: else the visits that ended before a pick would be the only free ones.
        restricted = bool(ask.barred) or ask.allowed is not None or asked.exclude_seen
        logged = asked.log and self._log_list(served, asked, request, ids, answer, restricted)
        return {
            "request_id": request,
            "policy": served.name,
            "fingerprint": served.fingerprint,
            "items": _shown(ids, answer),
            "log_probability": answer.log_probability,
            "unknown_items": unknown,
            "restricted": restricted,
            "logged": logged,
        }

    def slot(self, name: str | None) -> PolicySlot:
        if self.stopping is not None:
            raise RequestError(503, f"The server is stopping: {self.stopping}.")
        if name is not None and name not in self.slots:
            raise RequestError(404, f"There is no policy {name[:80]!r}; there are {', '.join(self.slots)}.")
        return self.slots[name or self.default]

    def _check(self, served: ServedPolicy, asked: Recommend) -> None:
        policy, limits = served.policy, self.limits
        most = min(limits.k, policy.n_items)
        if asked.k > most:
            raise RequestError(422, f"k is {asked.k}; it may be at most {most} here.")
        for name, given in (("history", asked.history), ("exclude", asked.exclude), ("candidates", asked.candidates)):
            if given is not None and len(given) > getattr(limits, name):
                raise RequestError(422, f"{name} has {len(given)} items; the limit is {getattr(limits, name)}.")
        if asked.sample and not policy.stochastic:
            raise RequestError(422, f"{served.name} has scores, not probabilities; leave out sample.")
        if asked.temperature is not None and not asked.sample:
            raise RequestError(422, "A temperature is for a sampled list; set sample, or leave temperature out.")
        if asked.logging_probability and not served.engine.knows_logging:
            raise RequestError(422, f"The run of {served.name} holds no logging policy; leave out logging_probability.")

    def _log_list(
        self, served: ServedPolicy, asked: Recommend, request: str, ids: list[Id], answer: Answer, restricted: bool
    ) -> bool:
        if self.log is None:
            return False
        record = {
            "kind": "list",
            "request_id": request,
            "time": _now(),
            "session_id": asked.session_id,
            "policy": served.name,
            "fingerprint": served.fingerprint,
            "history": [_own(served.policy.vocabulary, item) for item in asked.history],
            "items": ids,
            "position_probabilities": answer.places,
            "log_probability": answer.log_probability,
            "sampled": asked.sample,
            "temperature": asked.temperature or 1.0,
            "restricted": restricted,
        }
        return self.log.add(record)

    def event(self, event: Event) -> dict[str, Any]:
        self.slot(None)
        if self.log is None:
            raise RequestError(409, "This server keeps no decision log; start it with --log FOLDER.")
        item: Id = event.item
        for slot in self.slots.values():
            if (index := slot.served.policy.vocabulary.index(item)) is not None:
                item = slot.served.policy.vocabulary.id(index)
                break
        record = {"kind": "event", "request_id": event.request_id, "time": _now(), "session_id": event.session_id}
        if not self.log.add({**record, "item": item, "behaviour": event.behaviour}):
            reason = self.log.failure or "more waits for the disk than it takes"
            raise RequestError(503, f"The event was not recorded: the decision log cannot be written ({reason}).")
        return {"recorded": True}

    def policies(self) -> dict[str, Any]:
        facts = [slot.served.as_json() for slot in self.slots.values()]
        return {
            "policies": facts,
            "default_policy": self.default,
            "limits": asdict(self.limits),
            "decision_log": self.log is not None,
        }

    async def items(self, query: str, limit: int, policy: str | None) -> dict[str, Any]:
        search = await self.slot(policy).search()
        return {"items": await asyncio.to_thread(search.find, query, limit)}

    async def reload(self, name: str | None) -> dict[str, Any]:
        """All that were asked for are loaded and checked before any is swapped."""
        self.slot(name)
        async with self._reloading:
            fresh = []
            for one in [name] if name is not None else list(self.slots):
                try:
                    fresh.append(await asyncio.to_thread(self.load, one))
                except Exception as error:  # whatever is wrong with the new run, the old one goes on
                    self.metrics.reload(False)
                    reason = first_line(error).rstrip(".")
                    self.console.line(f"reload refused, {one} stays as it is: {reason}")
                    raise RequestError(409, f"The new run was refused and the old one stays: {reason}.") from error
            for served in fresh:
                before = self.slots[served.name]
                self.slots[served.name] = self._slot(served)
                before.batcher.close()
                self.console.line(f"reloaded {served.name}: {before.served.fingerprint} → {served.fingerprint}")
            self.metrics.reload(True)
        return {"reloaded": {served.name: served.fingerprint for served in fresh}}

    def log_status(self) -> str | None:
        return None if self.log is None else self.log.failure or "ok"

    def metrics_text(self) -> str:
        fingerprints = {name: slot.served.fingerprint for name, slot in self.slots.items()}
        log: dict[str, float] = {}
        if self.log is not None:
            log = {f"{name}_total": count for name, count in asdict(self.log.counts).items()}
            log["failing"] = int(self.log.failure is not None)
        return self.metrics.text(fingerprints, log)

    def stop(self, reason: str) -> None:
        self.stopping = reason

    def close(self) -> None:
        for slot in self.slots.values():
            slot.batcher.close()
        if self.log is not None and (lost := self.log.close()):
            self.console.line(f"{lost:,} records of the decision log were lost")


def _ask(vocabulary: Vocabulary, asked: Recommend) -> tuple[Query, int]:
    seen, unknown = vocabulary.encode(asked.history)
    barred = set(vocabulary.encode(asked.exclude)[0]) | (set(seen) if asked.exclude_seen else set())
    allowed: list[int] | None = None
    if asked.candidates is not None:
        known = set(vocabulary.encode(asked.candidates)[0])
        if not known:
            raise RequestError(422, "None of the candidates is in the catalogue; give ids as they stand in the log.")
        allowed = sorted(known - barred)
    if allowed == [] or len(barred) == len(vocabulary):
        raise RequestError(422, "Nothing is left to recommend: every item that may be shown is excluded.")
    heat = (asked.temperature or 1.0) if asked.sample else None
    return Query(seen, asked.k, frozenset(barred), allowed, heat, asked.logging_probability), unknown


def _shown(ids: list[Id], answer: Answer) -> list[dict[str, Any]]:
    rows = [{"item": item, "score": score, "probability": None} for item, score in zip(ids, answer.scores, strict=True)]
    columns = (
        ("probability", answer.probabilities),
        ("position_probability", answer.places),
        ("logging_probability", answer.logging),
    )
    for name, column in columns:
        for row, value in zip(rows, column or [], strict=False):
            row[name] = value
    return rows


def _own(vocabulary: Vocabulary, item: Id) -> Id:
    """An id as the catalogue spells it, where it knows it."""
    index = vocabulary.index(item)
    return item if index is None else vocabulary.id(index)


def _now() -> int:
    return int(time.time() * 1000)
