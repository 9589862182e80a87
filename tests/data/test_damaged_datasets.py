"""A dataset folder is verified when it is opened: checksums, then types, shapes and ranges."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrec.data import arrays
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from small_datasets import seal_dataset, write_dataset

SESSIONS = [[0, 1], [], [2], [1]]
DECISIONS = [
    [(0, [0, 3], 0.5, 0), (1, [3], 0.25, None), (1, [1, 2], 0.125, 1)],
    [(0, [1, 0], 0.5, None)],
    [(0, [2, 0], 1.0, 0)],
    [(0, [1, 3], 0.75, 0), (1, [0, 1], 0.5, None)],
]
NAMES = ("items", "behaviours", "offsets", "item_ids", "item_ids_offsets", "decision_offsets", "decision_positions",
         "decision_items", "decision_log_propensity", "decision_event")  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    behaviours = [["view", "buy"], [], ["view"], ["view"]]
    ids = ["a", "é", "c", "d"]
    return write_dataset(tmp_path, SESSIONS, behaviours, (2, 1, 1), items=4, ids=ids, decisions=DECISIONS).path


def message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        Dataset.open(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_changed_bit_and_every_truncation_of_an_array_is_detected(path: Path, name: str) -> None:
    file = path / f"{name}.npy"
    content = file.read_bytes()
    for position in range(128, len(content)):  # the values; the header is in the next test
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        file.write_bytes(changed)
        assert message(path) == f"{file} is damaged: its checksum does not match; prepare the log again."
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        assert message(path).startswith(f"{file} cannot be read (")
    file.unlink()
    assert message(path) == f"{file} cannot be read (No such file or directory); prepare the log again."


def test_a_changed_header_never_changes_the_data(path: Path) -> None:
    file = path / "items.npy"
    content, expected = file.read_bytes(), Dataset.open(path)
    for position in range(128):
        for bit in range(8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            file.write_bytes(changed)
            try:
                dataset = Dataset.open(path)
            except InputError:
                continue
            assert dataset.sessions.items.tolist() == expected.sessions.items.tolist()
            assert dataset.sessions.items.dtype == np.int32


def test_every_changed_bit_of_dataset_json_is_detected(path: Path) -> None:
    file = path / "dataset.json"
    content, expected = file.read_bytes(), Dataset.open(path)
    for position in range(0, len(content), 5):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 7
        file.write_bytes(changed)
        try:
            dataset = Dataset.open(path)
        except InputError:
            continue
        assert dataset.meta == expected.meta, "white space, or another spelling of the same value"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("items", lambda a: a + 2, "items.npy contains 4, not in 0 … 3"),
        ("items", lambda a: a - 1, "items.npy contains -1, not in 0 … 3"),
        ("items", lambda a: a.astype(np.int64), "items.npy contains int64 [4], but dataset.json implies int32 [4]"),
        ("items", lambda a: a.astype(">i4"), "does not contain an array of numbers in this machine's byte order"),
        ("behaviours", lambda a: a + np.uint8(2), "behaviours.npy contains 3, not in 0 … 1"),
        ("offsets", lambda a: a[::-1].copy(), "offsets.npy must ascend from 0 to 4"),
        ("offsets", lambda a: a[:-1], "offsets.npy contains int64 [4], but dataset.json implies int64 [5]"),
        ("item_ids", lambda a: a[:-1], "the offsets of the ids do not ascend from 0 to the number of bytes"),
        ("item_ids_offsets", lambda a: a[[0, 2, 1, 3, 4]], "the offsets of the ids do not ascend"),
        ("decision_offsets", lambda a: a + 1, "decision_offsets.npy must ascend from 0 to 7"),
        ("decision_positions", lambda a: a + 2, "decision_positions contains a position outside its session"),
        ("decision_items", lambda a: a + 2, "decision_items.npy contains 6, not in 0 … 4"),
        ("decision_items", lambda a: np.zeros_like(a), "decision_items contains a list with a repeated item"),
        ("decision_items", lambda a: a[:, ::-1].copy(), "decision_items contains an empty list"),
        ("decision_log_propensity", lambda a: -a, "decision_log_propensity must contain logarithms of probabilities"),
        ("decision_log_propensity", lambda a: a - np.inf, "decision_log_propensity must contain logarithms"),
        ("decision_event", lambda a: np.where(a >= 0, 3, a), "decision_event contains an event outside its session"),
        ("decision_event", lambda a: np.where(a == 1, 0, a), "decision_event contains a pick of an item that the list"),
    ],
)
def test_arrays_with_right_checksums_but_impossible_values_are_refused(
    path: Path, name: str, change: Callable[[Any], Any], problem: str
) -> None:
    np.save(path / f"{name}.npy", change(np.load(path / f"{name}.npy")))
    seal_dataset(path)
    assert problem in message(path)
    assert message(path).endswith("; prepare the log again.")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"counts": {"sessions": 4, "events": 4, "items": 10**8}}, "it contains 4 ids instead of 100000000"),
        ({"counts": {"sessions": 4, "events": 4, "items": -1}}, "counts.items must be a whole number from 1 to"),
        ({"counts": {"sessions": 4, "events": 4, "items": 4.0}}, "counts.items must be a whole number"),
        ({"counts": [4]}, "counts must be an object; got list of 1"),
        ({"splits": {"train": [0, 3], "validation": [2, 3], "test": [3, 4]}}, "splits in dataset.json must be"),
        ({"splits": {"train": [0, 2], "validation": [2, 3], "test": [3, 5]}}, "splits in dataset.json must be"),
        ({"splits": {"train": [2, 0], "validation": [2, 3], "test": [3, 4]}}, "splits in dataset.json must be"),
        ({"behaviours": ["view", "view"]}, "behaviours in dataset.json contains a name twice"),
        ({"behaviours": ["view", 3]}, "behaviours[1] must be text"),
        ({"item_id_type": "uuid"}, "item_id_type must be one of int, string; got 'uuid'"),
        ({"decisions": {"count": 6, "k": 2}}, "decision_positions.npy contains int32 [7]"),
    ],
)  # fmt: skip
def test_impossible_values_in_dataset_json_are_refused(path: Path, changes: dict[str, Any], problem: str) -> None:
    seal_dataset(path, json.loads((path / "dataset.json").read_text()) | changes)
    assert problem in message(path)


def test_the_fingerprint_and_the_data_hash_are_recomputed(path: Path) -> None:
    from offrec.data.json_files import write_json

    for key in ("fingerprint", "data_hash"):
        meta = json.loads((path / "dataset.json").read_text())
        write_json(path / "dataset.json", meta | {key: meta[key][::-1]})
        assert f"{key} in dataset.json is not {meta[key]}" in message(path)
        seal_dataset(path)


@pytest.mark.parametrize("name", ["dataset.json", "items.npy", "item_ids.npy"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link to a device"])
def test_only_regular_files_are_read(path: Path, name: str, kind: str) -> None:
    (path / name).unlink()
    if kind == "fifo":
        os.mkfifo(path / name)
    elif kind == "folder":
        (path / name).mkdir()
    else:
        (path / name).symlink_to("/dev/zero")
    assert "is not a regular file" in message(path) or "it has no dataset.json" in message(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"a":' * 3000, "\xff", '{"a": 1, "a": 2}'])
def test_a_dataset_json_that_cannot_be_parsed_is_refused(path: Path, text: str) -> None:
    (path / "dataset.json").write_text(text, encoding="latin1")
    assert message(path)


def test_unchanged_files_are_verified_once_and_workers_inherit_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Any] = []
    hash_array = arrays.hash_array
    monkeypatch.setattr(arrays, "hash_array", lambda array: (hashed.append(array), hash_array(array))[1])
    monkeypatch.setattr(arrays, "_verified", {})
    Dataset.open(path)
    Dataset.open(path)
    assert len(hashed) == 2 * len(NAMES), "files that were just written could change without a new time stamp"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3)
    hashed.clear()
    Dataset.open(path)
    Dataset.open(path)
    assert len(hashed) == len(NAMES)
    for key, value in arrays.verified_files().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(arrays, "_verified", {})
    Dataset.open(path)
    assert len(hashed) == len(NAMES)
    content = (path / "items.npy").read_bytes()
    (path / "items.npy").write_bytes(content[:-1] + b"\1")
    assert message(path) == f"{path}/items.npy is damaged: its checksum does not match; prepare the log again."


def test_an_open_dataset_does_not_change_when_its_folder_is_replaced(path: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(path)
    other = write_dataset(tmp_path, [[4, 3], [2], [1]], ids=["v", "w", "x", "y", "z"])
    path.rename(tmp_path / "old")
    other.path.rename(path)
    assert dataset.vocabulary.ids == ["a", "é", "c", "d"]
    assert dataset.sessions.items.tolist() == [0, 1, 2, 1]
