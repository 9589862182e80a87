"""Folders of Parquet files as sources: order, hive partitions and refusals."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_logs import Prepare, error_message, items_of, parquet, sessions_of

from offrec.data import parquet_tables
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.errors import InputError


def write(folder: Path, path: str, **columns: list[Any]) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_parquet(folder / path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of one session each hold an item that tells their place in the order of the paths."""
    log = tmp_path / "events"
    write(log, "part-2.parquet", session=["a", "b"], item=[3, 3])
    write(log, "part-10.parquet", session=["a", "c"], item=[2, 2])
    write(log, "more/deep/x.pq", session=["a"], item=[1])
    (log / "_SUCCESS").write_text("")
    (log / ".part-2.parquet.crc").write_text("hidden")
    write(log, "_temporary/part-9.parquet", session=["z"], item=[99])
    return log


def test_files_are_read_in_the_order_of_their_paths(folder: Path, tmp_path: Path) -> None:
    dataset = prepare(folder, out=tmp_path / "data")
    assert sorted(items_of(dataset)) == [[1, 2, 3], [2], [3]]
    assert dataset.meta["source_rows"] == {
        "events/more/deep/x.pq": 1,
        "events/part-10.parquet": 2,
        "events/part-2.parquet": 2,
    }


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    log = tmp_path / "events"
    for day, kind, item in (("2024-05-02", "view", 2), ("2024-05-01", "buy", 1), ("2024-05-03", "a%2Fb", 3)):
        write(log, f"day={day}/kind={kind}/part-0.parquet", user=["u", day], item=[item, 9])
    dataset = prepare(log, out=tmp_path / "data", time="day", behaviour="kind", sessions="user")
    assert [(1, "buy"), (2, "view"), (3, "a/b")] in sessions_of(dataset)
    assert dataset.meta["time_format"] == "dates"


def test_a_column_of_the_file_is_preferred_to_a_partition(tmp_path: Path) -> None:
    log = tmp_path / "events"
    write(log, "item=7/part-0.parquet", session=["a", "b", "c"], item=[1, 2, 3])
    assert prepare(log, out=tmp_path / "data").vocabulary.ids.tolist() == [1, 2, 3]  # type: ignore[union-attr]


def test_a_missing_partition_value_is_missing(tmp_path: Path) -> None:
    log = tmp_path / "events"
    write(log, "user=__HIVE_DEFAULT_PARTITION__/part-0.parquet", item=[1])
    with pytest.raises(
        InputError, match=r"events/user=__HIVE_DEFAULT_PARTITION__/part-0\.parquet, row 1: a missing user"
    ):
        prepare(log, out=tmp_path / "data", sessions="user")


def test_other_folders_are_refused(folder: Path, tmp_path: Path, prepare_log: Prepare) -> None:
    (folder / "more/notes.csv").write_text("session,item\n")
    message = error_message(prepare_log, folder)  # type: ignore[arg-type]
    assert message.startswith(
        f"{folder} contains more/notes.csv, which is not a Parquet file; move it, or name the files"
    )
    (tmp_path / "empty").mkdir()
    message = error_message(prepare_log, tmp_path / "empty")  # type: ignore[arg-type]
    assert message.startswith(f"{tmp_path / 'empty'} is a folder without Parquet files; name its files, for instance")
    (folder / "more/notes.csv").rename(folder / "broken.parquet")
    message = error_message(prepare_log, folder)  # type: ignore[arg-type]
    assert message.startswith("events/broken.parquet cannot be read as Parquet (")


@pytest.mark.parametrize("target", ["/dev/zero", "missing"])
def test_devices_and_broken_links_in_a_folder_are_refused(folder: Path, prepare_log: Prepare, target: str) -> None:
    (folder / "z.parquet").symlink_to(target)
    message = error_message(prepare_log, folder)  # type: ignore[arg-type]
    assert message == f"{folder / 'z.parquet'} is not a regular file; remove it, or write its content to a file."


def test_an_empty_partition_value_is_a_missing_behaviour(tmp_path: Path, prepare_log: Prepare) -> None:
    write(tmp_path / "events", "kind=/part-0.parquet", session=[1, 2, 3], item=[1, 2, 3])
    message = error_message(prepare_log, tmp_path / "events", behaviour="kind")  # type: ignore[arg-type]
    assert message.endswith("a missing behaviour (the first of 3 such rows); expected a name.")


def test_a_file_that_is_named_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"part-2\.parquet was given twice"):
        prepare([folder, folder / "part-2.parquet"], out=tmp_path / "data")


def test_large_tables_are_read_in_slices(tmp_path: Path, prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"session": [n % 7 for n in range(100)], "item": list(range(100))})
    whole = prepare_log(("log.parquet", parquet(frame)), out="whole")
    monkeypatch.setattr(parquet_tables, "ROWS", 9)
    monkeypatch.setattr(parquet_tables.parquet, "__defaults__", ((), 9))
    sliced = prepare_log(("log.parquet", parquet(frame)), out="sliced")
    assert Dataset.open(whole.path).fingerprint == sliced.fingerprint
    wrong = frame.with_columns(item=pl.when(pl.col("item") == 40).then(None).otherwise("item"))
    message = error_message(prepare_log, ("wrong.parquet", parquet(wrong)), out="wrong")
    assert message.startswith("wrong.parquet, row 41: a missing item id")


def test_urls_are_read_as_folders_are(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    for day in range(3):
        path = folder / f"behaviour={'view' if day else 'buy'}" / f"{day}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {"session": [f"s{day}{row % 9}" for row in range(30)], "item": [row % 7 for row in range(30)]}
        pl.DataFrame(rows).write_parquet(path)
    (folder / "_SUCCESS").touch()
    local = prepare(folder, out=tmp_path / "local")
    remote = prepare(f"file://{folder}", out=tmp_path / "remote")
    assert remote.fingerprint == local.fingerprint
    assert remote.meta == local.meta
    one = prepare(f"file://{folder}/behaviour=view/1.parquet", out=tmp_path / "one")
    assert one.meta["counts"]["events"] == 30


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/log", "ftp://host/log begins with ftp://, which cannot be read; expected s3, gs,"),
        ("file:///no/such/folder", "file:///no/such/folder does not exist or is empty; check the URL."),
    ],
)
def test_urls_that_cannot_be_read_are_refused(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        prepare(url, out=tmp_path / "data")
    assert message in str(raised.value)
