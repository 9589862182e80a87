"""Estimate the memory of a run before it starts, and compare it with the free memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import nn

from offrec.errors import InputError
from offrec.training.optimiser import TableState, state_bytes
from offrec.types import Size

ACTIVATIONS = 96  # estimated bytes per element of an encoded item for the backward pass: gates, norms, dropout
WORKSPACE = 32 << 20  # bytes that cuBLAS reserves per stream on Hopper GPUs; less on older ones
MAIN_STREAMS = 3  # streams of an update with one network; each further network has one more
TILE = 64 << 20  # bytes of temporary memory used by matrix products over the catalogue


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the device. `batch` is estimated, the others are exact."""

    parameters: int  # all parameters and buffers, including frozen parameters and target networks
    gradients: int
    optimiser: int
    log: int  # transitions and validation batches
    batch: int  # activations and temporary memory of an update
    libraries: int = 0  # workspaces of matrix products, one per stream
    spare: int = 0  # a second set of gradients and activations, because captured updates have their own memory

    @property
    def peak(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: "MemoryPlan") -> "MemoryPlan":
        return MemoryPlan(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def sentence(self, device: torch.device, available: int, runs: int = 1) -> str:
        """Return the plan as a line of text."""
        parts = [f"{field.name} {size(getattr(self, field.name))}" for field in fields(self)]
        subject = f"{runs} concurrent runs" if runs > 1 else "run"
        return (
            f"memory of the {subject}: {', '.join(parts)}; "
            f"expected peak {size(self.peak)} of {size(available)} free on {device}"
        )


def plan(
    module: nn.Module,
    tables: Sequence[nn.Parameter],
    *,
    table_state: TableState,
    sizes: Sequence[Size],
    width: int,
    layers: int,
    history: int,
    log: int,
    captured: bool,
    half: bool = False,
    dense: bool = False,
    others: Sequence[tuple[int, int]] = (),
    more: int = 0,
) -> MemoryPlan:
    """Plan the memory of a run.

    Args:
        module: The module; on the device `meta` it has shapes but uses no memory.
        tables: Its item tables, including frozen tables.
        table_state: Optimiser state of the tables.
        sizes: Sizes of the batches of an epoch.
        width: Width of the network.
        layers: Layers of the network.
        history: Longest history.
        log: Bytes of the log on the device.
        captured: Whether updates are captured, on a GPU.
        half: Whether products over the catalogue use bfloat16, which needs a copy of each table and its gradient.
        dense: Whether scores of the whole catalogue are materialised (`catalogue = reference`).
        others: Width and layers of the other trained networks.
        more: Additional temporary bytes of an update.

    Returns:
        The plan.
    """
    parameters = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    gradients = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    shapes = [(width, layers), *others]
    numbers = sum(width * (1 + layers) for width, layers in shapes)
    encoded = max(size.segments * (size.length + 1) for size in sizes) * numbers * ACTIVATIONS
    rows = max(size.rows for size in sizes) * sum(8 * width * 4 + history * (history + 64) for width, _ in shapes)
    copies = sum(table.numel() * 2 * 2 for table in tables) if half else 0
    most_items = max((len(table) for table in tables), default=0)
    products = 4 * 4 * max(size.rows for size in sizes) * most_items if dense else TILE
    # A tied table has two gradients of full size before they are summed.
    batch = encoded + rows + products + copies + more + 2 * max((table.nbytes for table in tables), default=0)
    return MemoryPlan(
        parameters,
        gradients,
        state_bytes(module, tables, table_state),
        log,
        batch,
        WORKSPACE * (MAIN_STREAMS + len(others)) if captured else 0,
        gradients + batch if captured else 0,
    )


def nothing(log: int = 0) -> MemoryPlan:
    """Return a plan for the log alone."""
    return MemoryPlan(0, 0, 0, log, 0)


def check(plan: MemoryPlan, device: torch.device, available: int) -> None:
    """Raise InputError if a plan exceeds the available bytes."""
    if plan.peak > available:
        raise InputError(
            f"Training is expected to need {size(plan.peak)} on {device}, but {size(available)} are free "
            f"(parameters {size(plan.parameters)}, gradients {size(plan.gradients)}, optimiser {size(plan.optimiser)}, "
            f"log {size(plan.log)}, batch {size(plan.batch + plan.spare + plan.libraries)}); lower network.width, set "
            "training.table_state=rowwise, lower training.batch_size, or train fewer runs at once. "
            "training.memory_check=false skips this check."
        )


def free(device: torch.device) -> int:
    """Return the free bytes of a device."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return min(_free_on_machine(), _free_in_container())


def _free_on_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = os.sysconf_names
        pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in names else "SC_PHYS_PAGES"
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages in names else 1 << 62


def _free_in_container() -> int:
    """Return the free bytes under a container's limit. Cached files count as used there but can be evicted."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return 1 << 62 if limit == "max" else int(limit) - used + int(stats.get("inactive_file", 0))
    except (OSError, ValueError):
        return 1 << 62


def size(number: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"
