"""The dataset folder: complete or absent, reproducible byte for byte, and equal to the log."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_logs import Prepare, items_of, sessions_of

from offrec.data import files, folder, statistics
from offrec.data.arrays import describe_arrays
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.errors import InputError, RunError

TEXT = "session,item,time\n" + "".join(f"{number},{number * 7 % 5},{number * 3 % 11}\n" for number in range(40))
OTHER = TEXT + "99,99,99\n"

identifiers = st.one_of(
    st.integers(-(10**6), 10**6), st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1)
)
logs = st.lists(
    st.lists(st.tuples(identifiers, st.sampled_from(["view", "cart", "buy"])), min_size=1, max_size=6),
    min_size=3,
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sessions=logs, shuffle=st.randoms(use_true_random=False))
def test_a_dataset_contains_the_sessions_of_the_log(
    tmp_path: Path, sessions: list[list[tuple[Any, str]]], shuffle: Any
) -> None:
    rows = [
        {"session": f"s{number}", "item": item, "behaviour": behaviour, "position": position}
        for number, session in enumerate(sessions)
        for position, (item, behaviour) in enumerate(session)
    ]
    shuffle.shuffle(rows)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    dataset = prepare(tmp_path / "log.jsonl", out=tmp_path / "dataset", force=True)
    expected = [[(str(item), behaviour) for item, behaviour in session] for session in sessions]
    stored = [[(str(item), behaviour) for item, behaviour in session] for session in sessions_of(dataset)]
    assert sorted(stored) == sorted(expected)
    assert dataset.n_items == len({item for session in expected for item, _ in session})


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_preparing_twice_gives_the_same_bytes(prepare_log: Prepare) -> None:
    first, second = prepare_log(("log.csv", TEXT), out="1"), prepare_log(("log.csv", TEXT), out="2")
    assert contents(first.path) == contents(second.path)
    assert set(contents(first.path)) == {
        "items.npy",
        "behaviours.npy",
        "offsets.npy",
        "times.npy",
        "item_ids.npy",
        "dataset.json",
    }


def test_the_fingerprint_depends_on_data_and_protocol(prepare_log: Prepare) -> None:
    base = prepare_log(("log.csv", TEXT), out="1")
    other = prepare_log(("log.csv", OTHER), out="2")
    scored = prepare_log(("log.csv", TEXT), out="3", score_first=False)
    assert len({base.fingerprint, other.fingerprint, scored.fingerprint}) == 3
    assert scored.meta["data_hash"] == base.meta["data_hash"] != other.meta["data_hash"]
    assert base.meta["fingerprint"] == base.fingerprint == Dataset.open(base.path).fingerprint
    assert base.with_protocol(score_first=False).fingerprint == scored.fingerprint


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (1, "was written by offrec 0.1, which used another dataset format; prepare the log again."),
        (7, "has dataset format 7, but this offrec reads format 3; prepare the log again."),
    ],
)
def test_a_dataset_of_another_version_is_refused(prepare_log: Prepare, stored: int, expected: str) -> None:
    path = prepare_log(("log.csv", TEXT)).path
    meta = json.loads((path / "dataset.json").read_text())
    (path / "dataset.json").write_text(json.dumps(meta | {"format_version": stored}))
    with pytest.raises(InputError) as caught:
        Dataset.open(path)
    assert str(caught.value) == f"{path} {expected}"


def test_an_existing_folder_is_replaced_only_with_force(prepare_log: Prepare) -> None:
    before = contents(prepare_log(("log.csv", TEXT)).path)
    with pytest.raises(InputError, match=r"dataset exists already; choose another --out, or replace it with --force\."):
        prepare_log(("log.csv", OTHER))
    dataset = prepare_log(("log.csv", TEXT), out="dataset", force=True)
    assert contents(dataset.path) == before
    assert [99] in items_of(prepare_log(("log.csv", OTHER), force=True))


def test_force_replaces_only_datasets(prepare_log: Prepare, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis is not a dataset folder, so --force does not replace it"):
        prepare_log(("log.csv", TEXT), out="thesis", force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file exists and is not a folder"):
        prepare_log(("log.csv", TEXT), out="file", force=True)


def save_that_fails_at(name: str, error: BaseException) -> Callable[..., None]:
    """Return a np.save that raises the error for one array."""
    save = np.save

    def failing_save(path: Path, array: Any, **options: Any) -> None:
        if path.stem == name:
            raise error
        save(path, array, **options)

    return failing_save


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
@pytest.mark.parametrize("exists", [False, True])
def test_an_interrupted_prepare_leaves_the_old_dataset(
    prepare_log: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, exists: bool
) -> None:
    before = contents(prepare_log(("log.csv", TEXT)).path) if exists else None
    monkeypatch.setattr(np, "save", save_that_fails_at("offsets", error))
    with pytest.raises(RunError if isinstance(error, OSError) else type(error)):
        prepare_log(("log.csv", OTHER), force=True)
    assert {path.name for path in tmp_path.iterdir()} == ({"log.csv", "dataset"} if exists else {"log.csv"})
    if exists:
        assert contents(tmp_path / "dataset") == before


def test_a_dataset_that_was_being_replaced_when_the_process_died_is_restored(
    prepare_log: Prepare, tmp_path: Path
) -> None:
    dataset = prepare_log(("log.csv", TEXT))
    finished = subprocess.Popen([sys.executable, "-c", ""])
    finished.wait()
    dataset.path.rename(tmp_path / f".dataset.{files._host()}-{finished.pid}-0f.{files.REPLACED}")
    with pytest.raises(InputError, match="exists already"):
        prepare_log(("log.csv", OTHER))
    assert Dataset.open(dataset.path).fingerprint == dataset.fingerprint


def test_progress_reports_every_step(prepare_log: Prepare) -> None:
    lines: list[str] = []
    prepare_log(("log.csv", TEXT), filter=("item=8",), progress=lines.append)
    assert "read 40 events of 5 items; times read as seconds, 1970-01-01T00:00:00 to 1970-01-01T00:00:10 UTC" in lines
    assert "filter item=8: 40 sessions, 40 events" in lines


def test_the_printed_table_shows_the_statistics(prepare_log: Prepare) -> None:
    table = dict(statistics.rows(prepare_log(("log.csv", TEXT)).meta))
    assert table["sessions"] == "40"
    assert table["events: view"] == "40"
    assert table["session length (min / 50 % / 90 % / 99 % / max)"] == "1 / 1 / 1 / 1 / 1"
    assert table["test"] == "4 sessions, 4 events"


def test_ids_match_only_in_their_exact_spelling(prepare_log: Prepare) -> None:
    vocabulary = prepare_log(("log.csv", TEXT)).vocabulary
    assert vocabulary.index("3") == vocabulary.index(3) == 3
    assert vocabulary.index("03") is None
    assert vocabulary.encode([1, "x", 77, "2"]) == ([1, 2], 2)


def test_an_unwritable_folder_is_reported(prepare_log: Prepare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        prepare_log(("log.csv", TEXT), out="file/dataset")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(28, "No space left on device"), "No space left on device"), (OSError("8 requested and 0 written"),) * 2],
)
def test_a_full_disk_is_reported_in_one_sentence(
    prepare_log: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: object
) -> None:
    monkeypatch.setattr(np, "save", save_that_fails_at("items", error))
    with pytest.raises(RunError) as caught:
        prepare_log(("log.csv", TEXT))
    assert (
        str(caught.value)
        == f"{tmp_path / 'dataset'} cannot be written ({reason}); free disk space or choose another --out."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_the_hash_depends_on_name_type_and_shape() -> None:
    arrays = [
        {"a": np.zeros(4, np.int32)},
        {"b": np.zeros(4, np.int32)},
        {"a": np.zeros(2, np.int64)},
        {"a": np.zeros((2, 2), np.int32)},
        {"a": np.zeros(0)},
    ]
    labels = {"behaviours": [], "splits": {}, "item_id_type": "int"}
    assert len({folder.hash_data(describe_arrays(array), labels) for array in arrays}) == 5
