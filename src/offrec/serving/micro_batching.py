"""Asks that come about the same time, answered together.

A thread takes what is waiting and answers it in one pass; meanwhile others gather. So a lone request never waits, and
the busier the server, the larger the batches. Only where the last batch had company does the next one wait a moment for
as many again: those who have just been answered are about to ask anew.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from offrec.errors import InputError
from offrec.serving.engine import Answer, Engine, Query

Watch = Callable[[int, float], None]  # (asks, seconds) of each batch


class QueueFullError(Exception):
    """Too many are waiting already."""


class MicroBatcher:
    """`most`: asks in a batch. `waiting`: asks that may wait; more are refused. `wait`: seconds to wait for company."""

    def __init__(self, engine: Engine, *, most: int, waiting: int, wait: float, watch: Watch) -> None:
        self.engine, self.most, self.waiting, self.wait, self.watch = engine, most, waiting, wait, watch
        self.queue: deque[tuple[Query, asyncio.Future[Answer]]] = deque()
        self.changed = threading.Condition()
        self.closed = False
        self.expected = 1  # as many as came together last time
        self.thread = threading.Thread(target=self._work, name="offrec-batch", daemon=True)
        self.thread.start()

    async def ask(self, ask: Query) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with self.changed:
            if self.closed or len(self.queue) >= self.waiting:
                raise QueueFullError
            self.queue.append((ask, future))
            if len(self.queue) == 1 or len(self.queue) >= min(self.expected, self.most):
                self.changed.notify()
        return await future

    def close(self) -> None:
        """Those who wait are still answered; then the thread ends."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def _work(self) -> None:
        while taken := self._take():
            began = time.perf_counter()
            asks = [ask for ask, _ in taken]
            found: Sequence[Answer | Exception]
            try:
                found = self.engine.answer(asks)
            except Exception as error:  # one for all who asked, each of whom sees it; the thread must live on
                found = [error] * len(asks)
            self.watch(len(asks), time.perf_counter() - began)
            _deliver([future for _, future in taken], found)

    def _take(self) -> list[tuple[Query, "asyncio.Future[Answer]"]]:
        """What is waiting, as soon as there is something; nothing when closed and done."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self.queue) or self.closed)
            enough = min(self.expected, self.most)
            if len(self.queue) < enough and self.wait and not self.closed:
                self.changed.wait_for(lambda: len(self.queue) >= enough or self.closed, self.wait)
            taken = [self.queue.popleft() for _ in range(min(len(self.queue), self.most))]
            self.expected = max(1, len(taken))
            return taken


def _deliver(futures: list["asyncio.Future[Answer]"], found: Sequence[Answer | Exception]) -> None:
    """To the event loop, in one call for all."""
    pairs: list[Any] = list(zip(futures, found, strict=True))

    def settle() -> None:
        for future, result in pairs:
            if future.done():  # who asked has gone
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    try:
        futures[0].get_loop().call_soon_threadsafe(settle)
    except RuntimeError as error:  # the loop has ended, and with it everybody who waited
        raise InputError("The server was stopped while it computed.") from error
