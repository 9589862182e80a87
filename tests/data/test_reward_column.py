"""A reward column: stored per event, combined with the rewards of behaviours, and refused where it is unusable."""

from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_logs import Prepare, error_message, parquet

from offrec.data.dataset import Dataset
from offrec.data.rewards import REWARDS, event_rewards, event_rewards_or_none
from offrec.errors import InputError
from small_datasets import seal_dataset, write_dataset

TABLE = """session,item,time,behaviour,price
a,1,3,buy,20
a,2,1,view,
a,3,2,view,5.5
b,1,1,buy,-7
c,3,1,wave,0
"""
# Rewards by session and time, with the default reward of a view without a price.
REWARDS_OF = {"a": [0.2, 5.5, 20.0], "b": [-7.0], "c": [0.0]}


def rewards_by_session(dataset: Dataset, rewards: Any) -> list[list[float]]:
    edges = dataset.sessions.offsets.tolist()
    return sorted(rewards[first:last].astype(float).round(6).tolist() for first, last in pairwise(edges))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_event_has_its_number_or_the_reward_of_its_behaviour(prepare_log: Prepare, suffix: str) -> None:
    frame = pl.read_csv(TABLE.encode())
    content = {"csv": TABLE, "jsonl": frame.write_ndjson(), "parquet": parquet(frame)}[suffix]
    dataset = prepare_log((f"log.{suffix}", content), reward="price")
    assert rewards_by_session(dataset, event_rewards(dataset, {})) == sorted(REWARDS_OF.values())
    with_view = event_rewards(dataset, {"view": 2.0})
    assert rewards_by_session(dataset, with_view) == sorted([[2.0, 5.5, 20.0], [-7.0], [0.0]])


def test_without_the_option_a_reward_column_is_not_read(prepare_log: Prepare) -> None:
    dataset = prepare_log(("log.csv", TABLE.replace("price", "reward").replace("wave", "view")))
    assert dataset.reward_column is None
    assert set(event_rewards(dataset, {}).tolist()) == {np.float32(REWARDS["view"]), np.float32(REWARDS["buy"])}


def test_rewards_can_be_limited_to_some_behaviours(prepare_log: Prepare) -> None:
    dataset = prepare_log(("log.csv", TABLE), reward="price", reward_behaviours=("buy",))
    rewards = event_rewards(dataset, {"view": 0.0, "wave": 0.5})
    assert rewards_by_session(dataset, rewards) == sorted([[0.0, 0.0, 20.0], [-7.0], [0.5]])
    assert dataset.meta["statistics"]["rewards"]["buy"] == {"events": 2, "min": -7.0, "mean": 6.5, "max": 20.0}
    assert dataset.meta["statistics"]["rewards"]["view"] == {"events": 0}


