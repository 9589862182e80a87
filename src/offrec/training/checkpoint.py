"""Checkpoints: one safetensors file with its JSON inside, written aside and renamed, so there is never half of one.
No pickle.
"""

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
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"facts": json.dumps(facts), "crc32": str(_checksum(tensors))}
    with publish_file(path, advice="free disk space, then resume the run") as temporary:
        try:
            save_file(tensors, temporary, header)
        except SafetensorError as error:  # safetensors reports a full disk as an error of its own
            raise OSError(str(error)) from error


class Saver:
    """Saves what belongs together, one set after the other. In the background where tensors must be copied from a
    device in any case: a GPU need not wait for a disk.
    """

    def __init__(self, background: bool) -> None:
        self.thread = ThreadPoolExecutor(1) if background else None
        self.pending: Future[None] | None = None

    def save(self, checkpoints: dict[Path, tuple[Tensors, dict[str, Any]]]) -> None:
        """When it returns, the tensors may change."""
        self.wait()
        if self.thread is None:
            _save_all(checkpoints)
            return
        every = {id(tensor): tensor for tensors, _ in checkpoints.values() for tensor in tensors.values()}
        copies = {key: tensor.detach().to("cpu", copy=True) for key, tensor in every.items()}
        held = {
            path: ({name: copies[id(tensor)] for name, tensor in tensors.items()}, facts)
            for path, (tensors, facts) in checkpoints.items()
        }
        self.pending = self.thread.submit(_save_all, held)

    def wait(self) -> None:
        """Until all of it is on the disk."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()


def _save_all(checkpoints: dict[Path, tuple[Tensors, dict[str, Any]]]) -> None:
    for path, (tensors, facts) in checkpoints.items():
        save(path, tensors, facts)


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            header = file.metadata() or {}
        facts: dict[str, Any] = json.loads(header["facts"])
        sound = int(header["crc32"]) == _checksum(tensors)
    except FileNotFoundError as error:
        raise InputError(f"There is no checkpoint {path}; train the run first.") from error
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({error}); train the run again.") from error
    if not sound:
        raise InputError(f"The checkpoint {path} is damaged: its checksum does not match; train the run again.")
    return tensors, facts


def _checksum(tensors: Tensors) -> int:
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        total = zlib.crc32(flat.numpy().data, zlib.crc32(name.encode(), total))
    return total
