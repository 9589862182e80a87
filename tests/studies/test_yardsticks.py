"""Yardsticks in studies of a simulated shop: twins, sampled SL, informed with fewer visitors, skipped picks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offrec.algorithms import LEARNERS
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.shop import Shop, write_log
from offrec.studies import design
from offrec.studies.study import Study
from small_studies import FAST, finished, small_dataset

FEW = {"visitors": 30, "informed_visitors": 5, "seeds": "1", "settings": FAST}


@pytest.fixture(scope="module")
def shop_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    write_log(Shop.open("demo", 3), 120, folder / "log", seed=3)
    return prepare(folder / "log/events.parquet", out=folder / "shop").path


def plan(dataset: Path, out: Path, **choices: Any) -> Study:
    return design.plan_comparison([dataset], out, **{"algorithms": "sl,dqn", "baselines": "none", **FEW, **choices})


def test_each_learner_that_looks_ahead_gets_a_twin_that_differs_only_in_gamma(shop_data: Path, tmp_path: Path) -> None:
    study = plan(shop_data, tmp_path, algorithms="all")
    groups = {group.name: group for group in study.groups if group.kind == "learner"}
    twins = {name.removesuffix(".twin"): group for name, group in groups.items() if group.is_twin}
    assert {groups[name].policy for name in twins} == {name for name, one in LEARNERS.items() if one.myopic is not None}
    assert {"dqn", "sdac", "dc", "sl+dqn"} <= {groups[name].policy for name in twins}
    assert not {"sl", "pg"} & {groups[name].policy for name in twins}
    for name, twin in twins.items():
        learner, myopic = groups[name], LEARNERS[twin.policy].myopic
        changed = {key: value for key, value in twin.options.items() if learner.options[key] != value}
        assert changed == myopic, name
        assert (twin.skip_recent, twin.family) == (learner.skip_recent, learner.family)
        order = [group.name for group in study.groups]
        assert order.index(twin.name) == order.index(name) + 1, "next to its learner"
    assert groups["shop.dc.gru.twin"].policy_label == "DC, γ = 0"
    assert {run.seed for run in study.runs if run.group == "shop.dc.gru.twin"} == {0}


def test_every_learner_with_a_critic_has_a_twin() -> None:
    looks_ahead = {name for name, one in LEARNERS.items() if one.learner().needs.critic != "none"}
    looks_ahead |= {name for name, one in LEARNERS.items() if one.family == "planner"}
    assert looks_ahead == {name for name, one in LEARNERS.items() if one.myopic is not None}


def test_twins_can_be_left_out_and_exist_only_in_shops(shop_data: Path, tmp_path: Path) -> None:
    assert not [group for group in plan(shop_data, tmp_path / "a", twins=False).groups if group.is_twin]
    elsewhere = plan(small_dataset(tmp_path), tmp_path / "b")
    assert not [group for group in elsewhere.groups if group.is_twin or group.kind == "shop" or group.skip_recent]
    same = plan(shop_data, tmp_path / "c", settings=[*FAST, "gamma=0"])
    assert not [group for group in same.groups if group.is_twin], "the learner is its own twin"


def test_a_learner_without_a_network_is_planned_once_and_gets_no_network_settings(
    shop_data: Path, tmp_path: Path
) -> None:
    study = plan(shop_data, tmp_path, algorithms="sl,user-model", backbones="gru,sasrec", settings=["network.width=8"])
    planned = [group for group in study.groups if group.policy == "user-model"]
    assert [(group.is_twin, group.policy_label) for group in planned] == [
        (False, "User model"),
        (True, "User model, horizon = 0"),
    ]
    assert not [key for group in planned for key in group.options if key in ("network.width", "network.backbone")]
    with pytest.raises(InputError, match=r"network\.width has no effect on user-model"):
        plan(shop_data, tmp_path, algorithms="sl,user-model", settings=["user-model:network.width=8"])


def test_the_plan_says_which_learners_rank_by_the_critic(shop_data: Path, tmp_path: Path) -> None:
    groups = plan(shop_data, tmp_path, algorithms="sl,dqn,sdac,dc").groups
    assert {group.policy for group in groups if group.ranks_by_critic} == {"dqn", "dc"}


def test_picks_are_skipped_as_records_say_unless_an_option_is_given(shop_data: Path, tmp_path: Path) -> None:
    study = plan(shop_data, tmp_path / "a", baselines="popular,mean-reward")
    skipped = {group.policy: group.skip_recent for group in study.groups}
    assert skipped["mean-reward"] == 8
    assert skipped["dqn"] == LEARNERS["dqn"].skip_recent
    study = plan(shop_data, tmp_path / "a", baselines="popular,mean-reward", skip_recent=3)
    assert {group.skip_recent for group in study.groups if group.kind != "shop"} == {3}


def test_a_study_measures_the_yardsticks(shop_data: Path, tmp_path: Path) -> None:
    study = design.create_or_extend(plan(shop_data, tmp_path / "study", baselines="mean-reward", twins=False))
    assert finished(study).failed == 0

    def facts(name: str) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(study.path("results", f"shop.{name}.0.json").read_text())
        return stored

    informed, sl = facts("informed")["shop"], facts("sl.gru")
    assert (informed["sessions"], informed["population"]) == (5, 30)
    assert (sl["shop"]["play"], sl["shop_sampled"]["play"]) == ("topk", "sample")
    assert sl["shop"]["reward"] != sl["shop_sampled"]["reward"]
    assert "shop_sampled" not in facts("dqn.gru")
    assert facts("mean-reward")["shop"]["skip_recent"] == 8
    rewards = {
        kind: np.load(study.path("results", f"shop.sl.gru.0.{kind}.npy")) for kind in ("rewards", "rewards_sampled")
    }
    assert {kind: array.shape for kind, array in rewards.items()} == {"rewards": (30,), "rewards_sampled": (30,)}
    for changed, said in (({"informed_visitors": 6}, "--informed-visitors 5"), ({"skip_recent": 2}, "--skip-recent")):
        with pytest.raises(InputError, match=said):
            design.create_or_extend(
                plan(shop_data, tmp_path / "study", baselines="mean-reward", twins=False, **changed)
            )


def test_impossible_numbers_of_visitors_are_refused(shop_data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--informed-visitors must be at least 0; got -1"):
        plan(shop_data, tmp_path, informed_visitors=-1)
    assert "informed" not in {group.policy for group in plan(shop_data, tmp_path, informed_visitors=0).groups}
