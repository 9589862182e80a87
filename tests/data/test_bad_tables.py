"""Unreadable tables and columns give one message, not a traceback."""

import io
import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_logs import Prepare, error_message

READABLE = "expected a number since 1970 (s, ms, µs or ns) or ISO 8601 such as 2014-04-07T10:51:09Z."


def parquet(**columns: Any) -> tuple[str, bytes]:
    file = io.BytesIO()
    pl.DataFrame({"session": [1, 2, 3], "item": [1, 2, 3], **columns}).write_parquet(file)
    return "log.parquet", file.getvalue()


@pytest.mark.parametrize("time", ["1e300", "-1e300", "99999999999999999999999", str(2**63), "nan", "inf", "-inf"])
@pytest.mark.parametrize("line", [2, 4])
def test_times_beyond_64_bits_are_unreadable(prepare_log: Prepare, time: str, line: int) -> None:
    times = ["5", "6", "7"]
    times[line - 2] = time
    text = "session,item,time\n" + "".join(f"{number},1,{time}\n" for number, time in enumerate(times))
    message = error_message(prepare_log, ("log.csv", text))
    assert message == f"log.csv, line {line}: an unreadable time '{time}' (the only such row); {READABLE}"


@pytest.mark.parametrize(
    "times",
    [
        pl.Series([1, 2**64 - 1, 3], dtype=pl.UInt64),
        pl.Series([1.0, 1e300, 3.0]),
        pl.Series([1.0, float("nan"), 3.0]),
        pl.Series([1, 2**31 - 1, 3], dtype=pl.Int32).cast(pl.Date),
        pl.Series([1, 2**62, 3]).cast(pl.Datetime("ms")),
    ],
)
def test_typed_times_beyond_64_bits_are_unreadable(prepare_log: Prepare, times: pl.Series) -> None:
    message = error_message(prepare_log, parquet(time=times))
    assert message.startswith("log.parquet, row 2: an unreadable time '")
    assert message.endswith(f"' (the only such row); {READABLE}")


def test_the_largest_time_is_read(prepare_log: Prepare) -> None:
    assert prepare_log(("log.csv", f"session,item,time\n1,1,{2**63 - 1}\n2,1,5\n3,1,6\n")).meta["counts"]["events"] == 3


def test_decimal_times_keep_their_fraction(prepare_log: Prepare) -> None:
    times = pl.Series(["1.25", "1.5", "1.75"]).cast(pl.Decimal(10, 2))
    assert sorted(np.load(prepare_log(parquet(time=times)).path / "times.npy")) == [1250, 1500, 1750]


@pytest.mark.parametrize("name", ["session", "item", "time", "behaviour"])
@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series([1, 2, 3]).cast(pl.Duration("us")), "Duration"),
        (pl.Series([[1], [2], [3]]), "List"),
    ],
)
def test_columns_of_unsupported_types_are_refused(
    prepare_log: Prepare, name: str, column: pl.Series, kind: str
) -> None:
    message = error_message(prepare_log, parquet(**{name: column}))
    assert message.startswith(f"log.parquet has a column '{name}' of type {kind}(")
    assert message.endswith("; expected numbers, text or dates: convert the column or name another.")


@pytest.mark.parametrize("name", ["user", "item", "time", "behaviour"])
def test_columns_of_objects_are_refused(prepare_log: Prepare, name: str) -> None:
    message = error_message(prepare_log, parquet(**{name: pl.Series([{"id": 1}] * 3)}))
    expected = f"'{name}' is an object with the fields {name}.id; specify one, such as --{name} {name}.id."
    assert message == f"log.parquet: {expected}"


def test_binary_columns_must_contain_utf8(prepare_log: Prepare) -> None:
    assert prepare_log(parquet(item=[b"a", b"b", b"c"]), out="text").vocabulary.id(0) == "a"
    assert "cannot be read as Parquet (invalid utf8)" in error_message(prepare_log, parquet(item=[b"\xff", b"b", b"c"]))


def test_lines_that_end_with_cr_only_are_refused(prepare_log: Prepare) -> None:
    assert error_message(prepare_log, ("log.csv", "session,item\r1,2\r2,3\r")) == (
        "log.csv separates lines by CR only; expected LF or CRLF: convert the file, "
        r"for instance with `tr '\r' '\n'`."
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ('[{"session": 1, "item": 2}]', '[{"session": 1, "item": 2}]'),
        ('[\n{"session": 1, "item": 2},\n{"session": 1, "item": 2}\n]\n', "["),
        ('{\n"session": 1,\n"item": 2\n}\n', "{"),
    ],
)
def test_json_must_be_one_object_per_line(prepare_log: Prepare, text: str, start: str) -> None:
    assert error_message(prepare_log, ("log.json", text)) == (
        f"log.json begins with {start!r}; expected one JSON object per line: convert the file "
        "(an array with `jq -c '.[]'`)."
    )


@pytest.mark.parametrize("key", ["user", "time", "position", "behaviour"])
def test_a_key_that_only_later_lines_have_is_an_error(prepare_log: Prepare, key: str) -> None:
    events = [{"session": number, "item": 1} | ({key: 5} if number >= 250 else {}) for number in range(300)]
    assert error_message(prepare_log, ("log.json", "\n".join(map(json.dumps, events)))) == (
        f"log.json, line 251: a key '{key}' that the first lines do not have (the first of 50 such rows); "
        "expected it in every line or in none."
    )


def test_unused_keys_may_be_missing_in_some_lines(prepare_log: Prepare) -> None:
    events = [
        {"user": number, "item": 1} | ({"session": 5, "colour": 1} if number >= 250 else {}) for number in range(300)
    ]
    dataset = prepare_log(("log.json", "\n".join(map(json.dumps, events))), sessions="user")
    assert dataset.meta["counts"]["sessions"] == 300
