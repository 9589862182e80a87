"""Threads for work in numpy and polars, which release Python's global interpreter lock."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Part = TypeVar("Part")
WORKERS = min(os.cpu_count() or 1, 8)


def run_concurrently(*tasks: Callable[[], Any]) -> list[Any]:
    """Run each task in its own thread and return their results in order."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def run_for_each(task: Callable[[Part], None], parts: Iterable[Part]) -> None:
    """Call `task` with each part, in up to `WORKERS` threads."""
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(task, parts))
