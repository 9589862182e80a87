"""Checkpoints in several files, of which each rank reads and writes only its own rows.

    last.index.json                        the files, their checksums, and the rows of each tensor that they contain
    last-1f3a9c0d-common.safetensors       the tensors that are equal on all ranks
    last-1f3a9c0d-0-of-3.safetensors, …    the rows of item tables and of their optimiser state

The index is written last and names complete files only, so that a checkpoint is either the old or the new one. It does
not depend on the number of ranks that read it. One process reads it like a checkpoint in one file.
"""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from offrec.data.json_files import parse_json, read_json, write_json
from offrec.data.schema import ListOf, Table, Text, Whole
from offrec.errors import InputError, first_line
from offrec.training import checkpoint
from offrec.training.checkpoint import Tensors
from offrec.training.ranks import Ranks

ADVICE = "train the run again"
BLOCK_BYTES = 64 << 20  # hashed at once
ROWS = Table(others=ListOf(Whole(0), 2, 2))  # [first, last + 1] of each tensor
INDEX = Table({"version": Whole(1, 1), "files": ListOf(Table({"file": Text(), "sha256": Text(), "rows": ROWS}), 1)})

Rows = Mapping[str, slice]  # the rows of tensors by item that a rank stores


def index_path(path: Path) -> Path:
    """Return the index of the checkpoint `path` (last.safetensors)."""
    return path.with_suffix(".index.json")


def exists(path: Path) -> bool:
    """Return whether a checkpoint exists, in one file or in several."""
    return path.exists() or index_path(path).exists()


def save(path: Path, tensors: Tensors, facts: dict[str, Any], rows: Rows, ranks: Ranks) -> None:
    """Write a checkpoint. All ranks must call it; those of the first data group write.

    Args:
        path: The name of the checkpoint as one file; no such file exists afterwards.
        tensors: The tensors of this rank.
        facts: JSON values to store.
        rows: The rows of the whole that the tensors by item contain. All other tensors are equal on all ranks.
        ranks: The processes.
    """
    token = ranks.from_leader(secrets.token_hex(4))
    written: list[dict[str, Any]] = []
    if ranks.data_index == 0:
        name = f"{path.stem}-{token}-{ranks.catalogue_index}-of-{ranks.catalogue_ranks}.safetensors"
        own = {key: tensor for key, tensor in tensors.items() if key in rows}
        ranges = {key: [rows[key].start, rows[key].stop] for key in own}
        written.append(_write(path.with_name(name), own, facts, ranges))
    if ranks.is_leader:
        common = {key: tensor for key, tensor in tensors.items() if key not in rows}
        written.append(_write(path.with_name(f"{path.stem}-{token}-common.safetensors"), common, facts, {}))
    files = [one for part in ranks.gather(written) for one in part]
    if ranks.is_leader:
        write_json(index_path(path), {"version": 1, "files": files}, advice="free disk space, then resume the run")
        remove_other_files(path, {one["file"] for one in files})


def _write(path: Path, tensors: Tensors, facts: dict[str, Any], rows: dict[str, list[int]]) -> dict[str, Any]:
    return {"file": path.name, "sha256": checkpoint.save(path, tensors, facts), "rows": rows}


def remove_other_files(path: Path, names: set[str]) -> None:
    """Remove the files of earlier checkpoints of this name, except those with the given names."""
    for old in [path, *path.parent.glob(f"{path.stem}-*.safetensors")]:
        if old.name not in names:
            old.unlink(missing_ok=True)


def remove_index(path: Path) -> None:
    """Remove a checkpoint in several files, after it was replaced by one file."""
    index_path(path).unlink(missing_ok=True)
    for old in path.parent.glob(f"{path.stem}-*.safetensors"):
        old.unlink(missing_ok=True)


