"""The cache of fitted Q: its values at the decisions of a split, one folder per fit in DATASET/values/<key>/.

A fit of Q depends on a policy only through what the policy shows. For the top k, the key therefore contains a hash of
the lists at all training decisions and at all evaluated decisions, next to the data and the options. Another policy,
or the same run after more training, has other lists and thus another key. Sampled lists have no such hash and are not
cached.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from offrec.console import Console
from offrec.data.arrays import describe_arrays, hash_array, open_arrays
from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.data.json_files import CHECKSUM, format_json, read_json, seal
from offrec.errors import InputError, first_line
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.fitted_q import PolicyValues
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.logging_policy import cache
from offrec.types import Floats, Longs

VERSION = 1
SUBJECT = "fitted Q"


def describe_fit(
    decisions: LoggedDecisions,
    rewards: Floats,
    gamma: float,
    options: ValueOptions,
    lists: tuple[Longs, Longs],
    resample_seed: int | None,
) -> dict[str, Any]:
    """Return everything that the values of a fit depend on; its hash is the key.

    Args:
        decisions: The evaluated decisions.
        rewards: Reward of every event of the dataset.
        gamma: Discount per decision.
        options: How Q is fitted.
        lists: [D, k] what the policy shows at the training decisions, and at the evaluated ones.
        resample_seed: Seed of the resampled training sessions; None for all sessions.
    """
    meta = decisions.dataset.meta
    return {
        "version": VERSION,
        "subject": SUBJECT,
        "data_hash": meta["data_hash"],
        "train": list(meta["splits"]["train"]),
        "evaluated": [decisions.first, len(decisions)],
        "rewards": hash_array(rewards),
        "gamma": gamma,
        "options": {name: value for name, value in asdict(options).items() if name != "capture"},
        "lists": dict(zip(("train", "evaluated"), map(hash_array, lists), strict=True)),
        "resample_seed": resample_seed,
    }


def is_cached(dataset: Dataset, description: dict[str, Any]) -> bool:
    """Return whether the cache contains the values of a fit."""
    return cache.is_complete(dataset.path / "values" / _key(description))


def load_or_fit(
    dataset: Dataset, description: dict[str, Any], fit: Callable[[], PolicyValues], console: Console
) -> PolicyValues:
    """Load the values of a fit from the cache, or fit them and add them to the cache.

    Args:
        dataset: The log.
        description: Everything that the values depend on.
        fit: Fits Q and returns its values.
        console: Says where the values are cached.

    Raises:
        InputError: If the cached values are damaged.
    """
    key, root = _key(description), dataset.path / "values"
    if not cache.is_complete(root / key):
        root = cache.writable_root(root, console, SUBJECT)
        with cache.fit_lock(root / key, console, SUBJECT):
            if not cache.is_complete(root / key):
                values = fit()
                with publish_folder(root / key, replace=True) as folder:
                    _write(values, description, folder)
                return values
    return _read(description, root / key)


def _key(description: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def _write(values: PolicyValues, description: dict[str, Any], folder: Path) -> None:
    arrays = {"q": values.q, "v": values.v}  # only fits for the top k are cached, which have no values of items
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    text = format_json(description | {"arrays": describe_arrays(arrays)})
    (folder / "about.json").write_text(text, encoding="utf-8")


def _read(description: dict[str, Any], folder: Path) -> PolicyValues:
    try:
        stored = read_json(folder / "about.json", cache.VALUES_OR_FIT, advice="fit Q again")
        expected = seal(description)
        if any(stored.get(name) != value for name, value in expected.items() if name != CHECKSUM):
            raise ValueError("about.json describes another fit")
        arrays = open_arrays(folder, stored.get("arrays", {}), advice="fit Q again")
        values = PolicyValues(np.array(arrays["q"]), np.array(arrays["v"]))
        pair = (values.q, values.v)
        if any(array.shape != (description["evaluated"][1],) or not np.isfinite(array).all() for array in pair):
            raise ValueError("it has no value for some decisions")
    except (OSError, ValueError, KeyError, InputError) as error:
        raise InputError(f"{folder} cannot be read ({first_line(error)}); remove the folder to fit Q again.") from error
    return values
