"""The memory plan: what a run will hold, told before it begins, and a refusal if that is more than there is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import nn

from offrec.errors import InputError
from offrec.training.optimiser import TableState, state_bytes
from offrec.types import Size

ACTIVATIONS = 96  # bytes kept for the backward for each number of an encoded item: gates, norms, dropout; estimated
TILE = 64 << 20  # the catalogue's own temporaries


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the device. All but `batch` are counted, `batch` is estimated."""

    parameters: int  # of the whole module: frozen ones, targets and buffers too
    gradients: int
    optimiser: int
    log: int  # transitions and the batches of validation
    batch: int  # activations of an update and the catalogue's temporaries
    spare: int = 0  # a second set of gradients and activations: captured updates have memory of their own

    @property
    def peak(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: "MemoryPlan") -> "MemoryPlan":
        return MemoryPlan(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def sentence(self, device: torch.device, available: int, runs: int = 1) -> str:
        parts = [f"{field.name} {size(getattr(self, field.name))}" for field in fields(self)]
        whole = f"{runs} runs at once" if runs > 1 else "run"
        return (
            f"memory of the {whole}: {', '.join(parts)}; "
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
    beside: Sequence[tuple[int, int]] = (),
    more: int = 0,
) -> MemoryPlan:
    """For a module that need not be there yet: one on the device `meta` has sizes and no memory.

    tables: of items, frozen ones too. sizes: of the batches of an epoch. half: the catalogue's operands are cast to
    bfloat16, so a copy of each table and of its gradient exists for a while. dense: the catalogue is written out after
    all (`catalogue = reference`). beside: width and layers of further networks that are trained. more: bytes of an
    update's temporaries that the caller knows of.
    """
    parameters = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    gradients = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    shapes = [(width, layers), *beside]
    numbers = sum(width * (1 + layers) for width, layers in shapes)
    encoded = max(size.segments * (size.length + 1) for size in sizes) * numbers * ACTIVATIONS
    rows = max(size.rows for size in sizes) * sum(8 * width * 4 + history * (history + 64) for width, _ in shapes)
    copies = sum(table.numel() * 2 * 2 for table in tables) if half else 0
    most = max((len(table) for table in tables), default=0)
    products = 4 * 4 * max(size.rows for size in sizes) * most if dense else TILE
    # A table that goes in and out collects its gradients in parts as large as itself before they are one.
    batch = encoded + rows + products + copies + more + 2 * max((table.nbytes for table in tables), default=0)
    return MemoryPlan(
        parameters,
        gradients,
        state_bytes(module, tables, table_state),
        log,
        batch,
        gradients + batch if captured else 0,
    )


def nothing(log: int = 0) -> MemoryPlan:
    return MemoryPlan(0, 0, 0, log, 0)


def check(plan: MemoryPlan, device: torch.device, available: int) -> None:
    """Refuse what is not expected to fit."""
    if plan.peak > available:
        raise InputError(
            f"Training is expected to take {size(plan.peak)} on {device}, where {size(available)} are free "
            f"(parameters {size(plan.parameters)}, gradients {size(plan.gradients)}, optimiser {size(plan.optimiser)}, "
            f"log {size(plan.log)}, batch {size(plan.batch + plan.spare)}); lower network.width, set "
            "training.table_state=rowwise, lower training.batch_size, or train fewer runs at once. "
            "training.memory_check=false tries it all the same."
        )


def free(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return min(_machine(), _container())


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = os.sysconf_names
        pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in names else "SC_PHYS_PAGES"
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages in names else 1 << 62


def _container() -> int:
    """What a container's limit leaves; files it has read count as used there but can be dropped."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return 1 << 62 if limit == "max" else int(limit) - used + int(stats.get("inactive_file", 0))
    except (OSError, ValueError):
        return 1 << 62


def size(number: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"
