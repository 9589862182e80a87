"""Writes a dataset's folder: aside first, then renamed, so that there is a whole one or none."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offrec.data.threads import run_concurrently
from offrec.errors import InputError

Arrays = dict[str, NDArray[Any]]


def check_free(out: Path, force: bool) -> None:
    """Nothing stands in the way of `out`, but for what may be replaced."""
    _sweep(out)
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise InputError(f"{out} exists and is no folder; choose another --out.")
    if not force:
        raise InputError(f"{out} exists already; choose another --out, or replace it with --force.")
    if any(out.iterdir()) and not (out / "dataset.json").is_file():
        raise InputError(f"{out} is no prepared dataset, so --force does not replace it; choose another --out.")


def digest(arrays: Arrays, spelled: Any) -> str:
    """A hash of the arrays, by name, and of what says how to read them."""
    state = hashlib.sha256(json.dumps(spelled, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {array.dtype.str} {array.shape}".encode())
        state.update(array.data.cast("B") if array.size else b"")
    return state.hexdigest()


def write(out: Path, arrays: Arrays, describe: Callable[[], dict[str, Any]]) -> None:
    """The arrays, while `describe` makes what goes into dataset.json of them; then that."""
    try:
        with _aside(out) as folder:
            meta, *_ = run_concurrently(describe, *(partial(_save, folder, *named) for named in arrays.items()))
            (folder / "dataset.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error  # numpy gives no strerror where the disk is full
        raise InputError(f"{out} cannot be written ({reason}); make room or choose another --out.") from error


def _save(folder: Path, name: str, array: NDArray[Any]) -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place if all goes well, and vanishes if not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.parent / f".{out.name}.{os.getpid()}.partial"
    folder.mkdir()
    old = folder.with_suffix(".old")
    try:
        yield folder
        if out.exists():
            out.rename(old)
        folder.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _sweep(out: Path) -> None:
    """What a killed run left behind: put the old dataset back if it was being replaced, remove the rest."""
    for left in out.parent.glob(f".{escape(out.name)}.*"):
        process, _, kind = left.name.removeprefix(f".{out.name}.").partition(".")
        if kind in {"partial", "old"} and process.isdigit() and not _alive(int(process)):
            if kind == "old" and not out.exists():
                left.rename(out)
            else:
                shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
