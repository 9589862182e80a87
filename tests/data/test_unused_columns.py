"""Warnings about columns that look as if they were meant but are not read."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_logs import parquet, write_sources

from offrec.data.prepare import prepare
from offrec.shop import Shop
from offrec.shop.log import write_log


def warnings(tmp_path: Path, content: str | bytes, name: str = "log.csv", **options: Any) -> list[str]:
    lines: list[str] = []
    prepare(
        write_sources(tmp_path, [(name, content)]), out=tmp_path / "data", force=True, progress=lines.append, **options
    )
    return [line for line in lines if line.startswith("Warning: ")]


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("behavior", "behaviour"),
        ("event_type", "behaviour"),
        ("timestamp", "time"),
        ("Event-Time", "time"),
        ("Time", "time"),
        ("user_id", "user"),
        ("customerId", "user"),
        ("rating", "reward"),
        ("reward", "reward"),
        ("step", "position"),
        ("pscore", "propensity"),
    ],
)
def test_a_column_that_looks_meant_is_named_with_its_option(tmp_path: Path, column: str, name: str) -> None:
    (warning,) = warnings(tmp_path, f"session,item,{column}\n" + "".join(f"{n},1,0.5\n" for n in range(4)))
    assert warning == (
        f"Warning: log.csv: The column {column!r} is not used. If it is the {name}, add --{name} {column}."
    )


@pytest.mark.parametrize("column", ["product_id", "sku", "itemid"])
def test_an_item_id_next_to_a_column_item_is_named(tmp_path: Path, column: str) -> None:
    table = f"session,item,{column}\n" + "".join(f"{n},shirt,{n}\n" for n in range(4))
    (warning,) = warnings(tmp_path, table)
    assert warning.startswith(f"Warning: log.csv: The column {column!r} is not used; 'item' is read as the item.")
    assert warnings(tmp_path, table, item="item") == []
    assert warnings(tmp_path, table, item=column) == []


def test_columns_that_are_read_or_unrelated_cause_no_warning(tmp_path: Path) -> None:
    table = "session,item,time,step,timestamp,when,colour\n" + "".join(f"{n},1,2,3,4,5,red\n" for n in range(4))
    assert warnings(tmp_path, table) == []
    assert warnings(tmp_path, table.replace("session", "session_id"), session="session_id", time="when") == []
    other = "user,item,session_id\n" + "".join(f"{n},1,2\n" for n in range(4))
    assert warnings(tmp_path, other, sessions="user") == []
    assert len(warnings(tmp_path, other.replace("user", "session"), user="session_id")) == 0


def test_nested_fields_are_recognised_by_their_last_name(tmp_path: Path) -> None:
    frame = pl.DataFrame({"session": [1, 2, 3], "item": [1, 2, 3], "meta": [{"timestamp": 5}] * 3})
    expected = "The column 'meta.timestamp' is not used. If it is the time, add --time meta.timestamp."
    for name, content in (("log.parquet", parquet(frame)), ("log.jsonl", frame.write_ndjson())):
        assert warnings(tmp_path, content, name) == [f"Warning: {name}: {expected}"]


def test_logs_of_the_simulated_shop_cause_no_warning(tmp_path: Path) -> None:
    """Their column `reward` contains the rewards of the behaviours."""
    write_log(Shop.open("demo"), 20, tmp_path / "log")
    lines: list[str] = []
    for name, options in (("events.parquet", {}), ("full.parquet", {"format": "decisions"})):
        prepare(tmp_path / "log" / name, out=tmp_path / name, progress=lines.append, **options)
    assert not [line for line in lines if line.startswith("Warning")]
