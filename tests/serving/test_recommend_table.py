"""Lists for every session of a table equal those of single histories, for every format and every block size."""

from pathlib import Path

import polars as pl
import pytest
from random_runs import write_run

from offrec.console import Console
from offrec.data.formats import Columns
from offrec.data.id_files import read_ids
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.runs.loading import load
from offrec.serving import recommend_table as recommend_table_module
from offrec.serving.recommend_table import TableCounts, TableOptions, write_recommendations

SKUS = [f"sku-{number:03d}" for number in range(60)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load(write_run(tmp_path_factory.mktemp("run") / "run", SKUS), "cpu")


def sessions_table() -> pl.DataFrame:
    """40 sessions of 1 to 9 events, in reverse order of time within a session; one item is unknown."""
    rows = [
        {
            "session": f"visit {visit}",
            "item": SKUS[(visit * 7 + step * 3) % 60],
            "time": 1_700_000_000 + 100 * visit - step,
        }
        for visit in range(40)
        for step in range(1 + visit % 9)
    ]
    rows[3]["item"] = "unknown"
    return pl.DataFrame(rows)


def run_table(policy: Policy, source: Path, out: Path, **options: object) -> tuple[pl.DataFrame, TableCounts]:
    chosen = TableOptions(**{"k": 4, **options})  # type: ignore[arg-type]
    counts = write_recommendations(policy, [source], out, chosen, Console(quiet=True), force=False)
    reader = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}[out.suffix]
    return reader(out), counts


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_lists_equal_those_of_single_histories(
    policy: Policy, tmp_path: Path, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recommend_table_module, "PARQUET_ROWS", 11)  # blocks end inside sessions
    monkeypatch.setattr("offrec.data.sources.BLOCK_BYTES", 300)
    monkeypatch.setattr("offrec.data.sources.read_chunks.__defaults__", (300,))
    source, out = tmp_path / f"table.{kind}", tmp_path / f"out.{kind}"
    write = {"parquet": pl.DataFrame.write_parquet, "csv": pl.DataFrame.write_csv, "jsonl": pl.DataFrame.write_ndjson}
    write[kind](sessions_table(), source)
    lists, counts = run_table(policy, source, out, chunk=chunk, exclude_seen=True)
    skipping, _ = run_table(policy, source, out.with_stem("skipping"), chunk=chunk, skip_recent=2)
    assert lists.columns == ["session", "rank", "item", "score", "probability"]
    assert counts == TableCounts(sessions=40, events=sessions_table().height, unknown_items=1)
    assert lists["session"].unique(maintain_order=True).to_list() == [f"visit {visit}" for visit in range(40)]
    for visit in (0, 1, 8, 17, 39):
        rows = lists.filter(pl.col("session") == f"visit {visit}")
        history = sessions_table().filter(pl.col("session") == f"visit {visit}").sort("time")["item"].to_list()
        expected = policy.recommend(history, 4, exclude_seen=True)
        assert rows["item"].to_list() == expected.items
        assert rows["rank"].to_list() == [1, 2, 3, 4]
        expected_skipping = policy.recommend(history, 4, skip_recent=2)
        assert skipping.filter(pl.col("session") == f"visit {visit}")["item"].to_list() == expected_skipping.items
        assert rows["score"].to_list() == pytest.approx(expected.scores, abs=1e-5)
        assert rows["probability"].to_list() == pytest.approx(expected.probabilities, rel=1e-4)


def test_integer_ids_stay_integers_and_columns_can_be_named(tmp_path: Path) -> None:
    policy = load(write_run(tmp_path / "run", list(range(20)), algorithm_name="dqn"), "cpu")
    frame = pl.DataFrame({"visit": [7, 7, 3], "sku": [1, 2, 3]})
    frame.write_parquet(tmp_path / "table.parquet")
    columns = Columns(session="visit", item="sku")
    lists, _ = run_table(policy, tmp_path / "table.parquet", tmp_path / "out.parquet", columns=columns)
    assert lists["session"].unique(maintain_order=True).to_list() == [7, 3]
    assert lists.schema["item"] == pl.Int64
    assert lists["probability"].null_count() == lists.height, "scores are not probabilities"


