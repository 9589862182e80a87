"""Bad input gives one message: the file, the first bad line, its value, how many there are, and what to do."""

import gzip
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from small_logs import Prepare, error_message

from offrec.data.prepare import prepare
from offrec.errors import InputError, plain_text

GOOD = "session,item,time\n" + "".join(f"{number},{number % 3},{number}\n" for number in range(30))
RETAIL = "timestamp,visitorid,event,itemid,transactionid\n"


def rows(*lines: str, header: str = "session,item,time,behaviour") -> str:
    return "\n".join([header, *lines]) + "\n"


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "item column": (
        rows("1,2", header="session,product"),
        {},
        "log.csv has no column 'item'; it has session, product; specify one with --item, such as --item product.",
    ),
    "named column": (
        rows("1,2", header="session,item"),
        {"time": "when"},
        "log.csv has no column 'when'; it has session, item; specify one with --time.",
    ),
    "neither session nor user": (
        rows("1,2", header="visit,item"),
        {},
        "log.csv has no column 'session' or 'user'; it has visit, item; specify one with --session or --user.",
    ),
    "duplicate column": (
        rows("1,2,3", header="session,item,item"),
        {},
        "log.csv has 2 columns 'item'; rename all but one.",
    ),
    "retailrocket column": (
        rows("1,2,view,3", header="timestamp,visitorid,event,item"),
        {"format": "retailrocket"},
        "log.csv has no column 'itemid', only timestamp, visitorid, event, item; expected RetailRocket's events.csv.",
    ),
    "empty": ("", {}, "log.csv is empty; expected a table of events."),
    "blank": ("\n \n", {}, "log.csv is empty; expected a table of events."),
    "header only": ("session,item\n", {}, "log.csv contains only a header; expected events below it."),
    "time": (
        rows("1,1,5,view", "1,1,yesterday,view", "2,1,6,view", "2,1,soon,view"),
        {},
        "log.csv, line 3: an unreadable time 'yesterday' (the first of 2 such rows); expected a number since 1970 "
        "(s, ms, µs or ns) or ISO 8601 such as 2014-04-07T10:51:09Z.",
    ),
    "date": (
        rows("1,1,2014-01-31,view", "1,1,2014-02-30,view"),
        {},
        "log.csv, line 3: an unreadable time '2014-02-30' (the only such row); expected a number since 1970 "
        "(s, ms, µs or ns) or ISO 8601 such as 2014-04-07T10:51:09Z.",
    ),
    "missing time": (
        rows("1,1,5,view", "1,1,,view"),
        {},
        "log.csv, line 3: a missing time (the only such row); every event needs one: fill it in or remove the row.",
    ),
    "missing item": (
        rows("1,1,5,view", "1,,6,view", '1,"",7,view'),
        {},
        "log.csv, line 3: a missing item id (the first of 2 such rows); every event needs one: fill it in or "
        "remove the row.",
    ),
    "missing session": (
        rows("1,1,5,view", ",1,6,view"),
        {},
        "log.csv, line 3: a missing session id (the only such row); every event needs one: fill it in or remove "
        "the row.",
    ),
    "missing behaviour": (
        rows("1,1,5,view", "1,1,6,"),
        {"behaviours": ("view", "buy")},
        "log.csv, line 3: a missing behaviour (the only such row); expected one of view, buy.",
    ),
    "unknown behaviour": (
        rows("1,1,5,view", "1,1,6,veiw", "1,1,6,veiw"),
        {"behaviours": ("view", "buy")},
        "log.csv, line 3: an unknown behaviour 'veiw' (the first of 2 such rows); expected one of view, buy.",
    ),
    "retailrocket behaviour": (
        RETAIL + "1,1,view,1,\n2,1,purchase,1,\n",
        {"format": "retailrocket"},
        "log.csv, line 3: an unknown behaviour 'purchase' (the only such row); expected one of view, addtocart, "
        "transaction.",
    ),
    "retailrocket transaction": (
        RETAIL + "1,1,view,1,\n2,1,view,1,77\n",
        {"format": "retailrocket"},
        "log.csv, line 3: a transactionid for 'view' (the only such row); expected one only for transactions.",
    ),
    "position": (
        rows("1,1,1", "1,1,first", header="session,item,position"),
        {},
        "log.csv, line 3: an unreadable position 'first' (the only such row); expected an integer.",
    ),
    "short row": (
        rows("1,1,5,view", "1,1", "1,1,5,view", "1,1"),
        {},
        "log.csv, line 3: wrong number of fields: 2 (the first of 2 such rows); "
        "expected 4 as in the header: quote fields that contain the separator, or repair the file.",
    ),
    "short row after a blank line": (
        rows("1,1,5,view", "", "1,1"),
        {},
        "log.csv, line 4: wrong number of fields: 2 (the only such row); "
        "expected 4 as in the header: quote fields that contain the separator, or repair the file.",
    ),
    "long row": (
        rows("1,1,5,view", "1,1,5,view,x"),
        {},
        "log.csv, line 3: wrong number of fields: 5 (the only such row); "
        "expected 4 as in the header: quote fields that contain the separator, or repair the file.",
    ),
    "lines are counted past blank lines and quoted line ends": (
        'session,item\n\n1,"a\nb"\n\n2,\n'.replace("\n\n2", "\n2"),
        {},
        "log.csv, line 5: a missing item id (the only such row); every event needs one: fill it in or remove the row.",
    ),
    "yoochoose fields": (
        "1,2\n",
        {"format": "yoochoose"},
        "log.csv, line 1: 2 fields; expected 4 as in yoochoose-clicks.dat (session,time,item,category) "
        "or 5 as in yoochoose-buys.dat (session,time,item,price,quantity).",
    ),
    "yoochoose id": (
        "1,2014-04-07T10:51:09.277Z,5,0\n1,2014-04-07T10:51:09.277Z,x,0\n",
        {"format": "yoochoose"},
        "log.csv, line 2: the item id 'x' (the only such row); expected an integer.",
    ),
    "yoochoose time": (
        "1,2014-04-07T10:51:09.277Z,5,0\n1,2014-04-07T10:51:99.277Z,6,0\n",
        {"format": "yoochoose"},
        "log.csv, line 2: an unreadable time '2014-04-07T10:51:99.277Z' (the only such row); expected a number "
        "since 1970 (s, ms, µs or ns) or ISO 8601 such as 2014-04-07T10:51:09Z.",
    ),
    "filters remove everything": (
        GOOD,
        {"filter": ("item=3", "session=2")},
        "filter session=2 removes all of the 30 sessions, 30 events; relax the filters.",
    ),
    "filter": (
        GOOD,
        {"filter": ("items>3",)},
        "--filter 'items>3' cannot be read; expected item=3, session=3 or session.click=3.",
    ),
    "filter by an unknown behaviour": (
        GOOD,
        {"filter": ("session.click=2",)},
        "--filter 'session.click=2' names an unknown behaviour; the log has view.",
    ),
    "too few sessions": (
        rows("1,1,5,view", "2,1,6,view"),
        {},
        "Only 2 sessions remain, too few for three splits; relax the filters or add data.",
    ),
    "time split without times": (
        rows("1,1", header="session,item"),
        {"split": "time"},
        "--split time needs timestamps, but the log has none; specify a column with --time or use --split random.",
    ),
    "gap without times": (
        rows("1,1", header="user,item"),
        {},
        "--sessions gap needs timestamps, but the log has none; specify a column with --time or use --sessions user.",
    ),
    "sessions by user without a user column": (
        rows("1,1", header="session,item"),
        {"sessions": "user"},
        "log.csv has no column 'user'; it has session, item; specify one with --session or --user.",
    ),
    "drop": (GOOD, {"drop": ("buy",)}, "--drop 'buy' is not a behaviour of the log, which has view."),
    "option": (GOOD, {"splits": 3}, "prepare has no option 'splits'; its options are format, protocol, "),
    "format": (
        GOOD,
        {"format": "csv"},
        "There is no format 'csv'; the known ones are retailrocket, yoochoose, events, decisions, served, open-bandit.",
    ),
    "parts": (
        GOOD,
        {"split_parts": (8, 1, 0)},
        "--split-parts must be three positive numbers, such as 8 1 1; got 8 1 0.",
    ),
    "json": (
        '{"session": 1, "item": 2}\n{"session": 1,\n[1]\n',
        {},
        "log.csv, line 2: not a JSON object: '{\"session\": 1,' (the first of 2 such rows); expected one object "
        "per line.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_message_says_what_is_wrong(prepare_log: Prepare, name: str) -> None:
    text, choices, expected = CASES[name]
    message = error_message(prepare_log, ("log.csv", text), **choices)
    assert message == expected or (expected.endswith(", ") and message.startswith(expected))


def test_bad_rows_far_into_the_file_are_counted_and_the_first_line_is_named(
    prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offrec.data.sources.read_chunks.__defaults__", (100,))
    lines = [f"{number},1,{number}" for number in range(500)]
    lines[300], lines[490] = "300,1,x", "490,1,y"
    message = error_message(prepare_log, ("log.csv", rows(*lines, header="session,item,time")))
    assert message.startswith("log.csv, line 302: an unreadable time 'x' (the first of 2 such rows);")


def test_lines_are_counted_after_any_header(prepare_log: Prepare) -> None:
    text = "\ufeff\r\nsession,item\r\n1,2\r\n\r\n,3\r\n"
    assert error_message(prepare_log, ("log.csv", text)).startswith("log.csv, line 5: a missing session id")


def test_the_message_about_a_wrong_encoding_names_the_line(prepare_log: Prepare) -> None:
    text = rows("1,café", "2,naïve", "3,x", header="session,item").encode("latin1")
    message = error_message(prepare_log, ("log.csv", text))
    assert message.startswith("log.csv, line 2: byte 0xe9 is not UTF-8 (the first of 2 such lines); convert")
    assert "zero byte" in error_message(prepare_log, ("wide.csv", GOOD.encode("utf-16-le")))


@pytest.mark.parametrize("size", [3, 20, 80])
@pytest.mark.parametrize("ending", ["gz", "zst", "zip"])
def test_truncated_archives_are_reported(prepare_log: Prepare, ending: str, size: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("log.csv", GOOD)
    whole = {"gz": gzip.compress(GOOD.encode()), "zst": zstandard.compress(GOOD.encode()), "zip": file.getvalue()}
    message = error_message(prepare_log, (f"log.csv.{ending}", whole[ending][:size]))
    assert re.match(rf"log\.csv\.{ending} is (truncated or damaged|not a \w+ file although its name ends in)", message)


@pytest.mark.parametrize("ending", ["gz", "zst", "zip"])
def test_damaged_archives_are_reported(prepare_log: Prepare, ending: str) -> None:
    text = "".join(f"{number},{number * 7919 % 1000}\n" for number in range(3000))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log.csv", "session,item\n" + text)
    whole = {
        "gz": gzip.compress(b"session,item\n" + text.encode()),
        "zst": zstandard.ZstdCompressor(write_checksum=True).compress(b"session,item\n" + text.encode()),
        "zip": file.getvalue(),
    }
    damaged = bytearray(whole[ending])
    damaged[len(damaged) // 2] ^= 0xFF
    message = error_message(prepare_log, (f"log.csv.{ending}", bytes(damaged)))
    assert message.startswith(f"log.csv.{ending}")
    assert "truncated or damaged" in message


def test_damaged_parquet_is_reported(prepare_log: Prepare) -> None:
    file = io.BytesIO()
    pl.DataFrame({"session": range(1000), "item": range(1000)}).write_parquet(file)
    whole = file.getvalue()
    assert "cannot be read as Parquet" in error_message(prepare_log, ("log.parquet", whole[: len(whole) // 2]))
    assert "cannot be read as Parquet" in error_message(prepare_log, ("log.parquet", GOOD))


def test_messages_about_parquet_name_rows_and_decimal_ids_are_refused(prepare_log: Prepare) -> None:
    file = io.BytesIO()
    pl.DataFrame({"session": [1, None, 3], "item": [1, 2, 3]}).write_parquet(file)
    assert error_message(prepare_log, ("log.parquet", file.getvalue())).startswith(
        "log.parquet, row 2: a missing session id"
    )
    file = io.BytesIO()
    pl.DataFrame({"session": [1, 2, 3], "item": [1.0, 2.0, 3.0]}).write_parquet(file)
    assert "a decimal number as item id: '1.0'" in error_message(prepare_log, ("log.parquet", file.getvalue()))


def test_an_unterminated_quote_is_reported(prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offrec.data.sources.MAX_ROW_BYTES", 50)
    text = 'session,item\n1,"a\n' + "2,b\n" * 100
    assert "a quote or a row that does not end" in error_message(prepare_log, ("log.csv", text))


def test_files_with_different_columns_are_refused(prepare_log: Prepare) -> None:
    with pytest.raises(InputError, match=r"2\.csv and 1\.csv have different columns: only one of them has time;"):
        prepare_log(("1.csv", "session,item,time\n1,2,3\n"), ("2.csv", "session,item\n1,2\n"))


def test_numeric_times_and_dates_do_not_mix(prepare_log: Prepare, tmp_path: Path) -> None:
    frame = pl.DataFrame({"session": [1, 2, 3], "item": [1, 2, 3], "time": [1, 2, 3]})
    frame.write_parquet(tmp_path / "1.parquet")
    frame.with_columns(pl.col("time").cast(pl.Datetime("us"))).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(InputError, match="numbers in some files and dates in others"):
        prepare_log(tmp_path / "1.parquet", tmp_path / "2.parquet")


def test_missing_and_repeated_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    for name, expected in (
        ("none.csv", r"none\.csv does not exist; check the path\."),
        ("*.parquet", r".*\*\.parquet matches no file; check the path\."),
        (".", r"is a folder without Parquet files; name its files, for instance '.*\*\.csv'\."),
    ):
        with pytest.raises(InputError, match=expected):
            prepare(tmp_path / name, out=tmp_path / "dataset")
    with pytest.raises(InputError, match=r"log\.csv was given twice"):
        prepare([tmp_path / "log.csv", tmp_path / "*.csv"], out=tmp_path / "dataset")
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize("name", ["[sku1]", "[/sku1]", "\x1b[31m"])
def test_brackets_and_control_characters_in_a_log_are_printed_as_text(tmp_path: Path, name: str) -> None:
    """`prepare` prints behaviours and names ids in its messages; neither may be read as markup."""
    rows = "".join(f"s{session},{name}{session % 2},{name}\n" for session in range(9))
    (tmp_path / "log.csv").write_text("session,item,behaviour\n" + rows)
    command = [sys.executable, "-m", "offrec", "prepare", str(tmp_path / "log.csv"), "--out", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"events: {plain_text(name)}" in done.stdout
    done = subprocess.run([*command, "--force", "--drop", "view"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert plain_text(name) in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
