"""Read .npy files that somebody else may have written, and verify their SHA-256 before anything uses them.

The SHA-256 of an array covers its type, its shape and its values, but not the file's header, which depends on the
version of numpy. Files that this process has verified are not read again while they are unchanged. A file is unchanged
if its inode, size and times are the same. `verified_files` passes this knowledge on to worker processes.
"""

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.json_files import parse_json
from offrec.data.regular_files import check_regular
from offrec.data.schema import ListOf, OneOf, Table, Text, Whole
from offrec.data.threads import WORKERS
from offrec.errors import InputError, first_line

Array = NDArray[Any]
Arrays = dict[str, Array]

HANDED_OVER = "OFFREC_VERIFIED"  # environment variable: the files that the parent process has verified
BLOCK_BYTES = 64 << 20  # of an array that are read at once
SETTLED_SECONDS = 2.0  # a file that changed more recently could change again without a new time stamp
TYPES = ("uint8", "int8", "uint32", "int32", "int64", "float32", "float64")
DESCRIPTION = Table(  # of one array, in the JSON file of its folder
    {"type": OneOf(TYPES), "shape": ListOf(Whole(), 0, 3), "sha256": Text("[0-9a-f]{64}")}
)

_Identity = tuple[int, int, int, int, int]  # device, inode, size, and times of the last changes
_parsing = threading.Lock()  # CPython 3.11 raises SystemError if two threads parse a header at the same time
_verified: dict[_Identity, str] = {}


def describe_array(array: Array) -> dict[str, Any]:
    """Return the type, the shape and the SHA-256 of an array, for the JSON file of its folder."""
    return {"type": array.dtype.name, "shape": list(array.shape), "sha256": hash_array(array)}


def describe_arrays(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return `describe_array` of every array; threads hash them concurrently."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(arrays, pool.map(describe_array, arrays.values()), strict=True))


def hash_array(array: Array) -> str:
    """Return the SHA-256 of an array's type, shape and values."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    state = start_hash(array.dtype, array.shape)
    for block in read_blocks(array):
        state.update(block.view(np.uint8).data)
    return state.hexdigest()


def read_blocks(array: Array) -> Iterator[Array]:
    """Yield the values of an array in flat blocks, and release the memory of a memory-mapped block after its use.

    The pages of the file stay in the system's cache, but a large array does not count as memory of this process.
    """
    flat, mapping = array.reshape(-1), _mapping(array)
    count = max(1, BLOCK_BYTES // max(1, array.itemsize))
    for first in range(0, len(flat), count):
        yield flat[first : first + count]
        if mapping is not None and array.nbytes > BLOCK_BYTES:
            mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: Any) -> mmap.mmap | None:
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


def start_hash(dtype: np.dtype[Any], shape: tuple[int, ...]) -> "hashlib._Hash":
    """Return the SHA-256 of an array's type and shape, to which the caller adds the values."""
    return hashlib.sha256(f"{dtype.str} {shape}\n".encode())


def open_array(path: Path, *, advice: str) -> Array:
    """Memory-map an array.

    Raises:
        InputError: If the file is not a complete .npy file of numbers.
    """
    try:
        check_regular(path)
        with _parsing:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.name not in TYPES or not array.dtype.isnative:
            raise ValueError("it does not contain an array of numbers in this machine's byte order")
    except Exception as error:  # numpy parses the header with Python's own parser, which raises many exceptions
        reason = getattr(error, "strerror", None) or first_line(error)
        if "pickle" in reason:  # numpy advises to load it nevertheless
            reason = "it is not a .npy file of numbers"
        raise InputError(f"{path} cannot be read ({reason}); {advice}.") from error
    return array


def open_arrays(folder: Path, descriptions: Mapping[str, Any], *, advice: str) -> Arrays:
    """Memory-map arrays and verify that they are those that a JSON file describes.

    Args:
        folder: The folder of the .npy files.
        descriptions: `describe_array` of each array, by name.
        advice: What the user should do if a file is damaged; the end of the message.

    Returns:
        The arrays by name.

    Raises:
        InputError: If a file is missing or damaged.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        opened = pool.map(lambda name: _open_verified(folder / f"{name}.npy", descriptions[name], advice), descriptions)
        return dict(zip(descriptions, opened, strict=True))


def _open_verified(path: Path, description: Mapping[str, Any], advice: str) -> Array:
    identity = _identify(path)
    array = open_array(path, advice=advice)
    if [array.dtype.name, list(array.shape)] != [description["type"], description["shape"]]:
        raise InputError(
            f"{path} is damaged: it contains {array.dtype.name} {list(array.shape)} instead of {description['type']} "
            f"{description['shape']}; {advice}."
        )
    if _hash_once(path, array, identity) != description["sha256"]:
        raise InputError(f"{path} is damaged: its checksum does not match; {advice}.")
    return array


def _hash_once(path: Path, array: Array, identity: _Identity | None) -> str:
    """Return the SHA-256 of a memory-mapped file, without reading it if it has been hashed and is unchanged."""
    if not _verified:
        _accept_handed_over()
    if identity is None or identity != _identify(path):  # the file was replaced while it was opened
        return hash_array(array)
    if identity not in _verified:
        is_settled = time.time() - max(identity[3:]) / 1e9 > SETTLED_SECONDS
        digest = hash_array(array)
        if not is_settled or identity != _identify(path):
            return digest
        _verified[identity] = digest
    return _verified[identity]


def _identify(path: Path) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def verified_files() -> dict[str, str]:
    """Return an environment variable with which a worker process need not verify the same files again."""
    entries = ",".join(f'["{"-".join(map(str, identity))}","{digest}"]' for identity, digest in _verified.items())
    return {HANDED_OVER: f"[{entries}]"} if len(entries) < 100_000 else {}


def _accept_handed_over() -> None:
    for identity, digest in parse_json(os.environ.get(HANDED_OVER, "[]")):
        device, inode, size, modified, changed = map(int, identity.split("-"))
        _verified[device, inode, size, modified, changed] = digest