def load_rows(path: Path, rows: Rows, expected: checkpoint.Expected | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Read the part of a checkpoint, in one file or in several, that a rank stores.

    Args:
        path: The name of the checkpoint as one file.
        rows: The rows to read of tensors by item. Other tensors are read whole.
        expected: The shape and type of every tensor that is read; None: not compared.

    Returns:
        The tensors and the facts stored with them.

    Raises:
        InputError: If the checkpoint does not exist or is damaged.
    """
    tensors: Tensors = {}
    facts: dict[str, Any] = {}
    try:
        files = _files(path)
        _check_headers(path, files, rows, expected)
        for file in files:
            with safe_open(path.with_name(file["file"]), framework="pt", device="cpu") as opened:
                wanted = _wanted(opened, file["rows"], rows)
                if wanted:
                    facts = _verify(opened, file["sha256"])
                for name, part, at in wanted:
                    if at is None:
                        tensors[name] = opened.get_tensor(name)
                        continue
                    view = opened.get_slice(name)
                    if name not in tensors:
                        shape = [rows[name].stop - rows[name].start, *view.get_shape()[1:]]
                        tensors[name] = torch.empty(shape, dtype=DTYPES[view.get_dtype()])
                    if part.start < part.stop:
                        tensors[name][at : at + part.stop - part.start] = view[part.start : part.stop]
    except (SafetensorError, OSError, LookupError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({first_line(error)}); {ADVICE}.") from error
    return tensors, facts


def _check_headers(path: Path, files: list[dict[str, Any]], rows: Rows, expected: checkpoint.Expected | None) -> None:
    """Compare the headers of all files with the index and with what is expected, before memory is allocated."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for file in files:
        checkpoint.check_size(path.with_name(file["file"]))
        with safe_open(path.with_name(file["file"]), framework="pt", device="cpu") as opened:
            for name, _, at in _wanted(opened, file["rows"], rows):
                view = opened.get_slice(name)
                shape = list(view.get_shape())
                if at is not None:
                    shape[0] = rows[name].stop - rows[name].start
                shapes[name] = tuple(shape), DTYPES[view.get_dtype()]
    for name in sorted(set(shapes) ^ set(expected)) if expected is not None else ():
        raise ValueError(f"it {'has an unexpected' if name in shapes else 'lacks'} tensor {name[:100]!r}")
    for name, known in expected.items() if expected is not None else ():
        if shapes[name] != known:
            raise ValueError(f"{name} is {shapes[name]} instead of {known}, as run.json requires")


DTYPES = {name: dtype for dtype, name in checkpoint.TYPES.items()}


def _files(path: Path) -> list[dict[str, Any]]:
    if not exists(path):
        raise InputError(f"The checkpoint {path} does not exist; train the run first.")
    if not index_path(path).exists():
        return [{"file": path.name, "sha256": None, "rows": None}]
    files: list[dict[str, Any]] = read_json(index_path(path), INDEX, advice=ADVICE)["files"]
    for one in files:
        if Path(one["file"]).name != one["file"]:
            raise ValueError("its index names a file in another folder")
    return files


def _wanted(opened: Any, stored: dict[str, list[int]] | None, rows: Rows) -> list[tuple[str, slice, int | None]]:
    """Return what to read from a file: (name, rows of the file, first row here or None for the whole tensor)."""
    wanted: list[tuple[str, slice, int | None]] = []
    for name in opened.keys():  # noqa: SIM118 (not a mapping)
        own = rows.get(name)
        if own is None:
            if stored and name in stored:
                raise ValueError(f"{name} is stored by rows, but this run has no such table")
            wanted.append((name, slice(0), None))
            continue
        length = opened.get_slice(name).get_shape()[0]
        first, last = (0, length) if stored is None else stored[name]
        if last - first != length:
            raise ValueError(f"a file has {length} rows of {name} instead of {last - first}")
        low, high = max(first, own.start), min(last, own.stop)
        if low < high or (own.start == own.stop and first <= own.start <= last):
            wanted.append((name, slice(low - first, max(low, high) - first), low - own.start))
    return wanted


def _verify(opened: Any, expected: str | None) -> dict[str, Any]:
    """Verify the checksum of a file block by block, and return its facts."""
    header = parse_json((opened.metadata() or {})["offrec"])
    if expected is not None and header["sha256"] != expected:
        raise ValueError("a file is not the one that the index names")
    state = hashlib.sha256(header["facts"].encode())
    for name in sorted(opened.keys()):
        view = opened.get_slice(name)
        shape, dtype = tuple(view.get_shape()), DTYPES[view.get_dtype()]
        state.update(f"\n{name} {dtype} {shape} ".encode() + _digest(opened, name, shape, dtype))
    if state.hexdigest() != header["sha256"]:
        raise ValueError("its checksum does not match")
    facts: dict[str, Any] = parse_json(header["facts"])
    return facts


def _digest(opened: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    if not shape or not shape[0]:
        return checkpoint.digest(opened.get_tensor(name))
    state, view = hashlib.sha256(), opened.get_slice(name)
    row = max(1, torch.Size(shape[1:]).numel() * torch.empty((), dtype=dtype).element_size())
    step = max(1, BLOCK_BYTES // row)
    for first in range(0, shape[0], step):
        block = view[first : first + step].contiguous().flatten().view(torch.uint8)
        state.update(block.numpy().data)
    return state.digest()


def load_whole(path: Path, expected: checkpoint.Expected | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Read a checkpoint in several files into one process; `expected` as in `checkpoint.load`.

    Raises:
        InputError: If the checkpoint is damaged, or larger than the free memory.
    """
    from offrec.training import memory

    files = _files(path)
    size = sum(path.with_name(one["file"]).stat().st_size for one in files)
    free = memory.free(torch.device("cpu"))
    if size > free:
        raise InputError(
            f"The checkpoint {path} needs {memory.size(size)} of memory in one process, but {memory.size(free)} are "
            "free; use a machine with more memory."
        )
    parts: dict[str, list[tuple[int, int]]] = {}
    for one in files:
        for name, (first, last) in one["rows"].items():
            parts.setdefault(name, []).append((first, last))
    rows = {}
    for name, ranges in parts.items():
        ranges.sort()
        edges = [0, *(last for _, last in ranges)]
        if [first for first, _ in ranges] != edges[:-1]:
            raise InputError(f"The checkpoint {path} is damaged (rows of {name} are missing); {ADVICE}.")
        rows[name] = slice(0, edges[-1])
    return load_rows(path, rows, expected)
