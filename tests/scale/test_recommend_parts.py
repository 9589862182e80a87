"""One file of lists per file of the table, on one machine or several."""

from functools import partial
from pathlib import Path

import polars as pl
import pytest
from in_process import InProcess

from offrec.baselines import baseline
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.serving.recommend_parts import write_parts
from offrec.serving.recommend_table import TableCounts, TableOptions, write_recommendations

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    from small_datasets import write_dataset

    sessions = [[(first * 5 + step) % 12 for step in range(3 + first % 4)] for first in range(30)]
    return write_dataset(tmp_path_factory.mktemp("data"), sessions, None, (20, 5, 5))


def load_policy(path: Path) -> Policy:
    return baseline("markov", Dataset.open(path))


def write_table(folder: Path, dataset: Dataset, files: int = 3) -> Path:
    """Write a partitioned table with 7 sessions per file."""
    for number in range(files):
        rows = [(f"s{number}-{one}", dataset.vocabulary.id((one + step) % 12)) for one in range(7) for step in range(3)]
        path = folder / f"day={number}" / "events.parquet"
        path.parent.mkdir(parents=True)
        pl.DataFrame(rows, ["session", "item"], orient="row").write_parquet(path)
    return folder


def test_parts_equal_those_of_one_machine_and_of_one_file(dataset: Dataset, tmp_path: Path) -> None:
    table, policy = write_table(tmp_path / "table", dataset), load_policy(dataset.path)
    options = TableOptions(k=3)
    load = partial(load_policy, dataset.path)
    counts = [
        write_parts(policy, [table], tmp_path / "one", options, QUIET, force=False),
        write_parts(policy, [table], tmp_path / "several", options, QUIET, force=False, engine=InProcess(), load=load),
        write_recommendations(policy, [table], tmp_path / "all.parquet", options, QUIET, force=False),
    ]
    assert counts == [TableCounts(21, 63, 0)] * 3
    names = [f"part-0000{number}.parquet" for number in range(3)]
    for folder in ("one", "several"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
        lists = pl.concat(pl.read_parquet(tmp_path / folder / name) for name in names)
        assert lists.equals(pl.read_parquet(tmp_path / "all.parquet"))
    assert [(tmp_path / "one" / name).read_bytes() for name in names] == [
        (tmp_path / "several" / name).read_bytes() for name in names
    ]


def test_a_session_in_two_files_is_refused_and_nothing_is_written(dataset: Dataset, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", dataset, files=1)
    again = table / "day=9" / "events.parquet"
    again.parent.mkdir()
    again.write_bytes((table / "day=0" / "events.parquet").read_bytes())
    with pytest.raises(InputError, match=r"events.parquet contains rows of a session that an earlier file contains"):
        write_parts(load_policy(dataset.path), [table], tmp_path / "out", TableOptions(k=3), QUIET, force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table"]


def test_only_folders_of_lists_are_replaced(dataset: Dataset, tmp_path: Path) -> None:
    table, policy, out = write_table(tmp_path / "table", dataset), load_policy(dataset.path), tmp_path / "out"
    for _ in range(2):
        write_parts(policy, [table], out, TableOptions(k=3), QUIET, force=True)
    with pytest.raises(InputError, match="exists; choose another folder, or replace it with --force"):
        write_parts(policy, [table], out, TableOptions(k=3), QUIET, force=False)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a folder of lists, so --force does not replace it"):
        write_parts(policy, [table], out, TableOptions(k=3), QUIET, force=True)
    assert (out / "notes.txt").read_text() == "mine"
