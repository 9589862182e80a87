"""An engine that runs everything in this process, so that tests need no cluster. Arguments are pickled, as by Ray."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class InProcess:
    """Runs parts and jobs one after the other.

    Args:
        slots: The number of tasks that a cluster would run concurrently.
        deaths: How many of the first jobs end without having run, as if their process had died.
    """

    gpus = 0.0

    def __init__(self, slots: int = 3, deaths: int = 0) -> None:
        self.slots, self.deaths, self.jobs = slots, deaths, 0

    def map(self, step: Callable[..., Any], parts: Iterable[Any], *shared: Any) -> Iterator[Any]:
        for part in parts:
            yield pickle.loads(pickle.dumps(step(*pickle.loads(pickle.dumps((part, *shared))))))

    def run_jobs(
        self, function: Callable[..., None], jobs: Iterable[tuple[Any, tuple[Any, ...]]]
    ) -> Iterator[tuple[Any, str | None]]:
        for key, arguments in jobs:
            self.jobs += 1
            if self.jobs <= self.deaths:
                yield key, "the process died"
            else:
                function(*pickle.loads(pickle.dumps(arguments)))
                yield key, None

    def on_each_node(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {"10.0.0.1 (head)": function(*arguments)}
