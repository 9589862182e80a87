"""The steps of the protocol: order, cut, filter, sample and split sessions."""

from pathlib import Path

import numpy as np
import pytest
from small_logs import Prepare, items_of

from offrec.data.dataset import Dataset
from offrec.data.prepare import PrepareOptions, prepare


def log(*sessions: str) -> tuple[str, str]:
    """Return a CSV log of sessions, each given as a string of one-letter items."""
    rows = [f"{number},{item}" for number, items in enumerate(sessions) for item in items]
    return "log.csv", "\n".join(["session,item", *rows]) + "\n"


def test_events_are_ordered_by_time_and_ties_keep_the_order_of_the_file(prepare_log: Prepare) -> None:
    rows = "a,z,5\nb,q,1\na,y,5\na,x,1\nb,r,1\na,w,5\nc,q,0\n"
    assert sorted(items_of(prepare_log(("log.csv", "session,item,time\n" + rows)))) == [["q"], ["q", "r"], list("xzyw")]


def test_events_without_times_are_ordered_by_position(prepare_log: Prepare) -> None:
    rows = "a,z,2\na,y,10\na,x,1\nb,q,0\nc,q,0\n"
    assert ["x", "z", "y"] in items_of(prepare_log(("log.csv", "session,item,position\n" + rows)))


def test_times_take_precedence_over_positions(prepare_log: Prepare) -> None:
    rows = "a,z,2,1\na,y,1,2\nb,q,0,0\nc,q,0,0\n"
    assert ["y", "z"] in items_of(prepare_log(("log.csv", "session,item,time,position\n" + rows)))


def test_without_times_and_positions_the_order_of_the_file_holds(prepare_log: Prepare) -> None:
    rows = "a,z\nb,q\na,y\nc,q\na,x\n"
    assert ["z", "y", "x"] in items_of(prepare_log(("log.csv", "session,item\n" + rows)))


def test_the_order_of_filters_matters(prepare_log: Prepare) -> None:
    # Item c occurs twice. If it is dropped first, "abc" is too short for session=3; in the other order it is not.
    source = log("aba", "bab", "bbba", "abc", "cab")
    assert sorted(items_of(prepare_log(source, filter=("item=3", "session=3"), out="1"))) == [
        list("aba"),
        list("bab"),
        list("bbba"),
    ]
    assert sorted(map(len, items_of(prepare_log(source, filter=("session=3", "item=3"), out="2")))) == [2, 2, 3, 3, 4]


def test_a_filter_is_applied_once(prepare_log: Prepare) -> None:
    # After session=3, item a has two events and is dropped; session=3 is not applied again to "b" and "bb".
    dataset = prepare_log(log("ac", "bbb", "bbba", "bba", "bcc"), filter=("session=3", "item=3"))
    assert sorted(items_of(dataset)) == [["b"], list("bb"), list("bbb"), list("bbb")]


def test_a_filter_may_count_one_behaviour(prepare_log: Prepare) -> None:
    rows = "a,x,view\na,x,buy\nb,x,view\nb,y,view\nc,x,view\nc,x,view\nd,y,view\nd,x,view\n"
    source = ("log.csv", "session,item,behaviour\n" + rows)
    assert len(prepare_log(source, filter=("session.view=2",), out="1").sessions) == 3
    assert sorted(items_of(prepare_log(source, filter=("item.buy=1",), out="2")))[:2] == [["x"], ["x"]]


def test_sessions_of_users_end_after_inactivity(prepare_log: Prepare) -> None:
    minutes = [0, 30, 61, 61, 200]
    rows = "".join(f"u,{name},{minute * 60}\n" for name, minute in zip("abcde", minutes, strict=True))
    source = ("log.csv", "user,item,time\n" + "v,z,0\n" + rows)
    assert sorted(items_of(prepare_log(source, out="1"))) == [["a", "b"], ["c", "d"], ["e"], ["z"]]
    assert sorted(items_of(prepare_log(source, out="2", gap_minutes=31))) == [["a", "b", "c", "d"], ["e"], ["z"]]


def test_the_gap_is_in_minutes_for_every_time_unit(prepare_log: Prepare) -> None:
    for unit in (10**3, 10**6, 10**9):
        start = 1_400_000_000
        rows = "".join(f"u,{name},{(start + second) * unit}\n" for name, second in zip("abcd", (0, 1800, 3601, 9999)))  # noqa: B905
        dataset = prepare_log(("log.csv", "user,item,time\n" + rows), out=str(unit))
        assert sorted(items_of(dataset)) == [["a", "b"], ["c"], ["d"]]


