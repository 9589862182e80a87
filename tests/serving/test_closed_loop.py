"""The circle: a shop's log → a policy → a server → its visitors → the decision log → what another policy would earn."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_server import open_client, read_records

import offrec
from offrec.console import Console
from offrec.estimation.estimate import EstimateOptions
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.shop_client import RemotePlayer
from offrec.shop import Shop
from offrec.shop.log import write_log

QUIET = Console(quiet=True)
SMALL: dict[str, Any] = {"network.width": 8, "training.learning_rate": 0.02, "training.batch_size": 128}
VISITORS = 700


@pytest.fixture(scope="module")
def circle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of it, up to the second dataset."""
    home = tmp_path_factory.mktemp("circle")
    shop = Shop.open("tiny", 1)
    write_log(shop, 1500, home / "log", seed=1)
    data = offrec.prepare(home / "log/events.parquet", out=home / "data")
    served = offrec.train(data, home / "served", settings={**SMALL, "training.epochs": 2}, device="cpu", console=QUIET)
    weighed = {**SMALL, "training.epochs": 4, "algorithm.weight": "reward"}
    other = offrec.train(data, home / "other", settings=weighed, device="cpu", console=QUIET)
    log = DecisionLogOptions(flush_seconds=0.1)
    with open_client({"run": home / "served"}, seed=3, log=home / "decisions", log_options=log) as client:
        # One request after the other: what is drawn hangs on how requests meet, and this is to be one log.
        player = RemotePlayer(shop.dynamics, str(client.base_url), connections=1)
        came = shop.rollout(player, VISITORS, seed=5)
    again = offrec.prepare(
        home / "decisions", out=home / "again", format="served", catalogue=str(home / "served"), split_parts=(1, 1, 18)
    )
    return {"home": home, "shop": shop, "served": served, "other": other, "came": came, "again": again}


def test_the_second_log_is_what_visitors_saw_and_did(circle: dict[str, Any]) -> None:
    again, came = circle["again"], circle["came"]
    assert again.vocabulary == circle["served"].vocabulary
    assert len(again.sessions) == VISITORS
    assert again.meta["decisions"]["count"] == int(came.steps.sum())
    assert again.meta["counts"]["events"] == int(came.lengths.sum())


def test_logged_probabilities_are_frequencies(circle: dict[str, Any]) -> None:
    """Of the first item that a new visitor is shown."""
    written, _ = read_records(circle["home"] / "decisions")
    first = [record for record in written if record["kind"] == "list" and not record["history"]]
    assert len(first) == VISITORS, "in this shop every list is picked from, so a visitor is new once"
    chance = {record["items"][0]: math.exp(record["log_probability"]) for record in first}
    for item, seen in Counter(record["items"][0] for record in first).items():
        spread = math.sqrt(chance[item] * (1 - chance[item]) / VISITORS)
        assert abs(seen / VISITORS - chance[item]) < 4 * spread


def test_estimates_from_the_decision_log_agree_with_the_truth(circle: dict[str, Any]) -> None:
    shop, policies = circle["shop"], {name: circle[name] for name in ("served", "other")}
    asked = EstimateOptions(estimators=("importance", "self_normalised"), refits=0)
    found = {one.name: one for one in offrec.estimate(policies, circle["again"], asked, QUIET).policies}
    own = found["served"].trajectories
    np.testing.assert_allclose(own.log_pi, own.log_b, atol=1e-4)  # what the server wrote down is what estimates compute
    assert np.abs(found["other"].trajectories.log_pi - own.log_b).max() > 0.1, "the other is another policy"
    for name, policy in policies.items():
        truth = shop.rollout(policy, 4000, "sample", seed=9).reward
        for estimator, assessment in found[name].assessments.items():
            around = assessment.interval
            error = math.hypot(around.standard_error, (truth.high - truth.low) / 4)
            assert abs(around.estimate - truth.mean) < 4 * error, f"{name} by {estimator}"
            # One visitor who stays very long is a reason for caution.
            assert assessment.verdict != "do not trust", assessment.reason


def test_the_next_policy_learns_from_it(circle: dict[str, Any], tmp_path: Path) -> None:
    offrec.train(
        circle["again"], tmp_path / "next", settings={**SMALL, "training.epochs": 1}, device="cpu", console=QUIET
    )
    assert json.loads((tmp_path / "next/run.json").read_text())["items"] == circle["served"].n_items
