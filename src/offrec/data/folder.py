"""Write a dataset folder."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data.arrays import Array, Arrays, describe_arrays
from offrec.data.files import publish_folder, remove_leftovers
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
    with publish_folder(out, replace=True, advice="free disk space or choose another --out") as folder:
        save = (partial(_save, folder, *named) for named in arrays.items())
        meta, descriptions, *_ = run_concurrently(describe, lambda: describe_arrays(arrays), *save)
        (folder / "dataset.json").write_text(format_json(complete_meta(meta, descriptions)), encoding="utf-8")


def _save(folder: Path, name: str, array: Array) -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)
