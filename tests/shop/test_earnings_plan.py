"""The protocol of results/earnings-plan.json."""

import json
import sys
from pathlib import Path

import pytest

from offrec.shop.worlds import WORLDS

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import earnings_plan


def test_the_plan_names_ten_tuning_and_twelve_reporting_seeds_and_existing_worlds() -> None:
    plan = earnings_plan.PLAN
    assert plan.tuning_seeds == tuple(range(10, 20))
    assert plan.reporting_seeds == tuple(range(100, 112))
    assert {*plan.worlds, *plan.larger_worlds} == plan.sessions.keys() <= WORLDS.keys()
    assert (plan.visitors, plan.sessions["demo"]) == (4000, 20_000)


def test_each_series_has_seeds_of_its_own() -> None:
    seeds = json.loads(earnings_plan.FILE.read_text())["seeds"]
    assert list(earnings_plan.PLAN.series) == ["second", "third", "fourth", "fifth", "sixth", "seventh"]
    for name, groups in earnings_plan.PLAN.series.items():
        assert {seed for group in groups for seed in group["seeds"]} == set(seeds[f"{name}_series"])


def test_settings_cannot_be_chosen_on_shops_that_are_reported_on() -> None:
    earnings_plan.PLAN.check_tuning([10, 19])
    with pytest.raises(ValueError, match=r"\[4, 100\] are not tuning seeds"):
        earnings_plan.PLAN.check_tuning([4, 10, 100])


def test_a_seed_with_two_purposes_is_refused(tmp_path: Path) -> None:
    plan = json.loads(earnings_plan.FILE.read_text())
    plan["seeds"]["tuning"].append(100)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match="two purposes"):
        earnings_plan.EarningsPlan.read(tmp_path / "plan.json")