def test_rewards_follow_their_events_through_filters_and_cuts(prepare_log: Prepare) -> None:
    rows = [f"u{n % 9},{n % 4},{1000 * (n % 7) + n},view,{n}" for n in range(300)]
    table = "user,item,time,behaviour,gain\n" + "\n".join(rows)
    dataset = prepare_log(("log.csv", table), reward="gain", filter=("item=2", "session=3"), gap_minutes=5.0)
    assert dataset.reward_column is not None
    assert dataset.times is not None
    n = np.asarray(dataset.reward_column).astype(int)
    assert (np.asarray(dataset.times) // 1000 == 1000 * (n % 7) + n).all()
    assert [dataset.vocabulary.id(item) for item in dataset.sessions.items] == (n % 4).tolist()


def test_the_reward_of_a_list_is_that_of_its_pick(prepare_log: Prepare) -> None:
    table = """session,time,offered,propensity,item,behaviour,price
a,1,shirt hat,0.5,hat,view,3
a,2,hat shoe,0.25,,,
b,3,shoe shirt,0.125,shoe,view,4
c,5,shirt shoe,0.5,shirt,view,
"""
    dataset = prepare_log(("lists.csv", table), format="decisions", reward="price")
    assert sorted(event_rewards(dataset, {}).tolist()) == [np.float32(0.2), 3.0, 4.0]
    wrong = table.replace("hat shoe,0.25,,,", "hat shoe,0.25,,,8")
    message = error_message(prepare_log, ("wrong.csv", wrong), format="decisions", reward="price", out="wrong")
    assert message.startswith("wrong.csv, line 3: a reward without a picked item: '8'")


@pytest.mark.parametrize("value", ["cheap", "nan", "inf", "2e9", "-1e10"])
def test_an_unusable_reward_is_refused_with_its_line(prepare_log: Prepare, tmp_path: Path, value: str) -> None:
    message = error_message(prepare_log, ("log.csv", TABLE.replace("5.5", value)), reward="price")
    expected = "expected a number from -1e+09 to 1e+09, or nothing"
    assert message == f"log.csv, line 4: an unusable reward '{value}' (the only such row); {expected}."
    assert not (tmp_path / "dataset").exists()


def test_other_mistakes_are_refused(prepare_log: Prepare) -> None:
    source = ("log.csv", TABLE)
    assert "log.csv has no column 'cost'" in error_message(prepare_log, source, reward="cost")
    message = error_message(prepare_log, source, reward="price", reward_behaviours=("sell",))
    assert message == "--reward-behaviours 'sell' is not a behaviour of the log, which has view, buy, wave."
    message = error_message(prepare_log, source, reward_behaviours=("buy",))
    assert message == "--reward-behaviours needs a column of rewards; specify one with --reward."
    message = error_message(prepare_log, source, reward="price", format="retailrocket")
    assert message.startswith("--format retailrocket has fixed columns")
    dates = pl.DataFrame({"session": ["a"], "item": [1], "price": [date(2020, 1, 1)]})
    message = error_message(prepare_log, ("dates.parquet", parquet(dates)), reward="price")
    assert message.startswith("dates.parquet, row 1: an unusable reward '2020-01-01'")


def test_rewards_by_behaviour_are_checked_against_the_column(prepare_log: Prepare) -> None:
    plain = prepare_log(("plain.csv", TABLE), out="plain")
    with pytest.raises(InputError, match=r"'wave' has no reward; set one, such as --set reward\.wave"):
        event_rewards(plain, {})
    assert event_rewards_or_none(plain, {}) is None
    known = event_rewards_or_none(plain, {"wave": 5.0, "cart": 3.0})  # a behaviour of another log is ignored
    assert known is not None
    assert known.max() == 5.0
    assert event_rewards(plain, {}, needed=False).max() == 1.0
    with pytest.raises(InputError, match=r"reward\.cart is not a behaviour of the dataset, which has view, buy, wave"):
        event_rewards(plain, {"cart": 1.0})
    priced = prepare_log(("priced.csv", TABLE), reward="price", out="priced")
    with pytest.raises(InputError, match=r"reward\.buy has no effect: every event 'buy'"):
        event_rewards(priced, {"buy": 2.0})
    free = TABLE.replace("20", "0").replace("-7", "0").replace("5.5", "0")
    zero = prepare_log(("zero.csv", free), reward="price", out="zero")
    with pytest.raises(InputError, match="has reward 0"):
        event_rewards(zero, {"view": 0.0})
    assert event_rewards_or_none(zero, {"view": 0.0}) is None


def test_the_column_is_part_of_the_fingerprint_and_verified(prepare_log: Prepare) -> None:
    plain, priced = prepare_log(("a.csv", TABLE), out="a"), prepare_log(("b.csv", TABLE), reward="price", out="b")
    assert plain.fingerprint != priced.fingerprint
    rewards = np.load(priced.path / "rewards.npy")
    np.save(priced.path / "rewards.npy", rewards + 1)
    with pytest.raises(InputError, match=r"rewards\.npy is damaged: its checksum"):
        Dataset.open(priced.path)
    infinite, double = np.full_like(rewards, np.inf), rewards.astype(np.float64)
    for wrong, problem in ((infinite, "a number outside"), (double, "float64")):
        np.save(priced.path / "rewards.npy", wrong)
        seal_dataset(priced.path)
        with pytest.raises(InputError, match=problem):
            Dataset.open(priced.path)


def test_rewards_of_parts_equal_those_of_all_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks compute the rewards of their own sessions. Whether any reward is not 0 still depends on all events."""
    monkeypatch.setattr("offrec.data.rewards.BLOCK_EVENTS", 2)
    made = write_dataset(tmp_path, [[0, 1], [1, 2], [2, 0]], rewards=[[np.nan, 2.0], [3.0, 4.0], [0.0, 0.0]])
    whole = event_rewards(made, {})
    part = event_rewards(made, {}, parts=[slice(1, 3)])
    assert part.dtype == whole.dtype
    assert part.tolist() == [0.0, *whole[1:3].tolist(), 0.0, 0.0, 0.0]
    zeros = event_rewards_or_none(made, {}, parts=[slice(4, 6)])
    assert zeros is not None
    assert not zeros.any()
