"""`offrec estimate`: the table, JSON, the forest plot, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_policies import Fixed

import offrec
from offrec.commands.estimate import Estimate
from offrec.commands.estimate_output import print_result
from offrec.console import Console
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import difference_to_log, estimate
from offrec.estimation.estimators import ESTIMATORS
from offrec.estimation.options import EstimateOptions
from offrec.estimation.trajectories import Trajectories
from offrec.evaluation import ScoredEvents
from offrec.models.network import NetworkOptions
from offrec.runs.loading import load, open_dataset
from offrec.runs.train import train
from small_datasets import write_dataset

SMALL = {"network.width": 8, "network.history": 5, "training.epochs": 2, "device": "cpu"}
FEW = ValueOptions(network=NetworkOptions(width=8), updates=10)
FAST = {"updates": 10, "refits": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, a run with probabilities (sl) and a run without (dqn)."""
    folder, random = tmp_path_factory.mktemp("estimates"), np.random.default_rng(0)
    sessions = [random.integers(10, size=random.integers(1, 4)).tolist() for _ in range(400)]
    words = [["buy" if item < 3 else "view" for item in session] for session in sessions]
    dataset = write_dataset(folder, sessions, words, (200, 20, 180), items=10)
    for name in ("sl", "dqn"):
        train(dataset, folder / name, algorithm=name, settings=SMALL, console=Console(quiet=True))
    return folder


