"""Checkpoints: one safetensors file with JSON metadata and a SHA-256, without pickle."""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offrec.data.files import publish_file
from offrec.data.json_files import MAX_BYTES, parse_json
from offrec.data.regular_files import open_regular
from offrec.data.threads import WORKERS
from offrec.errors import InputError, first_line

Tensors = dict[str, Tensor]
Expected = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # shape and type of each tensor
TYPES = {  # as safetensors names them
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
PARALLEL_BYTES = 32 << 20  # smaller checkpoints are hashed faster by one thread


def save(path: Path, tensors: Tensors, facts: dict[str, Any]) -> str:
    """Write a checkpoint atomically.

    Args:
        path: The file; an existing file is replaced.
        tensors: The tensors by name, on any device.
        facts: JSON values to store with them.

    Returns:
        The checksum.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    # safetensors writes several keys in a random order; with one key, equal checkpoints have equal bytes
    sha256 = _checksum(tensors, text)
    header = {"offrec": json.dumps({"facts": text, "sha256": sha256})}
    with publish_file(path, advice="free disk space, then resume the run") as temporary:
        try:
            save_file(tensors, temporary, header)
        except SafetensorError as error:  # safetensors reports a full disk as SafetensorError
            raise OSError(str(error)) from error
    return sha256


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
    from offrec.training.sharded_checkpoint import index_path, remove_index  # it imports this module

    for path, (tensors, facts) in checkpoints.items():
        save(path, tensors, facts)
        if index_path(path).exists():  # written by several ranks; it would be read instead
            remove_index(path)


def load(path: Path, expected: Expected | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Read a checkpoint, in one file or in several, and verify its checksum.

    Args:
        path: The file.
        expected: The shape and type of every tensor. They are compared with the file's header before anything else is
            read, so that a file from elsewhere cannot claim more memory than its network needs. None: not compared.

    Returns:
        The tensors and the facts stored with them.

    Raises:
        InputError: If the file does not exist, is damaged, or contains other tensors than expected.
    """
    from offrec.training.sharded_checkpoint import index_path, load_whole  # it imports this module

    if index_path(path).exists():
        return load_whole(path, expected)
    try:
        check_size(path)
        with safe_open(path, "pt") as file:
            if expected is not None:
                _check_header(file, expected)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            header = parse_json((file.metadata() or {})["offrec"])
        if header["sha256"] != _checksum(tensors, header["facts"]):
            raise ValueError("its checksum does not match")
        facts: dict[str, Any] = parse_json(header["facts"])
    except FileNotFoundError as error:
        raise InputError(f"The checkpoint {path} does not exist; train the run first.") from error
    except (SafetensorError, OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({first_line(error)}); train the run again.") from error
    return tensors, facts


def check_size(path: Path) -> None:
    """Check that a file is as long as its header says, before it is mapped into memory."""
    with open(open_regular(path), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_BYTES:
            raise ValueError("its header is too long")
        header = parse_json(file.read(length))
        offsets = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        if 8 + length + max(offsets, default=0) != os.fstat(file.fileno()).st_size:
            raise ValueError("it does not have the length that its header implies")


def _check_header(file: Any, expected: Expected) -> None:
    names = set(file.keys())
    if names != set(expected):
        name = min(names ^ set(expected))
        problem = "lacks" if name in expected else "has an unexpected"
        raise ValueError(f"it {problem} tensor {name[:100]!r} compared with the network in run.json")
    for name, (shape, dtype) in expected.items():
        view = file.get_slice(name)
        if tuple(view.get_shape()) != shape or view.get_dtype() != TYPES[dtype]:
            stored = f"{view.get_dtype()} {view.get_shape()}"
            raise ValueError(f"{name} is {stored} instead of {TYPES[dtype]} {list(shape)}, as run.json requires")


def _checksum(tensors: Tensors, facts: str) -> str:
    """Return the SHA-256 of names, types, shapes and values of tensors, and of the facts."""
    names = sorted(tensors)
    if sum(tensor.nbytes for tensor in tensors.values()) > PARALLEL_BYTES:
        with ThreadPoolExecutor(WORKERS) as pool:
            digests = list(pool.map(lambda name: digest(tensors[name]), names))
    else:
        digests = [digest(tensors[name]) for name in names]
    state = hashlib.sha256(facts.encode())
    for name, part in zip(names, digests, strict=True):
        state.update(f"\n{name} {tensors[name].dtype} {tuple(tensors[name].shape)} ".encode() + part)
    return state.hexdigest()


def digest(tensor: Tensor) -> bytes:
    """Return the SHA-256 of a tensor's values."""
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().data).digest()
