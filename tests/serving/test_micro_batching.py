"""Queries that arrive together are answered together, and a single query does not wait for others."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from offrec.serving.engine import Query, QueryResult
from offrec.serving.micro_batching import MicroBatcher, QueueFullError


class RecordingEngine:
    """An engine that waits until it is released, and records the sizes of its batches. It fails for k = 13."""

    def __init__(self) -> None:
        self.sizes = list[int]()
        self.started, self.released = threading.Event(), threading.Event()
        self.released.set()

    def rank(self, queries: Sequence[Query]) -> list[QueryResult]:
        self.started.set()
        assert self.released.wait(60)
        self.sizes.append(len(queries))
        if any(query.k == 13 for query in queries):
            raise ValueError("thirteen")
        return [QueryResult([query.k], [0.0], None) for query in queries]

    def hold(self) -> None:
        self.started.clear()
        self.released.clear()


class RecordingBatcher(MicroBatcher):
    """A batcher that records when it decides to wait for more queries."""

    def __init__(self, engine: RecordingEngine, **options: Any) -> None:
        self.waits: list[int] = []
        defaults = {"max_batch": 8, "max_waiting": 100, "wait_seconds": 0.05, "observe": lambda size, seconds: None}
        super().__init__(engine, **{**defaults, **options})

    def _wait_for_more(self, enough: int) -> None:
        self.waits.append(enough)
        super()._wait_for_more(enough)


def send(batcher: MicroBatcher, *ks: int) -> "asyncio.Future[list[Any]]":
    return asyncio.gather(*(batcher.rank(Query([], k)) for k in ks), return_exceptions=True)


async def occupy(batcher: MicroBatcher, engine: RecordingEngine) -> "asyncio.Future[list[Any]]":
    """Send a query with k = 1 that keeps the engine busy until it is released."""
    engine.hold()
    first = send(batcher, 1)
    await asyncio.to_thread(engine.started.wait, 20)
    return first


async def queue_length(batcher: MicroBatcher, length: int) -> None:
    while len(batcher.queue) < length:
        await asyncio.sleep(0.001)


def test_queries_that_arrive_during_a_batch_form_the_next_one() -> None:
    engine = RecordingEngine()

    async def run() -> None:
        batcher = RecordingBatcher(engine)
        first = await occupy(batcher, engine)
        others = send(batcher, *range(2, 12))
        await queue_length(batcher, 10)
        engine.released.set()
        assert [result.items for result in await first] == [[1]]
        assert [result.items for result in await others] == [[k] for k in range(2, 12)]
        batcher.close()

    asyncio.run(run())
    assert engine.sizes == [1, 8, 2]


def test_a_single_query_does_not_wait_for_others() -> None:
    engine = RecordingEngine()

    async def run() -> list[int]:
        batcher = RecordingBatcher(engine, wait_seconds=600.0)
        for k in range(5):
            await batcher.rank(Query([], k))
        batcher.close()
        return batcher.waits

    assert asyncio.run(run()) == []
    assert engine.sizes == [1] * 5


def test_after_a_batch_of_two_the_next_batch_waits_for_two() -> None:
    engine = RecordingEngine()

    async def run() -> list[int]:
        batcher = RecordingBatcher(engine, wait_seconds=600.0)
        first = await occupy(batcher, engine)
        pair = send(batcher, 2, 3)
        await queue_length(batcher, 2)
        engine.released.set()
        await first
        await pair
        early = send(batcher, 4)
        while not batcher.waits:
            await asyncio.sleep(0.001)
        late = send(batcher, 5)  # ends the wait, which would otherwise last ten minutes
        await early
        await late
        batcher.close()
        return batcher.waits

    assert asyncio.run(run()) == [2]
    assert engine.sizes == [1, 2, 2]


def test_the_wait_for_more_queries_ends_without_them() -> None:
    engine = RecordingEngine()

    async def run() -> list[int]:
        batcher = RecordingBatcher(engine, wait_seconds=0.01)
        first = await occupy(batcher, engine)
        pair = send(batcher, 2, 3)
        await queue_length(batcher, 2)
        engine.released.set()
        await first
        await pair
        await send(batcher, 4)
        batcher.close()
        return batcher.waits

    assert asyncio.run(run()) == [2]
    assert engine.sizes == [1, 2, 1]


def test_a_full_queue_refuses_queries_and_errors_reach_their_clients() -> None:
    engine = RecordingEngine()

    async def run() -> None:
        batcher = RecordingBatcher(engine, max_waiting=3, max_batch=1)
        first = await occupy(batcher, engine)
        others = send(batcher, 2, 13, 4, 5)
        await queue_length(batcher, 3)
        await asyncio.sleep(0)
        engine.released.set()
        await first
        two, thirteen, four, five = await others
        assert two.items == [2]
        assert isinstance(thirteen, ValueError)
        assert four.items == [4], "the thread goes on after an error"
        assert isinstance(five, QueueFullError)
        batcher.close()
        with pytest.raises(QueueFullError):
            await batcher.rank(Query([], 1))

    asyncio.run(run())


def test_closing_answers_the_waiting_queries() -> None:
    engine = RecordingEngine()

    async def run() -> None:
        batcher = RecordingBatcher(engine, max_batch=2)
        first = await occupy(batcher, engine)
        waiting = send(batcher, *range(2, 8))
        await queue_length(batcher, 6)
        batcher.close()
        engine.released.set()
        await first
        assert [result.items for result in await waiting] == [[k] for k in range(2, 8)]
        await asyncio.to_thread(batcher.thread.join, 20)
        assert not batcher.thread.is_alive()

    asyncio.run(run())
