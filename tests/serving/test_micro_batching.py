"""Who asks together is answered together, and nobody waits for nobody."""

import asyncio
import threading
import time
from typing import Any

import pytest

from offrec.serving.engine import Answer, Query
from offrec.serving.micro_batching import MicroBatcher, QueueFullError


class Slow:
    """An engine that takes its time and notes who came together."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.sizes = seconds, list[int]()
        self.go = threading.Event()
        self.go.set()

    def answer(self, asks: list[Query]) -> list[Answer]:
        self.go.wait()
        time.sleep(self.seconds)
        self.sizes.append(len(asks))
        if any(ask.k == 13 for ask in asks):
            raise ValueError("thirteen")
        return [Answer([ask.k], [0.0], None) for ask in asks]


def batcher(engine: Any, **options: Any) -> MicroBatcher:
    return MicroBatcher(
        engine, **{"most": 8, "waiting": 100, "wait": 0.05, "watch": lambda size, seconds: None, **options}
    )


async def asked(to: MicroBatcher, *ks: int) -> list[Any]:
    return await asyncio.gather(*(to.ask(Query([], k)) for k in ks), return_exceptions=True)


def test_those_who_come_meanwhile_are_answered_together() -> None:
    engine = Slow()

    async def run() -> None:
        made = batcher(engine)
        engine.go.clear()
        first = asyncio.ensure_future(asked(made, 1))
        await asyncio.sleep(0.02)
        others = asyncio.ensure_future(asked(made, *range(2, 12)))
        await asyncio.sleep(0.02)
        engine.go.set()
        assert [answer.items for answer in await first] == [[1]]
        assert [answer.items for answer in await others] == [[k] for k in range(2, 12)]
        made.close()

    asyncio.run(run())
    assert engine.sizes == [1, 8, 2]


def test_a_lone_request_does_not_wait() -> None:
    engine = Slow()

    async def run() -> float:
        made = batcher(engine, wait=9.0)
        began = time.perf_counter()
        for k in range(5):
            await made.ask(Query([], k))
        made.close()
        return time.perf_counter() - began

    assert asyncio.run(run()) < 3.0
    assert engine.sizes == [1] * 5


def test_after_company_the_next_waits_for_as_many_but_not_for_long() -> None:
    engine = Slow()

    async def run() -> tuple[float, float]:
        made = batcher(engine, wait=1.0)
        engine.go.clear()
        first = asyncio.ensure_future(asked(made, 1))
        await asyncio.sleep(0.02)
        others = asyncio.ensure_future(asked(made, 2, 3))
        await asyncio.sleep(0.02)
        engine.go.set()
        await first
        await others
        began = time.perf_counter()
        pair = asyncio.ensure_future(asked(made, 4))
        await asyncio.sleep(0.02)
        await asked(made, 5)
        await pair
        together = time.perf_counter() - began
        began = time.perf_counter()
        await asked(made, 6)
        alone = time.perf_counter() - began
        made.close()
        return together, alone

    together, alone = asyncio.run(run())
    assert engine.sizes == [1, 2, 2, 1]
    assert together < 0.7, "as soon as as many are there"
    assert 0.9 < alone < 3.0


def test_too_many_are_refused_and_errors_reach_who_asked() -> None:
    engine = Slow()

    async def run() -> None:
        made = batcher(engine, waiting=3, most=1)
        engine.go.clear()
        first = asyncio.ensure_future(asked(made, 1))
        await asyncio.sleep(0.05)
        rest = asyncio.ensure_future(asked(made, 2, 13, 4, 5))
        await asyncio.sleep(0.02)
        engine.go.set()
        await first
        two, thirteen, four, five = await rest
        assert two.items == [2]
        assert isinstance(thirteen, ValueError)
        assert four.items == [4], "the thread lives on"
        assert isinstance(five, QueueFullError)
        made.close()
        with pytest.raises(QueueFullError):
            await made.ask(Query([], 1))

    asyncio.run(run())


def test_closing_answers_those_who_wait() -> None:
    engine = Slow(0.02)

    async def run() -> None:
        made = batcher(engine, most=2)
        waiting = asyncio.ensure_future(asked(made, *range(1, 8)))
        await asyncio.sleep(0.01)
        made.close()
        assert [answer.items for answer in await waiting] == [[k] for k in range(1, 8)]
        made.thread.join(1)
        assert not made.thread.is_alive()

    asyncio.run(run())
