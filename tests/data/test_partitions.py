"""Preparation in partitions gives the same dataset, byte for byte, as preparation in memory."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offrec.data import prepare as preparation
from offrec.data.dataset import Dataset
from offrec.data.engine import FileEngine
from offrec.data.prepare import prepare
from offrec.errors import InputError

BEHAVIOURS = ["view", "click", "buy", "wish"]


def write_log(folder: Path, sessions: int = 300, seed: int = 0, **names: Any) -> list[Path]:
    """Write two files of events whose sessions overlap in time and span both files."""
    rng = random.Random(seed)
    rows = []
    for session in range(sessions):
        time = rng.randrange(0, 5_000, 7)  # several sessions start at the same time
        for _ in range(rng.randint(1, 6)):
            item = min(int(rng.expovariate(0.1)), 60)
            rows.append(
                (f"s{session % 250}", f"u{session % 90}", f"i{item}", time, rng.choice(BEHAVIOURS), rng.random())
            )
            time += rng.choice([0, 1, 30, 4_000])
    rng.shuffle(rows)
    frame = pl.DataFrame(rows, ["session", "user", "item", "time", "behaviour", "price"], orient="row")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "one.csv", folder / "two.csv"]
    for path, part in zip(paths, (frame[: len(rows) // 3], frame[len(rows) // 3 :]), strict=True):
        part.drop(names.get("drop", [])).write_csv(path)
    return paths


def contents(dataset: Dataset) -> dict[str, bytes]:
    """Return the bytes of every file of a dataset."""
    return {file.name: file.read_bytes() for file in sorted(dataset.path.iterdir())}


CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "sessions": (["user"], {}),
    "pairs of user and session": ([], {}),
    "filters": (["user"], {"filter": ("session=2", "item=4", "session.click=1", "item.buy=2"), "drop": ("wish",)}),
    "gaps": (["session"], {"gap_minutes": 20.0, "filter": ("item=3",)}),
    "users": (["session"], {"sessions": "user", "split_seed": 5, "split_parts": (2.0, 1.0, 1.0)}),
    "no times": (["user", "time"], {}),
    "rewards": (["user"], {"reward": "price", "reward_behaviours": ("buy", "click")}),
    "one behaviour": (["user", "behaviour"], {"filter": ("item=2", "item=3")}),
}


@pytest.mark.parametrize("case", CASES)
def test_partitions_give_the_same_bytes_as_memory(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drop, options = CASES[case]
    sources = write_log(tmp_path / "log", drop=drop)
    whole = prepare(sources, out=tmp_path / "whole", split="hash", **options)
    for n in (1, 5):
        monkeypatch.setattr(FileEngine, "partitions", lambda self, size, n=n: n)
        parts = prepare(sources, out=tmp_path / f"parts{n}", split="hash", memory_limit=1 << 30, **options)
        assert contents(parts) == contents(whole)


def test_ids_and_times_that_change_their_type_between_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Batches of numbers and text have a common type only if all batches are known.
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("session,item,time\n" + "".join(f"{n},{n % 5},{n}\n" for n in range(60)))
    two.write_text("session,item,time\n" + "".join(f"{n},{n % 5}x,{n}.5\n" for n in range(30, 90)) + "007,07,1\n")
    whole = prepare([one, two], out=tmp_path / "whole", split="hash")
    monkeypatch.setattr(FileEngine, "partitions", lambda self, size: 4)
    parts = prepare([one, two], out=tmp_path / "parts", split="hash", memory_limit=1 << 30)
    assert contents(parts) == contents(whole)
    assert "07" in whole.vocabulary.ids
    assert whole.meta["time_format"] == "seconds"


def test_the_split_of_a_session_does_not_depend_on_other_sessions(tmp_path: Path) -> None:
    rows = [f"{n},{n % 7}" for n in range(400)]
    for name, lines in (("all", rows), ("half", rows[::2])):
        (tmp_path / f"{name}.csv").write_text("session,item\n" + "\n".join(lines) + "\n")
    splits = {}
    for name in ("all", "half"):
        # Each session has its own item in `marked`, so that the stored sessions can be told apart.
        text = (tmp_path / f"{name}.csv").read_text().splitlines()[1:]
        marked = tmp_path / f"{name}-marked.csv"
        marked.write_text("session,item\n" + "".join(f"{line.split(',')[0]},{line.split(',')[0]}\n" for line in text))
        dataset = prepare(marked, out=tmp_path / f"{name}-data", split="hash")
        splits[name] = {
            dataset.vocabulary.id(item): split
            for split in ("train", "validation", "test")
            for item in dataset.split(split).items[slice(*dataset.split(split).offsets[[0, -1]])]  # type: ignore[arg-type]
        }
    assert all(splits["all"][session] == split for session, split in splits["half"].items())
    assert sum(split == "train" for split in splits["all"].values()) / 400 == pytest.approx(0.8, abs=0.06)


def test_the_split_by_hash_has_its_own_fingerprint_and_key(tmp_path: Path) -> None:
    sources = write_log(tmp_path / "log", drop=["user"])
    random_split = prepare(sources, out=tmp_path / "random")
    zero, one = (prepare(sources, out=tmp_path / f"{key}", split="hash", split_seed=key) for key in (0, 1))
    assert len({random_split.fingerprint, zero.fingerprint, one.fingerprint}) == 3
    assert zero.meta["splits"] != one.meta["splits"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--memory-limit needs --split hash, because other splits need all sessions; got random."),
        ({"split": "hash", "sample": 5}, "--memory-limit cannot be used with --sample, which needs all sessions"),
        ({"split": "hash", "format": "decisions"}, "--memory-limit reads tables of events without served lists"),
        ({"split": "hash", "catalogue": "x"}, "--memory-limit cannot be used with --catalogue; remove one of them."),
        ({"split": "hash", "memory_limit": 1 << 20}, "--memory-limit must be at least 512MB; got 1MB."),
        ({"split": "hash", "filter": ("item=999",)}, "filter item=999 removes all of the 250 sessions, "),
    ],
)
def test_what_partitions_cannot_do_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    sources = write_log(tmp_path / "log", drop=["user"])
    with pytest.raises(InputError) as raised:
        prepare(sources, out=tmp_path / "data", **{"memory_limit": 1 << 30, **options})
    assert message in str(raised.value)
    assert not (tmp_path / "data").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_bad_rows_are_reported_as_without_partitions(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("session,item,time\n1,2,3\n1,,4\n2,2,5\n3,,soon\n")
    messages = []
    for limit in (None, preparation.LEAST_MEMORY):
        with pytest.raises(InputError) as raised:
            prepare(log, out=tmp_path / "data", split="hash", memory_limit=limit)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "line 3: a missing item id (the first of 2 such rows)" in messages[0]


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("session,item\n1,2\n2,2\n3,2\n")
    with pytest.raises(InputError, match="--split hash assigns none of the 3 sessions to "):
        prepare(log, out=tmp_path / "data", split="hash")
