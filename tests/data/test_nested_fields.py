"""Nested fields as columns, and objects or lists in place of values."""

import json
from typing import Any

import polars as pl
import pytest
from small_logs import Prepare, error_message, items_of, parquet

from offrec.data import nested

ROWS: list[dict[str, Any]] = [
    {"visit": {"id": "a", "at": 2}, "event": {"item": {"sku": "007", "price": 3}, "kind": "buy"}},
    {"visit": {"id": "a", "at": 1}, "event": {"item": {"sku": "x.y", "price": None}, "kind": "view"}},
    {"visit": {"id": "b", "at": 1}, "event": {"item": {"sku": "z"}, "kind": "view"}},
    {"visit": {"id": "c", "at": 1}, "event": {"item": {"sku": "z", "more": [1]}, "kind": "view"}},
]
COLUMNS = {"session": "visit.id", "item": "event.item.sku", "time": "visit.at", "behaviour": "event.kind"}


def json_lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_parquet(rows: list[Any]) -> bytes:
    plain = [{**row, "event": {**row["event"], "item": {**row["event"]["item"], "more": None}}} for row in rows]
    return parquet(pl.DataFrame(plain))


@pytest.mark.parametrize(("name", "write"), [("log.jsonl", json_lines), ("log.parquet", as_parquet)])
def test_dotted_names_select_nested_fields(prepare_log: Prepare, name: str, write: Any) -> None:
    dataset = prepare_log((name, write(ROWS)), **COLUMNS, reward="event.item.price")
    assert sorted(items_of(dataset)) == [["x.y", "007"], ["z"], ["z"]]
    assert dataset.reward_column is not None
    assert sorted(map(str, dataset.reward_column.tolist())) == ["3.0", "nan", "nan", "nan"]


def test_a_key_with_dots_is_preferred_to_a_nested_field(prepare_log: Prepare) -> None:
    rows = [{"session": name, "a.b": "flat", "a": {"b": "nested", "c.d": {"e": "deep"}}} for name in "xyz"]
    assert items_of(prepare_log(("log.jsonl", json_lines(rows)), item="a.b"))[0] == ["flat"]
    assert items_of(prepare_log(("deep.jsonl", json_lines(rows)), item="a.c.d.e", out="deep"))[0] == ["deep"]
    frame = parquet(pl.DataFrame(rows))
    assert items_of(prepare_log(("log.parquet", frame), item="a.b", out="parquet"))[0] == ["flat"]
    assert nested.json_fields([{"a": {"b": 1}}, {"a": None, "c": {}}]) == {"a.b": ("a", "b")}


@pytest.mark.parametrize(("name", "write"), [("log.jsonl", json_lines), ("log.parquet", as_parquet)])
def test_an_object_as_a_column_is_refused_with_its_fields(prepare_log: Prepare, name: str, write: Any) -> None:
    message = error_message(prepare_log, (name, write(ROWS)), **{**COLUMNS, "item": "event.item"})
    assert message.startswith(f"{name}: 'event.item' is an object with the fields event.item.sku, event.item.price")
    assert message.endswith("; specify one, such as --item event.item.sku.")
    message = error_message(prepare_log, (name, write(ROWS)), **{**COLUMNS, "item": "event.sku"})
    assert message.startswith(f"{name} has no column 'event.sku'; it has visit.id, visit.at, event.")


@pytest.mark.parametrize("wrong", [{"sku": 1}, [1, 2], []])
def test_an_object_or_a_list_in_a_row_is_refused_with_its_line(prepare_log: Prepare, wrong: Any) -> None:
    rows = [{"session": n % 3, "item": "{brace} [and bracket]"} for n in range(300)]
    rows[250]["item"] = rows[270]["item"] = wrong
    message = error_message(prepare_log, ("log.jsonl", json_lines(rows)))
    assert message.startswith("log.jsonl, line 251: an object or a list as item: ")
    assert message.endswith(
        "(the first of 2 such rows); expected a number or text: name a field of an object as --item item.FIELD."
    )


def test_an_object_in_a_served_list_is_refused(prepare_log: Prepare) -> None:
    rows: list[dict[str, Any]] = [
        {"session": n, "offered": ["[a]", "b"], "propensity": 1, "item": "b"} for n in range(4)
    ]
    assert prepare_log(("good.jsonl", json_lines(rows)), format="decisions").n_items == 2
    rows[2]["offered"] = [{"id": "[a]"}, "b"]
    message = error_message(prepare_log, ("log.jsonl", json_lines(rows)), format="decisions", out="other")
    assert message.startswith("log.jsonl, line 3: an object or a list as offered: ")


def test_a_value_in_place_of_an_object_is_refused_with_its_line(prepare_log: Prepare) -> None:
    rows = [*ROWS, {"visit": {"id": "d", "at": 1}, "event": {"item": 5, "kind": "view"}}]
    message = error_message(prepare_log, ("log.jsonl", json_lines(rows)), **COLUMNS)
    assert message.startswith("log.jsonl, line 5: no object that contains 'event.item.sku': '{\"visit\"")
    missing = [*ROWS, {"visit": {"id": "d", "at": 1}, "event": {"kind": "view"}}]
    message = error_message(prepare_log, ("log.jsonl", json_lines(missing)), **COLUMNS)
    assert message.startswith("log.jsonl, line 5: a missing item id (the only such row)")