def test_all_events_of_a_user_can_be_one_session(prepare_log: Prepare) -> None:
    source = ("log.csv", "user,item,time\nu,a,0\nu,b,999999\nv,a,0\nw,a,0\n")
    assert ["a", "b"] in items_of(prepare_log(source, sessions="user"))


def test_sessions_with_the_same_id_of_different_users_are_separate(prepare_log: Prepare) -> None:
    source = ("log.csv", "user,session,item\nu,1,a\nv,1,b\nu,1,c\nv,2,d\n")
    assert sorted(items_of(prepare_log(source))) == [["a", "c"], ["b"], ["d"]]


def test_sessions_by_user_ignore_the_session_column(prepare_log: Prepare) -> None:
    source = ("log.csv", "user,session,item\nu,1,a\nv,1,b\nu,2,c\nw,2,d\n")
    assert sorted(items_of(prepare_log(source, sessions="user"))) == [["a", "c"], ["b"], ["d"]]


def test_behaviours_are_dropped_before_anything_is_counted(prepare_log: Prepare) -> None:
    rows = "a,x,view\na,x,buy\nb,x,view\nb,y,view\nc,y,view\nc,y,view\nd,y,view\nd,x,view\n"
    dataset = prepare_log(("log.csv", "session,item,behaviour\n" + rows), drop=("buy",), filter=("session=2",))
    assert dataset.behaviours == ["view"]
    assert len(dataset.sessions) == 3


def test_behaviours_are_stored_in_a_fixed_order(prepare_log: Prepare) -> None:
    names = ["wish", "buy", "cart", "click", "view", "ask"]
    rows = "".join(f"{number},x,{name}\n" for number, name in enumerate(names))
    dataset = prepare_log(("log.csv", "session,item,behaviour\n" + rows))
    assert dataset.behaviours == ["view", "click", "cart", "buy", "ask", "wish"]


