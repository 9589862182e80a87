"""Every format, compression and text variant, on logs small enough to know the right answer."""

import gzip
import io
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard
from small_logs import Prepare, items_of, parquet, sessions_of, write_sources

from offrec.data.prepare import prepare

TABLE = """session,item,time,behaviour
a,1,100,view
b,2,90,view
a,3,50,cart
c,2,70,view
b,1,95,buy
"""
LINES = TABLE.splitlines(keepends=True)
A, B, C = [(3, "cart"), (1, "view")], [(2, "view"), (1, "buy")], [(2, "view")]


def zipped(**members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name.replace("_", "."), text)
    return file.getvalue()


FRAME = pl.read_csv(TABLE.encode())
VARIANTS = {
    "log.csv": TABLE,
    "log.tsv": TABLE.replace(",", "\t"),
    "semicolons.csv": TABLE.replace(",", ";"),
    "windows.csv": "\ufeff" + TABLE.replace("\n", "\r\n"),
    "quoted.csv": TABLE.replace("view", '"view"').replace("session", '"session"'),
    "blank.csv": "\n" + TABLE.replace("b,", "\nb,") + "\n\n",
    "extra-newline.csv": TABLE + "\n",
    "no-final-newline.csv": TABLE.rstrip("\n"),
    "log.jsonl": FRAME.write_ndjson(),
    "log.parquet": parquet(FRAME),
    "log.csv.gz": gzip.compress(TABLE.encode()),
    "log.csv.zst": zstandard.compress(TABLE.encode()),
    "frames.csv.zst": zstandard.compress(TABLE[:40].encode()) + zstandard.compress(TABLE[40:].encode()),
    "log.zip": zipped(log_csv=TABLE),
    "two.zip": zipped(first_csv="".join(LINES[:3]), second_csv="".join(LINES[:1] + LINES[3:])),
    "log.jsonl.gz": gzip.compress(FRAME.write_ndjson().encode()),
    "log.parquet.zst": zstandard.compress(parquet(FRAME)),
    "no-suffix": TABLE,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_a_table_gives_the_same_sessions(prepare_log: Prepare, name: str) -> None:
    dataset = prepare_log((name, VARIANTS[name]))
    assert sorted(sessions_of(dataset)) == sorted([A, B, C])
    assert dataset.behaviours == ["view", "cart", "buy"]
    assert sum(dataset.meta["source_rows"].values()) == 5


def test_every_variant_gives_the_same_fingerprint(prepare_log: Prepare) -> None:
    fingerprints = {prepare_log((name, text), out=f"{name}-dataset").fingerprint for name, text in VARIANTS.items()}
    assert len(fingerprints) == 1


def test_several_files_form_one_log(prepare_log: Prepare, tmp_path: Path) -> None:
    for name, rows in (("2.csv", "a,9,1\n"), ("1.csv", "a,8,1\nb,7,1\n"), ("3.csv", "c,7,1\n")):
        (tmp_path / name).write_text("session,item,time\n" + rows)
    assert items_of(prepare_log(tmp_path / "[123].csv", split="time")) == [[8, 9], [7], [7]]
    assert [9, 8] in items_of(prepare_log(tmp_path / "2.csv", tmp_path / "1.csv", tmp_path / "3.csv", out="x"))


def test_columns_may_have_other_names(prepare_log: Prepare) -> None:
    text = "visit,product,at,did\n1,x,2,look\n1,y,1,look\n2,x,1,look\n3,x,1,look\n"
    dataset = prepare_log(("log.csv", text), session="visit", item="product", time="at", behaviour="did")
    assert sorted(sessions_of(dataset)) == [[("x", "look")], [("x", "look")], [("y", "look"), ("x", "look")]]


@pytest.mark.parametrize(("ids", "kind"), [(["7", "0", "-3"], "int"), (["007", "7", "+7"], "string")])
def test_ids_keep_their_spelling(prepare_log: Prepare, ids: list[str], kind: str) -> None:
    text = "session,item\n" + "".join(f"{number},{name}\n" for number, name in enumerate(ids))
    dataset = prepare_log(("log.csv", text))
    assert dataset.meta["item_id_type"] == kind
    assert sorted(str(session[0]) for session in items_of(dataset)) == sorted(ids)


@pytest.mark.parametrize(
    "ids", [["ключ", "鍵", "🔑 key"], ["a,b", 'say "hi"', "two\nlines"], ["1" * 30, "12.0", "1e3"]]
)
def test_ids_can_be_any_text(prepare_log: Prepare, ids: list[str]) -> None:
    rows = pl.DataFrame({"session": ids, "item": ids})
    for name, content in (("log.csv", rows.write_csv()), ("log.jsonl", rows.write_ndjson()), ("log.pq", parquet(rows))):
        dataset = prepare_log((name, content), out=f"{name}-dataset")
        assert sorted(session[0] for session in items_of(dataset)) == sorted(ids)
        assert dataset.vocabulary.index(ids[0]) is not None


def test_integer_ids_become_text_if_another_file_has_text_ids(prepare_log: Prepare) -> None:
    dataset = prepare_log(("1.csv", "session,item\n1,5\n2,6\n"), ("2.csv", "session,item\n1,x\n3,5\n"))
    assert sorted(items_of(dataset)) == [["5"], ["5", "x"], ["6"]]


TIME = datetime(2014, 4, 7, 10, 51, 9, 277_000, tzinfo=UTC)
MILLISECONDS = 1396867869277


@pytest.mark.parametrize(
    ("time", "expected", "unit"),
    [
        ("1396867869", 1396867869000, "seconds"),
        ("1396867869.277", MILLISECONDS, "seconds"),
        ("1396867869277", MILLISECONDS, "milliseconds"),
        ("1396867869277123", MILLISECONDS, "microseconds"),
        ("1396867869277123456", MILLISECONDS, "nanoseconds"),
        ("2014-04-07T10:51:09.277Z", MILLISECONDS, "dates"),
        ("2014-04-07 10:51:09.277", MILLISECONDS, "dates"),
        ("2014-04-07T10:51:09.277123", MILLISECONDS, "dates"),
        ("2014-04-07T12:51:09.277+02:00", MILLISECONDS, "dates"),
        ("2014-04-07T09:21:09.277-0130", MILLISECONDS, "dates"),
        ("2014-04-07T10:51", 1396867860000, "dates"),
        ("2014-04-07", 1396828800000, "dates"),
    ],
)
def test_times_are_converted_to_milliseconds(prepare_log: Prepare, time: str, expected: int, unit: str) -> None:
    dataset = prepare_log(("log.csv", "session,item,time\n" + "".join(f"{name},1,{time}\n" for name in "abc")))
    assert np.load(dataset.path / "times.npy").tolist() == [expected] * 3
    assert dataset.meta["time_format"] == unit


def test_parquet_dates_are_read_as_times(prepare_log: Prepare) -> None:
    frame = pl.DataFrame({"session": [1, 2, 3], "item": [1, 2, 3], "time": [TIME] * 3})
    assert np.load(prepare_log(("log.parquet", parquet(frame))).path / "times.npy").tolist() == [MILLISECONDS] * 3


RETAILROCKET = """timestamp,visitorid,event,itemid,transactionid
1433221332117,257597,view,355908,
1433224214164,992329,view,248676,
1433221999827,257597,addtocart,355908,
1433222276276,257597,transaction,355908,4000
1433221955914,111016,view,318965,
1433321955914,111016,view,318965,
"""


def test_retailrocket_sessions_are_cut_by_gap(prepare_log: Prepare) -> None:
    dataset = prepare_log(("events.csv", RETAILROCKET), format="retailrocket")
    first = [(355908, "view"), (355908, "cart"), (355908, "buy")]
    assert sorted(sessions_of(dataset)) == [[(248676, "view")], [(318965, "view")], [(318965, "view")], first]
    assert dataset.protocol.sessions == "gap"


def test_the_paper_protocol_of_retailrocket(prepare_log: Prepare) -> None:
    rows = "".join(f"{time},{visitor},view,{item},\n" for visitor in (1, 2, 3) for time, item in enumerate((7, 8, 9)))
    dataset = prepare_log(("events.csv", RETAILROCKET + rows), format="retailrocket", protocol="paper")
    # Without the purchase, the first visitor has only two events; the other items have fewer than three.
    assert items_of(dataset) == [[7, 8, 9]] * 3
    assert dataset.protocol.filters == ("session=3", "item=3")
    assert dataset.protocol.behaviours_dropped == ("buy",)
    assert dataset.protocol.sessions == "user"


CLICKS = """1,2014-04-07T10:51:09.277Z,214536502,0
1,2014-04-07T10:54:09.868Z,214536500,0
1,2014-04-07T10:54:46.998Z,214536506,S
2,2014-04-07T13:56:37.614Z,214662742,0
3,2014-04-02T13:17:46.940Z,214716935,1
3,2014-04-02T13:26:02.515Z,214774687,1
3,2014-04-02T13:30:12.318Z,214832672,1
4,2014-04-02T13:30:12.318Z,214832672,1
4,2014-04-02T13:30:12.318Z,214832672,1
4,2014-04-02T13:30:12.318Z,214832672,1
"""
BUYS = """1,2014-04-07T10:54:20.000Z,999,12462,1
2,2014-04-07T13:57:00.000Z,214662742,12462,1
5,2014-04-07T13:57:00.000Z,214662742,12462,1
"""


@pytest.mark.parametrize("buys_first", [False, True])
def test_yoochoose_clicks_and_buys_are_merged_by_time(prepare_log: Prepare, buys_first: bool) -> None:
    files = [("yoochoose-clicks.dat", CLICKS), ("yoochoose-buys.dat", BUYS)]
    dataset = prepare_log(*(files[::-1] if buys_first else files), format="yoochoose", protocol="paper")
    first = [(214536502, "click"), (214536500, "click"), (999, "buy"), (214536506, "click")]
    third = [(214716935, "click"), (214774687, "click"), (214832672, "click")]
    # Sessions with fewer than three clicks are removed, even if they have buys. An item that is only bought remains.
    assert sorted(sessions_of(dataset)) == sorted([first, third, [(214832672, "click")] * 3])
    assert dataset.behaviours == ["click", "buy"]
    assert dataset.protocol.sample == 200_000


def test_yoochoose_allows_blank_lines_and_missing_categories(prepare_log: Prepare) -> None:
    text = "\n" + CLICKS.replace(",S\n", "\n\n") + "\n"
    assert sorted(map(len, items_of(prepare_log(("clicks.dat", text), format="yoochoose")))) == [1, 3, 3, 3]


def test_the_plain_protocol_of_yoochoose_keeps_every_event(prepare_log: Prepare) -> None:
    dataset = prepare_log(("clicks.dat.gz", gzip.compress(CLICKS.encode())), format="yoochoose")
    assert sorted(map(len, items_of(dataset))) == [1, 3, 3, 3]


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.csv.zst", "two.zip", "log.jsonl", "log.parquet"])
def test_the_bytes_read_so_far_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A progress bar shows them. In an archive, the table of contents after the last member is not counted."""
    monkeypatch.setattr("offrec.data.parquet_tables.parquet.__defaults__", ((), 2))
    monkeypatch.setattr("offrec.data.sources.read_chunks.__defaults__", (30,))
    (path,) = write_sources(tmp_path, [(name, VARIANTS[name])])
    reports: list[tuple[int, int]] = []
    prepare(path, out=tmp_path / "data", on_read=lambda done, total: reports.append((done, total)))
    assert {total for _, total in reports} == {path.stat().st_size}
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] >= path.stat().st_size * (0.3 if name.endswith("zip") else 1)
    assert len(reports) >= 2 or name.endswith("zst")  # one frame is decompressed in one step