def test_the_table_has_a_row_per_policy_and_a_legend(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Estimate((work / "sl", work / "dqn"), baselines="recent", picture=work / "forest.png", **FAST).run()  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    names = [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")]
    assert next(name for name in names if name) == "logging policy"
    assert "recent" in names
    for entry in ("verdict  ", "no_refits  ", "Propensities: estimated"):
        assert printed.count(f"\n{entry}") == 1, entry
    assert "effective" not in printed, "the direct estimator has no weights"
    assert (work / "forest.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(work.glob(".forest*"))


def test_notes_of_the_dataset_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n},{'ab'[n % 2]},0.5,{'view' if n % 3 else 'buy'}" for n in range(60)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["session,item,propensity,behaviour", *rows]))
    dataset = offrec.prepare(log, out=tmp_path / "data", drop=("buy",))
    (note,) = dataset.meta["decisions"]["notes"]
    for as_json in (False, True):
        options = {"json": as_json, **FAST}
        Estimate(dataset=tmp_path / "data", baselines="markov", **options).run()  # type: ignore[arg-type]
        printed = capsys.readouterr().out
        assert json.loads(printed)["notes"] == [note] if as_json else f"\n{note}\n" in printed


def test_json_of_every_estimator(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Estimate((work / "sl", work / "dqn"), estimator="all", gamma=0.9, json=True, **FAST).run()  # type: ignore[arg-type]
    result = json.loads(capsys.readouterr().out)
    assert result["propensities"] == "estimated"
    assert 0 <= result["propensity_calibration"]["calibration_error"] <= 1
    sl, dqn = result["policies"]
    assert {"importance", "capped", "self_normalised", "marginal", "direct", "doubly_robust"} <= set(sl["estimates"])
    assert (sl["play"], dqn["play"]) == ("sample", "topk")
    assert set(dqn["estimates"]) == {"direct"}  # its top item has no probability
    one = sl["estimates"]["self_normalised"]
    assert one["low"] <= one["estimate"] <= one["high"]
    difference = one["estimate"] - result["logging_policy"]["estimate"]
    assert one["difference_to_logging_policy"]["estimate"] == pytest.approx(difference)


def lists_of_one(path: Path, splits: tuple[int, int, int]) -> Any:
    """Six items, shown equally often; items 0 to 2 are bought. Each session has one decision."""
    sessions = [[n % 6] for n in range(sum(splits))]
    words = [["buy" if item < 3 else "view"] for (item,) in sessions]
    decisions = [[(0, session, 1 / 6, 0)] for session in sessions]
    return write_dataset(path, sessions, words, splits, items=6, decisions=decisions)


def test_the_suggested_order_prefers_items_that_were_bought(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = lists_of_one(tmp_path, (240, 0, 60))
    logits = {"buying": [2.0] * 3 + [0.0] * 3, "viewing": [0.0] * 3 + [2.0] * 3, "uniform": [0.0] * 6}
    policies = {name: Fixed(dataset, row) for name, row in logits.items()}
    values = replace(FEW, updates=300, learning_rate=0.01, batch_size=24)
    options = EstimateOptions(estimators=("direct",), refits=0, values=values)
    result = estimate(policies, dataset, options)
    assert not any(one.assessments["direct"].is_withheld for one in result.policies)
    rows = {one["name"]: one for one in result.as_json()["policies"]}
    assert rows["buying"]["value@5"] > rows["viewing"]["value@5"] + 0.1  # three or two of five are bought: 0.16
    assert {name: row["suggested_order"] for name, row in rows.items()} == {"buying": 1, "uniform": 2, "viewing": 3}
    print_result(result)
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("order ")] == ["order"]
    assert "Propensities: logged." in printed


def test_a_withheld_estimate_has_no_place_in_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = lists_of_one(tmp_path, (240, 0, 60))
    policies = {name: Fixed(dataset, [float(item == n) for item in range(6)]) for n, name in enumerate("abc")}
    values = replace(FEW, updates=300, learning_rate=0.01)
    options = EstimateOptions(estimators=("direct",), refits=0, values=values)
    result = estimate(policies, dataset, options)
    first, *others = result.policies
    withheld = replace(first, assessments={"direct": replace(first.assessments["direct"], is_withheld=True)})
    assert set(replace(result, policies=[withheld, *others]).suggested_order) == {"b", "c"}
    single = replace(result, policies=[withheld, others[0]])
    assert single.suggested_order == {}, "one policy is not an order"
    print_result(single)
    printed = capsys.readouterr().out
    assert "\norder " not in printed
    assert "\nvalue@5 " in printed


def test_value_at_5_depends_on_the_rewards_and_the_split(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, policy = open_dataset(work / "dqn"), load(work / "dqn", "cpu")
    options, values = ValueOptions(updates=10).with_history(policy.history), []
    for split, pay in (("test", 1.0), ("validation", 1.0), ("test", 3.0)):
        changes = {"split": split, "reward": (f"buy={pay}",), "json": True, **FAST}
        Estimate((work / "dqn",), **changes).run()  # type: ignore[arg-type]
        (one,) = json.loads(capsys.readouterr().out)["policies"]
        values.append(one["value@5"])
        assert one["suggested_order"] is None
        rewards = event_rewards(dataset, {"buy": pay})
        logged = value_at_5.load_or_fit(dataset, rewards, 0.9, options, policy.device, Console(quiet=True))
        events = ScoredEvents(dataset, split, policy.history, policy.device)  # type: ignore[arg-type]
        assert one["value@5"] == pytest.approx(value_at_5.scorer(logged, events)(policy))
    assert len(set(values)) == 3


def test_value_at_5_is_none_if_q_is_not_fitted_or_the_log_has_no_sessions_for_it(tmp_path: Path) -> None:
    dataset = lists_of_one(tmp_path, (60, 0, 60))
    policies = {name: Fixed(dataset, [0.0] * 6) for name in "ab"}
    rows = estimate(policies, dataset, EstimateOptions(estimators=("self_normalised",))).as_json()["policies"]
    assert [(one["value@5"], one["suggested_order"]) for one in rows] == [(None, None)] * 2
    assert not (dataset.path / "values").exists()
    (one,) = estimate(policies["a"], dataset, EstimateOptions(refits=0, values=FEW, value_at_5=False)).policies
    assert one.value_at_5 is None
    rewards = event_rewards(dataset, {})
    for splits in ((0, 0, 60), (60, 0, 0)):
        empty = lists_of_one(tmp_path, splits)
        assert value_at_5.scorer_for(empty, "test", rewards, FEW, policies["a"], Console(quiet=True)) is None


def test_the_logging_policy_earns_what_was_logged_and_better_policies_more(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    sessions = random.choice(4, size=(600, 2), p=[0.1, 0.2, 0.3, 0.4]).tolist()
    words = [["buy" if item == 3 else "view" for item in session] for session in sessions]
    probabilities = [0.1, 0.2, 0.3, 0.4]
    decisions = [[(t, [item], probabilities[item], t) for t, item in enumerate(session)] for session in sessions]
    dataset = write_dataset(tmp_path, sessions, words, (100, 0, 500), items=4, decisions=decisions)
    same = Fixed(dataset, np.log(probabilities).tolist())
    result = estimate({"same": same}, dataset, EstimateOptions(estimators=("importance", "self_normalised")))
    (one,) = result.policies
    for name, assessment in one.assessments.items():
        assert assessment.interval.estimate == pytest.approx(result.logged.estimate, rel=1e-5)
        assert assessment.verdict == "trust"
        assert one.differences[name].estimate == pytest.approx(0.0, abs=1e-5)
        assert one.differences[name].high - one.differences[name].low < 1e-4
    assert result.has_propensities
    far = Fixed(dataset, [0.0, 0.0, 0.0, 20.0])
    (alone,) = estimate(far, dataset, EstimateOptions(estimators=("self_normalised",))).policies
    assert alone.assessments["self_normalised"].verdict == "caution"
    (blended,) = estimate(far, dataset, EstimateOptions(estimators=("all",), blend=0.1)).policies
    assert list(blended.assessments) == [
        "importance",
        "capped",
        "self_normalised",
        "state_marginal",
    ]  # estimators with Q cannot evaluate a blend
    exact, interval = 2 * (0.46 + 0.54 * 0.2), blended.assessments["self_normalised"].interval
    assert blended.assessments["self_normalised"].verdict == "trust"
    assert interval.low < exact < interval.high
    better = Fixed(dataset, np.log([0.05, 0.1, 0.15, 0.7]).tolist())
    (one,) = estimate(better, dataset, EstimateOptions(estimators=("importance",))).policies
    exact = 2 * (0.7 + 0.3 * 0.2)
    interval = one.assessments["importance"].interval
    assert interval.low < exact < interval.high
    assert one.differences["importance"].low > 0


def test_estimates_with_little_support_are_withheld_unless_the_estimator_was_named(tmp_path: Path) -> None:
    sessions = [[0, 1, 0]] * 30
    dataset = write_dataset(tmp_path, sessions, splits=(10, 0, 20), items=3,
                            decisions=[[(t, [i], 0.5, t) for t, i in enumerate(s)] for s in sessions])  # fmt: skip
    far = Fixed(dataset, [0.0, 0.0, 12.0])
    result = estimate({"far": far}, dataset, EstimateOptions(estimators=("all",), refits=0, values=FEW)).as_json()
    one = result["policies"][0]["estimates"]["importance"]
    assert one["withheld"]
    assert one["estimate"] is one["difference_to_logging_policy"] is None
    named = estimate({"far": far}, dataset, EstimateOptions(estimators=("importance",))).as_json()
    assert named["policies"][0]["estimates"]["importance"]["estimate"] is not None


def test_refits_give_the_direct_method_an_interval(work: Path) -> None:
    dataset = open_dataset(work / "sl")
    result = offrec.estimate(Fixed(dataset, [0.0] * 10), dataset, EstimateOptions(refits=2, values=FEW))
    interval = result.policies[0].assessments["direct"].interval
    assert interval.low < interval.estimate < interval.high


def test_an_unavailable_estimator_is_refused_by_name_and_skipped_by_all(tmp_path: Path) -> None:
    sessions = [[0, 1]] * 30
    dataset = write_dataset(tmp_path, sessions, splits=(10, 0, 20), items=2,
                            decisions=[[(t, [i], 0.5, t) for t, i in enumerate(s)] for s in sessions])  # fmt: skip
    policy = Fixed(dataset, [0.0, 0.0])
    with pytest.raises(InputError, match=r"marginal needs probabilities of clusters, but .* add --served RUN"):
        estimate(policy, dataset, EstimateOptions(estimators=("marginal",)))
    lines: list[str] = []
    console = Console(quiet=True)
    console.line = lines.append  # type: ignore[method-assign]
    options = EstimateOptions(estimators=("all",), refits=0, values=FEW)
    (one,) = estimate({"fixed": policy}, dataset, options, console).policies
    assert "marginal" not in one.assessments
    (sentence,) = [line for line in lines if "left out" in line]
    assert sentence.startswith("fixed: estimators left out, because they need --served RUN: marginal, order_free, ")
    assert set(sentence.rstrip(".").rpartition("RUN: ")[2].split(", ")) == ESTIMATORS.keys() - one.assessments.keys()


@pytest.mark.parametrize("name", ["pick", "marginal", "cascade", "order_free_doubly_robust"])
def test_parts_of_lists_are_refused_for_a_policy_that_shows_its_best_items(work: Path, name: str) -> None:
    """The sentence names what works; it does not lead to --served, which cannot help."""
    message = f"--estimator {name} needs sampled lists, but .*dqn shows its top 1; use --estimator direct or, on a log "
    with pytest.raises(InputError, match=message + "that .*dqn served as a blend, --estimator self_normalised"):
        Estimate((work / "dqn",), estimator=name, **FAST).run()  # type: ignore[arg-type]


def test_a_policy_without_probabilities_did_not_serve_sampled_lists(work: Path, tmp_path: Path) -> None:
    lists = write_dataset(tmp_path, [[0, 1]] * 30, splits=(10, 0, 20), items=10,
                          decisions=[[(t, [i], 0.5, t) for t, i in enumerate([0, 1])]] * 30)  # fmt: skip
    policy = Fixed(lists, [0.0] * 10)
    with pytest.raises(InputError, match=r"--served dqn/gru has no probabilities, .*; omit it"):
        estimate(policy, lists, served=load(work / "dqn", "cpu"))


def test_the_error_of_a_difference_has_two_sources() -> None:
    """V is the same in every session, so the error comes from the refits and from the rewards."""
    reward = np.array([0.0, 2.0] * 50)
    steps = Trajectories(np.arange(101), reward, q=np.full(100, 1.5), v=np.full(100, 1.5))
    refits = np.array([1.4, 1.6])
    difference = difference_to_log("direct", steps, EstimateOptions(), refits)
    error = np.hypot(refits.std(ddof=1), reward.std(ddof=1) / 10)
    assert difference.estimate == pytest.approx(0.5)
    assert difference.high - difference.estimate == pytest.approx(12.7062 * error, rel=1e-4)
    paired = replace(steps, v=reward + 0.5, q=reward + 0.5)  # V predicts the reward of each session exactly
    assert difference_to_log("direct", paired, EstimateOptions(), refits).standard_error == pytest.approx(
        refits.std(ddof=1)
    )


def test_invalid_commands_are_refused(work: Path, tmp_path: Path) -> None:
    other: Any = write_dataset(tmp_path, [[0, 1], [1], [0, 0], [1, 1]])
    train(other.path, tmp_path / "run", settings=SMALL, console=Console(quiet=True))
    run = work / "sl"
    for command, message in (
        (Estimate((run, tmp_path / "run")), "trained on different datasets"),
        (Estimate(), "No policies were given"),
        (Estimate((run,), estimator="guess"), "Unknown estimator 'guess'"),
        (Estimate((run,), reward=("cart",)), "--reward must be BEHAVIOUR=NUMBER"),
        (Estimate((run,), gamma=1.5), "--gamma must be between 0 and 1; got 1.5"),
        (Estimate((run,), play="topk", estimator="capped", device="cpu"), "--estimator capped needs list probabil"),
        (Estimate((run,), blend=0.5, estimator="direct"), "--estimator direct cannot evaluate a blend"),
        (Estimate((run,), certify=True, estimator="direct"), "so it cannot certify a share: .* Omit --estimator, or"),
        (Estimate((run, work / "dqn"), blend=0.5, play="topk", k=2), "--blend needs lists of the logged length, 1"),
        (Estimate((run,), blend=1.5), "--blend must be above 0 and at most 1; got 1.5"),
        (Estimate((run, work / "dqn"), estimator="direct,importance"), "dqn shows its top 1"),
        (Estimate((run,), refits=1), "--refits must be 0 or at least 2; got 1"),
        (Estimate((run,), picture=Path("forest.xyz")), "--picture must end in .png"),
        (Estimate((run,), temperature=-1.0, device="cpu"), "--temperature must be positive; got -1.0"),
        (Estimate((run,), updates=0, device="cpu"), "updates must be at least 1; got 0"),
        (Estimate((run,), jobs=2, device="cpu"), "--jobs has no effect on policies that sample their lists; omit it"),
        (Estimate((run,), jobs=2, estimator="importance", device="cpu"), "--jobs has no effect, because this estimate"),
        (Estimate((tmp_path,)), "is not a run"),
    ):
        with pytest.raises(InputError, match=message):
            command.run()