MANY = log(*(f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"))


def test_every_session_is_in_exactly_one_split(prepare_log: Prepare) -> None:
    dataset = prepare_log(MANY)
    parts = [{tuple(session) for session in items_of(dataset, split)} for split in ("train", "validation", "test")]
    assert list(map(len, parts)) == [80, 10, 10]
    assert len(set.union(*parts)) == 100


def test_a_random_split_uses_numpys_permutation(prepare_log: Prepare) -> None:
    dataset = prepare_log(MANY, split_seed=3)
    order = np.random.Generator(np.random.PCG64(3)).permutation(100)
    every = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    assert items_of(dataset, "test") == [list(every[index]) for index in np.sort(order[90:])]


def test_another_seed_gives_another_split_and_fingerprint(prepare_log: Prepare) -> None:
    first, second = prepare_log(MANY, out="1"), prepare_log(MANY, out="2", split_seed=1)
    assert items_of(first, "test") != items_of(second, "test")
    assert first.fingerprint != second.fingerprint


def test_a_split_by_time_puts_the_latest_sessions_last(prepare_log: Prepare) -> None:
    rows = "".join(f"{number},{number},{(number * 7) % 10 * 100}\n" for number in range(10))
    dataset = prepare_log(("log.csv", "session,item,time\n" + rows), split="time")
    starts = np.load(dataset.path / "times.npy")[dataset.sessions.offsets[:-1]]
    assert starts.tolist() == sorted(starts)
    assert items_of(dataset, "test") == [[7]]  # 7 · 7 mod 10 = 9, the latest


def test_a_split_by_time_uses_the_start_of_sessions(prepare_log: Prepare) -> None:
    rows = "long,a,0\nlong,b,99\nmiddle,c,50\nlate,d,60\n"
    dataset = prepare_log(("log.csv", "session,item,time\n" + rows), split="time")
    assert items_of(dataset) == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize(("count", "sizes"), [(3, [1, 1, 1]), (4, [2, 1, 1]), (10, [8, 1, 1]), (25, [20, 2, 3])])
def test_no_split_is_empty(prepare_log: Prepare, count: int, sizes: list[int]) -> None:
    dataset = prepare_log(log(*["a"] * count))
    assert [len(dataset.split(name)) for name in ("train", "validation", "test")] == sizes  # type: ignore[arg-type]


def test_a_sample_is_drawn_after_the_filters(prepare_log: Prepare) -> None:
    source = log(*["ab"] * 50, *["c"] * 50)
    dataset = prepare_log(source, filter=("session=2",), sample=20)
    assert items_of(dataset) == [["a", "b"]] * 20
    assert len(prepare_log(source, sample=1000, out="2").sessions) == 100
    assert [step["step"] for step in dataset.meta["steps"]] == ["read", "filter session=2", "sample 20"]


def test_a_first_sample_is_drawn_before_drops_and_filters(prepare_log: Prepare) -> None:
    rows = [f"{n},{n % 50},{kind}\n" for n in range(100) for kind in ("view", "buy")[: 1 + n % 2]]
    source = ("log.csv", "session,item,behaviour\n" + "".join(rows))
    whole = prepare_log(source, out="whole", drop=("buy",), filter=("item=2",))
    options = {"sample_first": 60, "drop": ("buy",), "filter": ("item=2",), "sample": 20}
    dataset = prepare_log(source, **options)
    steps = dataset.meta["steps"]
    assert [step["step"] for step in steps] == ["read", "sample 60 first", "drop buy", "filter item=2", "sample 20"]
    assert [step["sessions"] for step in steps[:3]] == [100, 60, 60]
    # Each item has two sessions: the filter keeps those whose two sessions are both in the sample.
    assert whole.meta["counts"]["sessions"] == 100
    assert 20 < steps[3]["sessions"] < 60
    assert len(dataset.sessions) == 20
    assert prepare_log(source, out="again", **options).fingerprint == dataset.fingerprint
    assert prepare_log(source, out="other", **{**options, "split_seed": 1}).fingerprint != dataset.fingerprint


def test_a_first_sample_is_part_of_the_fingerprint(prepare_log: Prepare) -> None:
    """Also where the sample keeps all sessions. Without the option, fingerprints do not depend on it."""
    source = ("log.csv", "session,item\n" + "".join(f"{n},1\n" for n in range(9)))
    plain, sampled = prepare_log(source, out="plain"), prepare_log(source, out="sampled", sample_first=9)
    assert plain.meta["data_hash"] == sampled.meta["data_hash"]
    assert plain.fingerprint != sampled.fingerprint
    assert "sample_first" not in plain.meta["protocol"]
    assert Dataset.open(sampled.path).protocol.sample_first == 9


def test_options_override_the_paper_protocol(prepare_log: Prepare) -> None:
    source = log(*["ab"] * 5)
    assert prepare_log(source, protocol="paper", filter=("session=2",), out="1").protocol.filters == ("session=2",)
    assert prepare_log(source, protocol="paper", filter=("none",), out="2").protocol.filters == ()


def test_statistics_describe_the_log(prepare_log: Prepare) -> None:
    meta = prepare_log(log("aab", "aba", "abcabc", "d")).meta
    assert meta["counts"] == {"sessions": 4, "events": 13, "items": 4}
    assert meta["statistics"]["repeat_share"] == pytest.approx(5 / 13)
    assert meta["statistics"]["session_length"] == {"min": 1, "50 %": 3, "90 %": 6, "99 %": 6, "max": 6}
    assert meta["statistics"]["events_per_behaviour"] == {"view": 13}
    assert sum(split["events"] for split in meta["statistics"]["splits"].values()) == 13


def test_repeats_do_not_depend_on_the_group_size(prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offrec.data.sessions.GROUP_EVENTS", 4)
    assert prepare_log(log("aab", "aba", "abcabc", "d")).meta["statistics"]["repeat_share"] == pytest.approx(5 / 13)


DATA = Path(__file__).parents[3] / "shared" / "data"
needs_real_logs = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real logs are not at {DATA}")


def real_log(tmp_path: Path, name: str, options: PrepareOptions) -> Dataset:
    return prepare(DATA / name, out=tmp_path / "dataset", options=options)


@needs_real_logs
@pytest.mark.parametrize(
    ("name", "sessions", "items"),
    [("yoochoose-64-sessions.parquet", 64_169, 11_247), ("retailrocket-sessions.parquet", 125_913, 36_453)],
)
def test_counts_of_the_real_session_logs(tmp_path: Path, name: str, sessions: int, items: int) -> None:
    dataset = real_log(tmp_path, name, PrepareOptions(filter=("item=3", "session=3")))
    assert (len(dataset.sessions), dataset.n_items) == (sessions, items)


@needs_real_logs
def test_counts_of_retailrocket_under_the_paper_protocol(tmp_path: Path) -> None:
    options = PrepareOptions(format="retailrocket", protocol="paper")
    dataset = real_log(tmp_path, "retailrocket-events.csv.gz", options)
    assert (len(dataset.sessions), dataset.n_items) == (16_253, 12_123)
    assert dataset.meta["statistics"]["events_per_behaviour"] == {"view": 74_944, "cart": 4_547}