def test_ids_with_markup_and_control_characters_are_written_unchanged(tmp_path: Path) -> None:
    ids = ["[sku1]", "[/sku1]", "<b>", "tab\there", "line\nbreak", 'quo"te,']
    policy = load(write_run(tmp_path / "run", ids), "cpu")
    pl.DataFrame({"session": ["[x]"] * 3, "item": ids[:3]}).write_parquet(tmp_path / "table.parquet")
    for suffix in ("parquet", "csv", "jsonl"):
        lists, counts = run_table(policy, tmp_path / "table.parquet", tmp_path / f"out.{suffix}", k=6)
        assert sorted(lists["item"].to_list()) == sorted(ids)
        assert counts.unknown_items == 0


def refuses(policy: Policy, source: Path, out: Path, match: str, **options: object) -> None:
    before = set(out.parent.iterdir())
    with pytest.raises(InputError, match=match):
        run_table(policy, source, out, **options)
    assert set(out.parent.iterdir()) == before, "no temporary file is left"


def test_invalid_options_and_tables_are_refused(policy: Policy, tmp_path: Path) -> None:
    good = tmp_path / "table.csv"
    sessions_table().write_csv(good)
    refuses(policy, good, tmp_path / "out.csv", "-k .*99", k=99)
    refuses(policy, good, tmp_path / "out.csv", "--chunk .*0", chunk=0)
    refuses(policy, good, tmp_path / "out.xlsx", r"--out .*\.parquet")
    refuses(policy, good, good, "--out .* exists.*--force")
    refuses(policy, good, tmp_path / "out.csv", "--format", format="served")
    refuses(policy, good, tmp_path / "out.csv", "no column 'offered'.*--offered", format="decisions")
    shuffled = tmp_path / "shuffled.csv"
    sessions_table().sort("item").write_csv(shuffled)
    refuses(policy, shuffled, tmp_path / "out.csv", "not contiguous.* sort")
    sessions_table().with_columns(item=pl.lit(None)).write_csv(tmp_path / "null.csv")
    refuses(policy, tmp_path / "null.csv", tmp_path / "out.csv", "missing item id")
    (tmp_path / "empty.csv").write_text("session,item\n")
    refuses(policy, tmp_path / "empty.csv", tmp_path / "out.csv", "contains no events")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    refuses(policy, tmp_path / "broken.parquet", tmp_path / "out.csv", "cannot be read as Parquet")


def test_an_error_in_a_late_row_leaves_no_file(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lists are being written when the invalid row is read."""
    monkeypatch.setattr("offrec.data.sources.read_chunks.__defaults__", (300,))
    lines = sessions_table().write_csv().splitlines()
    table = tmp_path / "table.csv"
    table.write_text("\n".join([*lines, "visit 99,,1700000000"]) + "\n")
    refuses(policy, table, tmp_path / "out.parquet", f"line {len(lines) + 1}: a missing item id", chunk=2)


def test_allow_and_deny_restrict_every_list(policy: Policy, tmp_path: Path) -> None:
    sessions_table().write_parquet(tmp_path / "table.parquet")
    lists, _ = run_table(policy, tmp_path / "table.parquet", tmp_path / "out.parquet", allow=SKUS[:9], deny=SKUS[:2])
    for _, rows in lists.group_by("session"):
        assert set(rows["item"]) <= set(SKUS[2:9])
        assert rows.height == 4
    with pytest.raises(InputError, match="--allow and --deny leave no item of the catalogue"):
        run_table(policy, tmp_path / "table.parquet", tmp_path / "none.parquet", allow=["unknown"])
    assert not (tmp_path / "none.parquet").exists()


def test_files_of_ids_are_read_or_refused_with_one_sentence(tmp_path: Path, policy: Policy) -> None:
    text, array, empty, wrong = (tmp_path / name for name in ("a.txt", "a.json", "empty.txt", "wrong.json"))
    text.write_text("sku-001\nsku-002\r\n\n")
    array.write_text('["sku-001", 7]')
    empty.write_text("\n")
    wrong.write_text('{"a": 1}')
    assert read_ids(text, "--allow") == ["sku-001", "sku-002"]
    assert read_ids(array, "--allow") == ["sku-001", 7]
    for path, message in (
        (empty, "--deny .*empty.txt contains no item ids; expected one per line."),
        (wrong, "--deny .*wrong.json cannot be read: it must be a JSON array of item ids; expected one item id per "),
        (tmp_path / "no.txt", "--deny .*no.txt does not exist; check the path."),
        (tmp_path, "--deny .* cannot be read: .*; expected one item id per line"),
    ):
        with pytest.raises(InputError, match=message):
            read_ids(path, "--deny")
