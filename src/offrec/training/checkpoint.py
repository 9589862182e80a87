"""Checkpoints: one safetensors file with JSON metadata and a checksum, without pickle."""

import json
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offrec.data.files import publish_file
from offrec.errors import InputError

Tensors = dict[str, Tensor]


def save(path: Path, tensors: Tensors, facts: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file; an existing file is replaced.
        tensors: The tensors by name, on any device.
        facts: JSON values to store with them.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"facts": json.dumps(facts), "crc32": str(_checksum(tensors))}
    with publish_file(path, advice="free disk space, then resume the run") as temporary:
        try:
            save_file(tensors, temporary, header)
        except SafetensorError as error:  # safetensors reports a full disk as SafetensorError
            raise OSError(str(error)) from error


class Saver:
    """Saves sets of checkpoints in order.

    Args:
        background: Whether to write in a background thread, so that a GPU does not wait for the disk.
    """

    def __init__(self, background: bool) -> None:
        self.thread = ThreadPoolExecutor(1) if background else None
        self.pending: Future[None] | None = None

    def save(self, checkpoints: dict[Path, tuple[Tensors, dict[str, Any]]]) -> None:
        """Save checkpoints by path. The tensors may change after the call."""
        self.wait()
        if self.thread is None:
            _save_all(checkpoints)
            return
        distinct = {id(tensor): tensor for tensors, _ in checkpoints.values() for tensor in tensors.values()}
        copies = {key: tensor.detach().to("cpu", copy=True) for key, tensor in distinct.items()}
        snapshot = {
            path: ({name: copies[id(tensor)] for name, tensor in tensors.items()}, facts)
            for path, (tensors, facts) in checkpoints.items()
        }
        self.pending = self.thread.submit(_save_all, snapshot)

    def wait(self) -> None:
        """Wait until all checkpoints are written."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()


def _save_all(checkpoints: dict[Path, tuple[Tensors, dict[str, Any]]]) -> None:
    for path, (tensors, facts) in checkpoints.items():
        save(path, tensors, facts)


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read a checkpoint and verify its checksum.

    Returns:
        The tensors and the facts stored with them.

    Raises:
        InputError: If the file does not exist or is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            header = file.metadata() or {}
        facts: dict[str, Any] = json.loads(header["facts"])
        is_intact = int(header["crc32"]) == _checksum(tensors)
    except FileNotFoundError as error:
        raise InputError(f"The checkpoint {path} does not exist; train the run first.") from error
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({error}); train the run again.") from error
    if not is_intact:
        raise InputError(f"The checkpoint {path} is damaged: its checksum does not match; train the run again.")
    return tensors, facts


def _checksum(tensors: Tensors) -> int:
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        total = zlib.crc32(flat.numpy().data, zlib.crc32(name.encode(), total))
    return total
