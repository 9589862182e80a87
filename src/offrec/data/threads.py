"""Two or three things at once: polars and numpy let go of the interpreter while they work on large arrays."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """What the tasks return, each run in a thread of its own."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]
