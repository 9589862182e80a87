"""Several things at once: polars and numpy let go of the interpreter while they work on large arrays."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Part = TypeVar("Part")
WORKERS = min(os.cpu_count() or 1, 8)


def run_concurrently(*tasks: Callable[[], Any]) -> list[Any]:
    """What the tasks return, each run in a thread of its own."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def run_for_each(task: Callable[[Part], None], parts: Iterable[Part]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(task, parts))
