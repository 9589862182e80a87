"""A list for every session of a table: the same as one by one, whatever the format and however it is cut."""

from pathlib import Path

import polars as pl
import pytest
from random_runs import write_run

from offrec.console import Console
from offrec.data.formats import Columns
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.runs.loading import load
from offrec.serving import recommend_table as recommend_table_module
from offrec.serving.recommend_table import Done, TableOptions, recommend_table

SKUS = [f"sku-{number:03d}" for number in range(60)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load(write_run(tmp_path_factory.mktemp("run") / "run", SKUS), "cpu")


def table() -> pl.DataFrame:
    """40 sessions, some of one event, one longer than a history; times run backwards within a session."""
    rows = [
        {
            "session": f"visit {visit}",
            "item": SKUS[(visit * 7 + step * 3) % 60],
            "time": 1_700_000_000 + 100 * visit - step,
        }
        for visit in range(40)
        for step in range(1 + visit % 9)
    ]
    rows[3]["item"] = "never heard of"
    return pl.DataFrame(rows)


def recommended(policy: Policy, source: Path, out: Path, **options: object) -> tuple[pl.DataFrame, Done]:
    chosen = TableOptions(**{"k": 4, **options})  # type: ignore[arg-type]
    done = recommend_table(policy, [source], out, chosen, Console(quiet=True), force=False)
    reader = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}[out.suffix]
    return reader(out), done


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_lists_are_those_of_one_history_at_a_time(
    policy: Policy, tmp_path: Path, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recommend_table_module, "ROWS", 11)  # slices end inside sessions
    monkeypatch.setattr("offrec.data.sources.BLOCK_BYTES", 300)
    monkeypatch.setattr("offrec.data.sources.pieces.__defaults__", (300,))
    source, out = tmp_path / f"table.{kind}", tmp_path / f"out.{kind}"
    write = {"parquet": pl.DataFrame.write_parquet, "csv": pl.DataFrame.write_csv, "jsonl": pl.DataFrame.write_ndjson}
    write[kind](table(), source)
    found, done = recommended(policy, source, out, chunk=chunk, exclude_seen=True)
    assert found.columns == ["session", "rank", "item", "score", "probability"]
    assert done == Done(sessions=40, events=table().height, unknown=1)
    assert found["session"].unique(maintain_order=True).to_list() == [f"visit {visit}" for visit in range(40)]
    for visit in (0, 1, 8, 17, 39):
        rows = found.filter(pl.col("session") == f"visit {visit}")
        history = table().filter(pl.col("session") == f"visit {visit}").sort("time")["item"].to_list()
        expected = policy.recommend(history, 4, exclude_seen=True)
        assert rows["item"].to_list() == expected.items
        assert rows["rank"].to_list() == [1, 2, 3, 4]
        assert rows["score"].to_list() == pytest.approx(expected.scores, abs=1e-5)
        assert rows["probability"].to_list() == pytest.approx(expected.probabilities, rel=1e-4)


def test_numbers_stay_numbers_and_columns_may_be_named(tmp_path: Path) -> None:
    policy = load(write_run(tmp_path / "run", list(range(20)), algorithm_name="dqn"), "cpu")
    frame = pl.DataFrame({"visit": [7, 7, 3], "sku": [1, 2, 3]})
    frame.write_parquet(tmp_path / "table.parquet")
    columns = Columns(session="visit", item="sku")
    found, _ = recommended(policy, tmp_path / "table.parquet", tmp_path / "out.parquet", columns=columns)
    assert found["session"].unique(maintain_order=True).to_list() == [7, 3]
    assert found.schema["item"] == pl.Int64
    assert found["probability"].null_count() == found.height, "scores are no chances"


def refused(policy: Policy, source: Path, out: Path, match: str, **options: object) -> None:
    before = set(out.parent.iterdir())
    with pytest.raises(InputError, match=match):
        recommended(policy, source, out, **options)
    assert set(out.parent.iterdir()) == before, "nothing half-written"


def test_what_is_refused(policy: Policy, tmp_path: Path) -> None:
    good = tmp_path / "table.csv"
    table().write_csv(good)
    refused(policy, good, tmp_path / "out.csv", "k is 99", k=99)
    refused(policy, good, tmp_path / "out.csv", "--chunk is 0", chunk=0)
    refused(policy, good, tmp_path / "out.xlsx", "ends in .xlsx")
    refused(policy, good, good, "exists already")
    with pytest.raises(InputError, match="does not exist"):
        recommended(policy, good, tmp_path / "none" / "out.csv")
    mixed = tmp_path / "mixed.csv"
    table().sort("item").write_csv(mixed)
    refused(policy, mixed, tmp_path / "out.csv", "stand in several places of the table; sort it by session")
    table().with_columns(item=pl.lit(None)).write_csv(tmp_path / "null.csv")
    refused(policy, tmp_path / "null.csv", tmp_path / "out.csv", "missing item id")
    (tmp_path / "empty.csv").write_text("session,item\n")
    refused(policy, tmp_path / "empty.csv", tmp_path / "out.csv", "no events, only a header")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    refused(policy, tmp_path / "broken.parquet", tmp_path / "out.csv", "cannot be read as Parquet")


def test_a_fault_far_down_leaves_nothing(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When lists are being written already."""
    monkeypatch.setattr("offrec.data.sources.pieces.__defaults__", (300,))
    lines = table().write_csv().splitlines()
    (tmp_path / "table.csv").write_text("\n".join([*lines, "visit 99,,1700000000"]) + "\n")
    refused(
        policy, tmp_path / "table.csv", tmp_path / "out.parquet", f"line {len(lines) + 1}: a missing item id", chunk=2
    )
