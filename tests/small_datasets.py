"""Write small dataset folders from Python lists, as `offrec prepare` would write them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data.arrays import describe_arrays
from offrec.data.dataset import Dataset
from offrec.data.folder import complete_meta
from offrec.data.item_properties import CategoryColumn, ItemProperties, VectorColumn
from offrec.data.json_files import write_json
from offrec.data.protocol import Protocol

# (number of the session's events before the list, items, propensity, index of the picked event in the session)
Decision = tuple[int, Sequence[int], float, int | None]


def write_dataset(
    path: Path,
    sessions: Sequence[Sequence[int]],
    behaviours: Sequence[Sequence[str]] | None = None,
    splits: tuple[int, int, int] | None = None,
    *,
    items: int | None = None,
    ids: Sequence[int] | Sequence[str] | None = None,
    decisions: Sequence[Sequence[Decision]] | None = None,
    rewards: Sequence[Sequence[float]] | None = None,
    properties: ItemProperties | None = None,
    **protocol: Any,
) -> Dataset:
    """Write a dataset folder and open it.

    Args:
        path: The folder in which to create it.
        sessions: The item indices of each session.
        behaviours: The behaviour of each event; all "view" by default.
        splits: The numbers of training, validation and test sessions; by default the last session is test and the one
            before it validation.
        items: The size of the catalogue; by default as large as the sessions need.
        ids: The item ids; 100, 101, … by default.
        decisions: The lists that each session was served.
        rewards: The reward column: the number of each event, or NaN.
        properties: The properties of the items.
        **protocol: Fields of `Protocol`.
    """
    splits = splits or (len(sessions) - 2, 1, 1)
    assert sum(splits) == len(sessions), f"{splits} of {len(sessions)} sessions"
    events = [item for session in sessions for item in session]
    n_items = items or max(events) + 1
    session_behaviours = behaviours or [["view"] * len(session) for session in sessions]
    names = list(dict.fromkeys(name for session in session_behaviours for name in session))
    arrays = {
        "items": np.array(events, dtype=np.int32),
        "behaviours": np.array(
            [names.index(name) for session in session_behaviours for name in session], dtype=np.uint8
        ),
        "offsets": np.cumsum([0, *map(len, sessions)], dtype=np.int64),
        **_id_arrays(list(ids) if ids is not None else list(range(100, 100 + n_items))),
    }
    if rewards is not None:
        arrays["rewards"] = np.array([number for session in rewards for number in session], dtype=np.float32)
    if decisions is not None:
        arrays |= _decision_arrays(decisions, arrays["offsets"], n_items)
    edges = np.cumsum([0, *splits]).tolist()
    meta = {
        "counts": {"sessions": len(sessions), "events": len(events), "items": n_items},
        "behaviours": names,
        "item_id_type": "string" if ids is not None and isinstance(ids[0], str) else "int",
        "protocol": Protocol(**protocol).as_json(),
        "splits": {name: edges[part : part + 2] for part, name in enumerate(("train", "validation", "test"))},
    }
    if decisions is not None:
        meta["decisions"] = dict(zip(("count", "k"), arrays["decision_items"].shape, strict=True))
    if properties is not None:
        arrays |= properties.arrays()
        meta["item_properties"] = properties.as_json()
    folder = path / f"dataset-{len(list(path.glob('dataset-*')))}"
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    seal_dataset(folder, meta)
    return Dataset.open(folder)


def seal_dataset(folder: Path, meta: dict[str, Any] | None = None) -> None:
    """Write dataset.json with the right hashes of the arrays in the folder.

    Args:
        folder: The dataset folder.
        meta: The contents of dataset.json without hashes; by default those of the existing file.
    """
    meta = meta if meta is not None else json.loads((folder / "dataset.json").read_text())
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    hashes = ("fingerprint", "data_hash", "arrays", "sha256")
    content = complete_meta({key: meta[key] for key in meta if key not in hashes}, describe_arrays(arrays))
    write_json(folder / "dataset.json", content)


def _id_arrays(ids: list[Any]) -> dict[str, np.ndarray]:
    if isinstance(ids[0], int):
        return {"item_ids": np.array(ids, dtype=np.int64)}
    texts = [text.encode() for text in ids]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return {"item_ids": np.frombuffer(b"".join(texts), dtype=np.uint8), "item_ids_offsets": offsets}


def _decision_arrays(
    decisions: Sequence[Sequence[Decision]], offsets: np.ndarray, padding: int
) -> dict[str, np.ndarray]:
    flat = [
        (begin, *decision) for begin, session in zip(offsets.tolist(), decisions, strict=False) for decision in session
    ]
    k = max(len(items) for _, _, items, _, _ in flat)
    lists = [[*items, *[padding] * (k - len(items))] for _, _, items, _, _ in flat]
    events = [-1 if event is None else begin + event for begin, *_, event in flat]
    return {
        "decision_offsets": np.cumsum([0, *map(len, decisions)], dtype=np.int64),
        "decision_positions": np.array([position for _, position, *_ in flat], dtype=np.int32),
        "decision_items": np.array(lists, dtype=np.int32),
        "decision_log_propensity": np.array([math.log(propensity) for *_, propensity, _ in flat]),
        "decision_event": np.array(events, dtype=np.int64),
    }


def small_properties(items: int) -> ItemProperties:
    """Return properties of every kind, some of them unknown, for a catalogue."""
    random = np.random.default_rng(3)
    return ItemProperties(
        [f"title {item}" for item in range(items)],
        (CategoryColumn("category", ("x", "y")), CategoryColumn("brand", ("b", "c", "d"))),
        random.integers(0, 3, (items, 2)).astype(np.int32),
        ("price",),
        np.where(np.arange(items) == 2, np.nan, random.normal(size=items)).astype(np.float32)[:, None],
        (VectorColumn("image", 4),),
        random.normal(size=(items, 4)).astype(np.float32),
    )
