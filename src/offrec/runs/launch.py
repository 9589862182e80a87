"""Run a command in the processes that torchrun started.

    torchrun --nproc-per-node 4 -m offrec train DATA --out RUN --catalogue-ranks 4

If a rank fails or dies, its connections close, all other ranks end within seconds, and one of them prints one sentence.
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from offrec.errors import InputError, Interrupted, exit_code, plain_text
from offrec.runs.replacement import MARK, replacement_folder
from offrec.runs.sharded import train_sharded
from offrec.training.ranks import Ranks

TIMEOUT = timedelta(minutes=10)  # of a message: another rank may verify a dataset or write a checkpoint meanwhile
LOST = (
    "Another rank ended or its connection was lost, so all ranks stop; continue the run with --resume, or let torchrun "
    "restart it with --max-restarts."
)
LOST_TEXTS = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "store")


def is_ranked() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ


def restarts() -> int:
    """Return how often torchrun has restarted the ranks."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def run_ranked(work: Callable[[Ranks], None], catalogue_ranks: int | None, device: str) -> None:
    """Connect the ranks, run `work` in each, and end the process.

    This function does not return if `work` fails: threads of a process group could keep the process alive.

    Args:
        work: The work of a rank.
        catalogue_ranks: The number of ranks that together store the catalogue; None: all.
        device: The device option; it decides between NCCL and gloo.
    """
    store: Any = None
    lost: list[BaseException] = []

    def connected() -> None:
        nonlocal store
        torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        try:
            store, rank, world = next(iter(rendezvous("env://", timeout=TIMEOUT)))
            # torchrun's store survives a restart. Without a prefix, a new rank may read the address of a dead one.
            store = PrefixStore(f"attempt-{restarts()}", store)
            dist.init_process_group(backend_name(device), store=store, rank=rank, world_size=world, timeout=TIMEOUT)
            work(Ranks.create(catalogue_ranks))
        except (dist.DistError, RuntimeError) as error:
            if not is_lost(error):
                raise
            lost.append(error)
            raise InputError(LOST) from error

    code = _exit_code_of_one(connected, lambda: store, lost)
    if code:
        _end(code)
    dist.destroy_process_group()


def is_lost(error: BaseException) -> bool:
    """Return whether an exception says that another rank has gone, and not that this rank failed."""
    return isinstance(error, dist.DistError) or any(text in str(error) for text in LOST_TEXTS)


def backend_name(device: str) -> str:
    """Return nccl if every rank of this machine has its own GPU, else gloo."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    has_gpus = device != "cpu" and torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    return "nccl" if has_gpus and dist.is_nccl_available() else "gloo"


def _exit_code_of_one(work: Callable[[], None], store: Callable[[], Any], lost: list[BaseException]) -> int:
    """Run work as `exit_code` does, but print the error of only one rank.

    A rank that fails claims the report before its connections close, so that others do not report that they lost it.
    """

    def recorded() -> None:
        try:
            work()
        except BaseException as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it soon; first say what happened
            if not _is_first(store()):
                raise SystemExit(1 if lost else _code_of(error)) from error
            raise

    try:
        code = exit_code(recorded)
    except SystemExit as error:
        return int(error.code or 0) if isinstance(error.code, int | None) else 1
    return 1 if lost and code else code


def _code_of(error: BaseException) -> int:
    """Return the exit code of an error of a rank that does not report it."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, InputError) else 1


def _is_first(store: Any) -> bool:
    """Return whether this rank is the first that reports an error."""
    try:
        return store is None or int(store.add("offrec/errors", 1)) == 1
    except Exception:  # the store ended with the rank that had it
        return True


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def train_ranked(
    dataset: Path,
    out: Path,
    *,
    settings: dict[str, Any],
    catalogue_ranks: int | None,
    resume: bool,
    force: bool,
    track: tuple[str, ...],
    refused: str | None = None,
) -> None:
    """Train a run by the processes that torchrun started. A restart continues from the last checkpoint."""
    if restarts() and not resume:
        resume = not force or (replacement_folder(out) / MARK).exists()
        force = force and not resume

    def work(ranks: Ranks) -> None:
        if refused is not None:
            raise InputError(f"{refused} cannot be used by several processes; leave it out, or train without torchrun.")
        train_sharded(dataset, out, ranks, settings=settings, resume=resume, force=force, track=track)
        if ranks.is_leader:
            print(plain_text(f"Next: offrec evaluate {out}"), file=sys.stderr)

    run_ranked(work, catalogue_ranks, str(settings.get("device", "auto")))
