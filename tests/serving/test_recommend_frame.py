"""`offrec.recommend_table`: the lists of single histories, for polars and pandas, with and without shown lists."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from random_runs import write_run

import offrec
from offrec.console import Console
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.serving.engine import Engine
from offrec.serving.recommend_table import TableOptions, write_recommendations

ROWS = {
    "session": ["b", "a", "b", "c", "a"],
    "item": [1, 2, 3, 99, 4],
    "time": [20, 30, 10, 5, 10],
}
HISTORIES = {"b": [3, 1], "a": [4, 2], "c": []}  # 99 is unknown


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return offrec.load(write_run(tmp_path_factory.mktemp("run") / "run", list(range(30))), "cpu")


def items_of(lists: pl.DataFrame) -> dict[Any, list[Any]]:
    return {key[0]: rows["item"].to_list() for key, rows in lists.group_by("session", maintain_order=True)}


def test_lists_are_those_of_single_histories_in_the_order_of_the_table(policy: Policy) -> None:
    lists = offrec.recommend_table(policy, pl.DataFrame(ROWS), k=4, exclude_seen=True, deny=[7])
    assert lists.columns == ["session", "rank", "item", "score", "probability"]
    expected = {
        session: policy.recommend(history, 4, exclude_seen=True, exclude=[7]).items
        for session, history in HISTORIES.items()
    }
    assert items_of(lists) == expected
    assert list(items_of(lists)) == ["b", "a", "c"]


class LikePandas:
    """What offrec uses of a pandas DataFrame."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.data = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        values = self.data[name]
        return type("Series", (), {"to_list": lambda self: values})()


def test_other_frames_give_the_same_kind(policy: Policy) -> None:
    lists = offrec.recommend_table(policy, LikePandas(ROWS), k=2)
    assert isinstance(lists, LikePandas)
    assert lists.data == offrec.recommend_table(policy, pl.DataFrame(ROWS), k=2).to_dict(as_series=False)


def test_pandas_frames_give_pandas_frames(policy: Policy) -> None:
    pandas = pytest.importorskip("pandas")
    lists = offrec.recommend_table(policy, pandas.DataFrame(ROWS), k=2)
    assert isinstance(lists, pandas.DataFrame)
    assert lists["item"].tolist() == offrec.recommend_table(policy, pl.DataFrame(ROWS), k=2)["item"].to_list()


def test_columns_can_have_other_names(policy: Policy) -> None:
    frame = pl.DataFrame(ROWS).rename({"session": "visit", "item": "sku", "time": "at"})
    lists = offrec.recommend_table(policy, frame, k=2, session="visit", item="sku", time="at")
    assert items_of(lists) == items_of(offrec.recommend_table(policy, pl.DataFrame(ROWS), k=2))


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            pl.DataFrame({"session": [1]}),
            {},
            "the table has no column 'item'; it has session; specify one with the argument item",
        ),
        (pl.DataFrame({"session": [1], "sku": [1]}), {"item": "itm"}, "specify one with the argument item, such as"),
        (pl.DataFrame({"item": [1]}), {}, "specify one with the argument session\\."),
        (pl.DataFrame({"session": [1, None], "item": [1, 2]}), {}, "the table, row 2: a missing session id"),
        (pl.DataFrame({"session": [1], "item": [1.5]}), {}, "a decimal number as item id"),
        (pl.DataFrame({"session": [], "item": []}), {}, "The table contains no rows"),
        (pl.DataFrame(ROWS), {"k": 0}, "^k must be between 1 and 30"),
        (pl.DataFrame(ROWS), {"skip_recent": -1}, "skip_recent must be at least 0; got -1"),
        (pl.DataFrame(ROWS), {"allow": [99]}, ": allow and deny leave no item of the catalogue"),
        (pl.DataFrame(ROWS).lazy(), {}, "frame is a LazyFrame; collect it first"),
        ([1, 2], {}, "frame must be a polars or pandas DataFrame; got list"),
    ],
)
def test_invalid_tables_are_one_sentence(policy: Policy, frame: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        offrec.recommend_table(policy, frame, **options)


def test_shown_lists_reach_the_policy(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a frame and from files; a list without a pick has no item, and one with an unknown pick is left out."""
    frame = pl.DataFrame(
        {
            "session": ["a", "a", "a", "b"],
            "time": [1, 2, 3, 1],
            "offered": [[1, 2], [3, 4], [99, 5], [6, 7]],
            "item": [2, None, 99, None],
        }
    )
    seen: list[Any] = []
    rank = Engine.rank

    def record(engine: Engine, queries: Any) -> Any:
        for query in queries:
            seen.append((list(query.history), [(list(one.items), one.picked) for one in query.shown]))
        return rank(engine, queries)

    monkeypatch.setattr(Engine, "rank", record)
    lists = offrec.recommend_table(policy, frame, k=3)
    assert items_of(lists)["a"] == policy.recommend([2], 3).items
    frame.write_parquet(tmp_path / "lists.parquet")
    frame.write_ndjson(tmp_path / "lists.jsonl")
    text = frame.with_columns(pl.col("offered").cast(pl.List(pl.String)).list.join(" "))
    text.write_csv(tmp_path / "lists.csv")
    for name in ("lists.parquet", "lists.jsonl", "lists.csv"):
        options = TableOptions(3, format="decisions")
        counts = write_recommendations(
            policy, [tmp_path / name], tmp_path / f"{name}.out.parquet", options, Console(quiet=True), force=True
        )
        assert (counts.sessions, counts.events, counts.unknown_items) == (2, 2, 1)
    expected = [([2], [([1, 2], 2), ([3, 4], None)]), ([], [([6, 7], None)])]
    assert seen == expected * 4
