"""Write a dataset folder."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data.arrays import Array, Arrays, describe_arrays, start_hash
from offrec.data.files import check_not_current, publish_folder, remove_leftovers
from offrec.data.json_files import checksum, format_json
from offrec.data.protocol import Protocol, fingerprint
from offrec.data.threads import run_concurrently
from offrec.errors import InputError

FORMAT_VERSION = 3
LABELS = ("behaviours", "splits", "item_id_type")  # what interprets the arrays


def check_free(out: Path, force: bool) -> None:
    """Check that `out` can be written.

    Raises:
        InputError: If `out` exists and must not be replaced. With `force`, datasets and empty folders are replaced.
    """
    remove_leftovers(out)
    check_not_current(out)
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is not a folder; choose another --out.")
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if any(out.iterdir()) and not (out / "dataset.json").is_file():
        raise InputError(f"{out} is not a dataset folder, so --force does not replace it; choose another --out.")


def hash_data(descriptions: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """Return the `data_hash` of a dataset.

    Args:
        descriptions: `describe_array` of each array, by name.
        labels: The values of dataset.json that interpret the arrays: its keys `LABELS`.
    """
    content = {"arrays": {name: one["sha256"] for name, one in descriptions.items()}}
    return checksum(content | {key: labels[key] for key in LABELS})


def complete_meta(meta: Mapping[str, Any], descriptions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of dataset.json: `meta` with the hashes of the arrays and the fingerprint.

    Args:
        meta: All other contents.
        descriptions: `describe_array` of each array, by name.
    """
    data_hash = hash_data(descriptions, meta)
    hashes = {"fingerprint": fingerprint(data_hash, Protocol.from_json(meta["protocol"])), "data_hash": data_hash}
    return {"format_version": FORMAT_VERSION, **hashes, **meta, "arrays": dict(descriptions)}


def write(out: Path, arrays: Arrays, describe: Callable[[], dict[str, Any]]) -> None:
    """Write a dataset folder.

    Args:
        out: The folder. An existing one is replaced.
        arrays: The arrays by name.
        describe: Returns the contents of dataset.json without hashes. It runs while the arrays are written.
    """
    with publish(out) as folder:
        save = (partial(_save, folder, *named) for named in arrays.items())
        meta, descriptions, *_ = run_concurrently(describe, lambda: describe_arrays(arrays), *save)
        write_meta(folder, meta, descriptions)


def publish(out: Path) -> AbstractContextManager[Path]:
    """Return a temporary folder that replaces `out` when the block ends without an exception."""
    return publish_folder(out, replace=True, advice="free disk space or choose another --out")


def write_meta(folder: Path, meta: Mapping[str, Any], descriptions: Mapping[str, Any]) -> None:
    """Write dataset.json; the arguments are those of `complete_meta`."""
    (folder / "dataset.json").write_text(format_json(complete_meta(meta, descriptions)), encoding="utf-8")


def save_arrays(folder: Path, arrays: Arrays) -> dict[str, Any]:
    """Write arrays to an existing folder and return `describe_array` of each."""
    for name, array in arrays.items():
        _save(folder, name, array)
    return describe_arrays(arrays)


class ArrayFile:
    """A .npy file that is written in parts. It has the bytes that `np.save` writes for the whole array.

    Args:
        path: The file.
        dtype: The type of the array.
        length: The number of its values.
    """

    def __init__(self, path: Path, dtype: Any, length: int) -> None:
        self.dtype, self.length, self.written = np.dtype(dtype), length, 0
        self._hash = start_hash(self.dtype, (length,))
        self._file = path.open("wb")
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, part: Array) -> None:
        """Write the next values."""
        data = np.ascontiguousarray(part, self.dtype).view(np.uint8).data
        self._hash.update(data)
        self._file.write(data)
        self.written += len(part)

    def close(self) -> dict[str, Any]:
        """Close the file and return `describe_array` of the array."""
        assert self.written == self.length
        self._file.close()
        return {"type": self.dtype.name, "shape": [self.length], "sha256": self._hash.hexdigest()}


def _save(folder: Path, name: str, array: Array) -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)
