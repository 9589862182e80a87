"""The closed loop: shop log → policy → server → visitors → decision log → estimates and the next policy."""

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
from offrec.estimation.options import EstimateOptions
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.shop_client import RemotePlayer
from offrec.shop import Shop
from offrec.shop.log import write_log

QUIET = Console(quiet=True)
SMALL: dict[str, Any] = {"network.width": 8, "training.learning_rate": 0.02, "training.batch_size": 128}
VISITORS = 700


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The whole loop, up to the dataset made from the decision log."""
    folder = tmp_path_factory.mktemp("loop")
    shop = Shop.open("tiny", 1)
    write_log(shop, 1500, folder / "log", seed=1)
    data = offrec.prepare(folder / "log/events.parquet", out=folder / "data")
    served = offrec.train(
        data, folder / "served", settings={**SMALL, "training.epochs": 2}, device="cpu", console=QUIET
    )
    weighted = {**SMALL, "training.epochs": 4, "algorithm.weight": "reward"}
    other = offrec.train(data, folder / "other", settings=weighted, device="cpu", console=QUIET)
    options = DecisionLogOptions(flush_seconds=0.1)
    with open_client({"run": folder / "served"}, seed=3, log=folder / "decisions", log_options=options) as client:
        # One connection: sampled lists depend on how requests are batched, and this log must be reproducible.
        player = RemotePlayer(shop.dynamics, str(client.base_url), connections=1)
        rollout = shop.rollout(player, VISITORS, seed=5)
    log_dataset = offrec.prepare(
        folder / "decisions",
        out=folder / "log_dataset",
        format="served",
        catalogue=str(folder / "served"),
        split_parts=(1, 1, 18),
    )
    return {
        "folder": folder,
        "shop": shop,
        "served": served,
        "other": other,
        "rollout": rollout,
        "log_dataset": log_dataset,
    }


def test_the_dataset_contains_what_visitors_saw_and_did(loop: dict[str, Any]) -> None:
    dataset, rollout = loop["log_dataset"], loop["rollout"]
    assert dataset.vocabulary == loop["served"].vocabulary
    assert len(dataset.sessions) == VISITORS
    assert dataset.meta["decisions"]["count"] == int(rollout.steps.sum())
    assert dataset.meta["counts"]["events"] == int(rollout.lengths.sum())


def test_logged_probabilities_are_frequencies(loop: dict[str, Any]) -> None:
    """Compared for the first item of the first list of each visitor."""
    records, _ = read_records(loop["folder"] / "decisions")
    first = [record for record in records if record["kind"] == "list" and not record["history"]]
    assert len(first) == VISITORS, "in this shop visitors pick from every list, so each history is empty once"
    probabilities = {record["items"][0]: math.exp(record["log_probability"]) for record in first}
    for item, count in Counter(record["items"][0] for record in first).items():
        probability = probabilities[item]
        standard_error = math.sqrt(probability * (1 - probability) / VISITORS)
        assert abs(count / VISITORS - probability) < 4 * standard_error


def test_estimates_from_the_decision_log_agree_with_the_ground_truth(loop: dict[str, Any]) -> None:
    shop, policies = loop["shop"], {name: loop[name] for name in ("served", "other")}
    options = EstimateOptions(estimators=("importance", "self_normalised"), refits=0)
    estimates = offrec.estimate(policies, loop["log_dataset"], options, QUIET)
    by_name = {estimate.name: estimate for estimate in estimates.policies}
    served = by_name["served"].trajectories
    np.testing.assert_allclose(served.log_pi, served.log_b, atol=1e-4)  # computed now = logged by the server
    assert np.abs(by_name["other"].trajectories.log_pi - served.log_b).max() > 0.1, "the policies differ"
    for name, policy in policies.items():
        truth = shop.rollout(policy, 4000, "sample", seed=9).reward
        for estimator, assessment in by_name[name].assessments.items():
            interval = assessment.interval
            error = math.hypot(interval.standard_error, (truth.high - truth.low) / 4)
            assert abs(interval.estimate - truth.mean) < 4 * error, f"{name} by {estimator}"
            # "caution" is allowed: a single visitor who stays very long causes it.
            assert assessment.verdict != "do not trust", assessment.reason


def test_one_step_sessions_are_estimated_with_trust(loop: dict[str, Any], tmp_path: Path) -> None:
    """Serve → log → estimate → ground truth, with visitors who see one list each."""
    shop, policies = Shop.open("tiny", 1, max_steps=1), {name: loop[name] for name in ("served", "other")}
    run = {"run": loop["folder"] / "served"}
    with open_client(run, seed=3, log=tmp_path / "log", log_options=DecisionLogOptions(flush_seconds=0.1)) as client:
        shop.rollout(RemotePlayer(shop.dynamics, str(client.base_url), connections=1), VISITORS, seed=6)
    catalogue = str(loop["folder"] / "served")
    dataset = offrec.prepare(tmp_path / "log", out=tmp_path / "data", format="served", catalogue=catalogue)
    result = offrec.estimate(policies, dataset, EstimateOptions(certify=True, shares=(0.5, 1.0)), QUIET)
    assert result.sessions == VISITORS
    for one in result.policies:
        ((_, assessment),) = one.assessments.items()
        assert assessment.verdict == "trust", assessment.reasons
        truth = shop.rollout(policies[one.name], 8000, "sample", seed=9).reward.mean
        assert assessment.interval.low < truth < assessment.interval.high
    assert result.certification is not None
    assert result.certification.policies[0].certified is None, "the policy that served the log earns no more than it"


def test_a_policy_can_be_trained_on_the_decision_log(loop: dict[str, Any], tmp_path: Path) -> None:
    offrec.train(
        loop["log_dataset"], tmp_path / "next", settings={**SMALL, "training.epochs": 1}, device="cpu", console=QUIET
    )
    assert json.loads((tmp_path / "next/run.json").read_text())["items"] == loop["served"].n_items
