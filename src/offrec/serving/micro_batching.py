"""Micro-batching: answer queries that arrive at about the same time in one batch.

A thread computes all waiting queries in one batch; new queries queue up in the meantime. A single query therefore
never waits, and batches grow with the load. After a batch of several queries, the next batch waits briefly for the same
number of queries, because the clients that were just answered are about to send their next request.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from offrec.errors import InputError
from offrec.serving.engine import Query, QueryResult

ObserveBatch = Callable[[int, float], None]  # (queries, seconds) of a batch


class Ranker(Protocol):
    """Interface of an engine that a micro-batcher needs."""

    def rank(self, queries: Sequence[Query]) -> list[QueryResult]: ...


class QueueFullError(Exception):
    """Raised if too many queries are waiting, or the batcher is closed."""


class MicroBatcher:
    """Collects queries of an event loop and answers them in batches, in a separate thread.

    Args:
        engine: Computes the batches.
        max_batch: The largest number of queries in a batch.
        max_waiting: The largest number of waiting queries; further queries are rejected.
        wait_seconds: The longest time to wait for more queries under load.
        observe: Called after each batch with its size and its computing time.
    """

    def __init__(
        self, engine: Ranker, *, max_batch: int, max_waiting: int, wait_seconds: float, observe: ObserveBatch
    ) -> None:
        self.engine, self.max_batch, self.max_waiting = engine, max_batch, max_waiting
        self.wait_seconds, self.observe = wait_seconds, observe
        self.queue: deque[tuple[Query, asyncio.Future[QueryResult]]] = deque()
        self.changed = threading.Condition()
        self.closed = False
        self.expected = 1  # the size of the last batch
        self.started_at: float | None = None  # when the current batch was started
        self.thread = threading.Thread(target=self._run, name="offrec-batch", daemon=True)
        self.thread.start()

    async def rank(self, query: Query) -> QueryResult:
        """Answer a query together with the others that are waiting.

        Args:
            query: The query.

        Returns:
            Its result.

        Raises:
            QueueFullError: If too many queries are waiting, or after `close`.
        """
        future: asyncio.Future[QueryResult] = asyncio.get_running_loop().create_future()
        with self.changed:
            if self.closed or len(self.queue) >= self.max_waiting:
                raise QueueFullError
            self.queue.append((query, future))
            if len(self.queue) == 1 or len(self.queue) >= min(self.expected, self.max_batch):
                self.changed.notify()
        return await future

    def close(self) -> None:
        """Stop accepting queries. Waiting queries are still answered; then the thread ends."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def seconds_computing(self) -> float:
        """Return for how long the current batch has been computed; 0 if there is none."""
        started_at = self.started_at
        return 0.0 if started_at is None else time.monotonic() - started_at

    def _run(self) -> None:
        while batch := self._next_batch():
            start = time.perf_counter()
            self.started_at = time.monotonic()
            queries = [query for query, _ in batch]
            results: Sequence[QueryResult | Exception]
            try:
                results = self.engine.rank(queries)
            except Exception as error:  # passed to every client of the batch; the thread continues
                results = [error] * len(queries)
            self.started_at = None
            self.observe(len(queries), time.perf_counter() - start)
            _deliver([future for _, future in batch], results)

    def _next_batch(self) -> list[tuple[Query, "asyncio.Future[QueryResult]"]]:
        """Wait for queries and take them from the queue; return an empty batch once the batcher is closed and empty."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self.queue) or self.closed)
            enough = min(self.expected, self.max_batch)
            if len(self.queue) < enough and self.wait_seconds and not self.closed:
                self._wait_for_more(enough)
            batch = [self.queue.popleft() for _ in range(min(len(self.queue), self.max_batch))]
            self.expected = max(1, len(batch))
            return batch

    def _wait_for_more(self, enough: int) -> None:
        self.changed.wait_for(lambda: len(self.queue) >= enough or self.closed, self.wait_seconds)


def _deliver(futures: list["asyncio.Future[QueryResult]"], results: Sequence[QueryResult | Exception]) -> None:
    """Set the results in the event loop, with one call for the whole batch."""
    pairs: list[Any] = list(zip(futures, results, strict=True))

    def set_results() -> None:
        for future, result in pairs:
            if future.done():  # the client disconnected
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    try:
        futures[0].get_loop().call_soon_threadsafe(set_results)
    except RuntimeError as error:  # the event loop ended, and all clients with it
        raise InputError("The server was stopped during a computation.") from error
