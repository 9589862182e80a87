"""Write a dataset folder."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.files import publish_folder, remove_leftovers
from offrec.data.threads import run_concurrently
from offrec.errors import InputError

Arrays = dict[str, NDArray[Any]]


def check_free(out: Path, force: bool) -> None:
    """Check that `out` can be written.

    Raises:
        InputError: If `out` exists and must not be replaced. With `force`, datasets and empty folders are replaced.
    """
    remove_leftovers(out)
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is not a folder; choose another --out.")
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if any(out.iterdir()) and not (out / "dataset.json").is_file():
        raise InputError(f"{out} is not a dataset folder, so --force does not replace it; choose another --out.")


def hash_arrays(arrays: Arrays, labels: Any) -> str:
    """Return a hash of the arrays, including their names, types and shapes, and of the labels that interpret them."""
    state = hashlib.sha256(json.dumps(labels, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {array.dtype.str} {array.shape}".encode())
        state.update(array.data.cast("B") if array.size else b"")
    return state.hexdigest()


def write(out: Path, arrays: Arrays, describe: Callable[[], dict[str, Any]]) -> None:
    """Write a dataset folder.

    Args:
        out: The folder. An existing one is replaced.
        arrays: The arrays by name.
        describe: Returns the contents of dataset.json. It runs while the arrays are written.
    """
    with publish_folder(out, replace=True, advice="free disk space or choose another --out") as folder:
        meta, *_ = run_concurrently(describe, *(partial(_save, folder, *named) for named in arrays.items()))
        (folder / "dataset.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _save(folder: Path, name: str, array: NDArray[Any]) -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)
