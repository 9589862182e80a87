"""Run a function in several processes that communicate by gloo, and collect their results.

The processes are forked from one that has imported torch, so that a world starts in a fraction of a second. They end
when their parent dies, and a world that takes too long is killed.
"""

import ctypes
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 120.0  # for a world, on a busy machine
PR_SET_PDEATHSIG = 1


def run_ranks(size: int, function: Callable[[int], Any], seconds: float = SECONDS) -> list[Any]:
    """Run function(rank) in `size` processes with a default process group; return the results in rank order.

    Raises:
        RuntimeError: With the traceback of the first rank that failed, or the ranks that did not end in time.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [_fork(rank, size, function, folder) for rank in range(size)]
        left = _wait(children, time.monotonic() + seconds)
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        outcomes = [_read(folder / f"{rank}") for rank in range(size)]
    failures = [text for is_right, text in outcomes if not is_right]
    if failures or left:
        raise RuntimeError("\n".join(sorted(failures, key=lambda text: "gloo" in text)[:1]) or f"{len(left)} hung")
    return [result for _, result in outcomes]


def _fork(rank: int, size: int, function: Callable[[int], Any], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        outcome = (True, _run(rank, size, function, folder))
    except BaseException:
        outcome = (False, f"rank {rank}: {traceback.format_exc()}")
    (folder / f"{rank}.partial").write_bytes(pickle.dumps(outcome))
    (folder / f"{rank}.partial").rename(folder / f"{rank}")
    sys.stdout.flush()
    os._exit(0 if outcome[0] else 1)


def _run(rank: int, size: int, function: Callable[[int], Any], folder: Path) -> Any:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    return function(rank)


def _wait(children: list[int], until: float) -> list[int]:
    left = list(children)
    while left and time.monotonic() < until:
        for child in list(left):
            if os.waitpid(child, os.WNOHANG)[0]:
                left.remove(child)
        time.sleep(0.01)
    return left


def _read(path: Path) -> tuple[bool, Any]:
    if not path.exists():
        return False, f"rank {path.name} ended without a result"
    outcome: tuple[bool, Any] = pickle.loads(path.read_bytes())
    return outcome
