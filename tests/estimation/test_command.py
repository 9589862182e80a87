"""`offrec estimate` as a person uses it: the table, JSON, the picture, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_policies import Fixed

import offrec
from made_datasets import write_dataset
from offrec.commands.estimate import Estimate, _print
from offrec.console import Console
from offrec.data.transitions import reward_vector
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions, with_history
from offrec.estimation.estimate import EstimateOptions, difference, estimate
from offrec.estimation.trajectories import Trajectories
from offrec.evaluation import ScoredEvents
from offrec.models.network import NetworkOptions
from offrec.runs.loading import load, open_dataset
from offrec.runs.train import train

SMALL = {"network.width": 8, "network.history": 5, "training.epochs": 2, "device": "cpu"}
FEW = ValueOptions(network=NetworkOptions(width=8), updates=10)
FAST = {"updates": 10, "refits": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, a run that imitates it and a run that is no distribution."""
    folder, random = tmp_path_factory.mktemp("estimates"), np.random.default_rng(0)
    sessions = [random.integers(10, size=random.integers(1, 4)).tolist() for _ in range(400)]
    words = [["buy" if item < 3 else "view" for item in session] for session in sessions]
    dataset = write_dataset(folder, sessions, words, (200, 20, 180), items=10)
    for name in ("sl", "dqn"):
        train(dataset, folder / name, algorithm=name, settings=SMALL, console=Console(quiet=True))
    return folder


def test_the_table_and_the_picture(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Estimate((work / "sl", work / "dqn"), baselines="recent", picture=work / "forest.png", **FAST).run()  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    for words in (
        "│ logging ",
        "one draw",
        "top 1",
        "Propensities: estimated from picks",
        "knows nothing of how far Q",
    ):
        assert words in " ".join(printed.split())
    assert printed.count("direct:") == 3  # a reason for each
    assert (work / "forest.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(work.glob(".forest*"))


def test_what_was_left_out_of_the_log_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n},{'ab'[n % 2]},0.5,{'view' if n % 3 else 'buy'}" for n in range(60)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["session,item,propensity,behaviour", *rows]))
    offrec.prepare(log, out=tmp_path / "data", drop=("buy",))
    note = "drop buy left 40 of 60 sessions and 40 of 60 events: estimates speak of what is left."
    for as_json in (False, True):
        asked = {"json": as_json, **FAST}
        Estimate(dataset=tmp_path / "data", baselines="markov", **asked).run()  # type: ignore[arg-type]
        printed = capsys.readouterr().out
        assert json.loads(printed)["notes"] == [note] if as_json else f"\n{note}\n" in printed


def test_json_of_every_estimator(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Estimate((work / "sl", work / "dqn"), estimator="all", gamma=0.9, json=True, **FAST).run()  # type: ignore[arg-type]
    found = json.loads(capsys.readouterr().out)
    assert found["propensities"] == "estimated"
    assert 0 <= found["calibration"]["calibration_error"] <= 1
    sl, dqn = found["policies"]
    assert {"importance", "capped", "self_normalised", "marginal", "direct", "doubly_robust"} <= set(sl["estimates"])
    assert (sl["play"], dqn["play"]) == ("sample", "topk")
    assert set(dqn["estimates"]) == {"direct"}  # its best item has no weights
    one = sl["estimates"]["self_normalised"]
    assert one["low"] <= one["estimate"] <= one["high"]
    gap = one["estimate"] - found["logging"]["estimate"]
    assert one["over_logging"]["estimate"] == pytest.approx(gap)


def lists_of_one(path: Path, splits: tuple[int, int, int]) -> Any:
    """Six items, shown alike often: half of them are bought. Each session is one decision."""
    sessions = [[n % 6] for n in range(sum(splits))]
    words = [["buy" if item < 3 else "view"] for (item,) in sessions]
    decisions = [[(0, session, 1 / 6, 0)] for session in sessions]
    return write_dataset(path, sessions, words, splits, items=6, decisions=decisions)


def test_which_to_try_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of policies that keep to what was bought, to what was seen, and to neither; of lists, with propensities."""
    dataset = lists_of_one(tmp_path, (240, 0, 60))
    likes = {"bought": [2.0] * 3 + [0.0] * 3, "seen": [0.0] * 3 + [2.0] * 3, "neither": [0.0] * 6}
    policies = {name: Fixed(dataset, logits) for name, logits in likes.items()}
    values = replace(FEW, updates=300, learning_rate=0.01, batch_size=24)
    found = estimate(policies, dataset, EstimateOptions(refits=0, values=values))
    assert not any(one.assessed["direct"].withheld for one in found.policies)
    rows = {one["name"]: one for one in found.as_json()["policies"]}
    assert rows["bought"]["value@5"] > rows["seen"]["value@5"] + 0.1  # three of five bought, or two: 0.16
    assert {name: row["order"] for name, row in rows.items()} == {"bought": 1, "neither": 2, "seen": 3}
    _print(found)
    printed = capsys.readouterr().out
    assert "order: which to try first" in printed
    assert "It was found on logs of picks, not of lists." in printed
    assert "effective" not in printed  # the direct method has no weights to tell of
    assert "Reward a session (direct, one draw), not discounted" in printed


def test_a_withheld_estimate_has_no_place_and_one_alone_is_no_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = lists_of_one(tmp_path, (240, 0, 60))
    policies = {name: Fixed(dataset, [float(item == n) for item in range(6)]) for n, name in enumerate("abc")}
    found = estimate(policies, dataset, EstimateOptions(refits=0, values=replace(FEW, updates=300, learning_rate=0.01)))
    first, *others = found.policies
    hidden = replace(first, assessed={"direct": replace(first.assessed["direct"], withheld=True)})
    some = replace(found, policies=[hidden, *others])
    assert set(some.order) == {"b", "c"}
    _print(some)
    assert "by direct, of those whose direct estimate is not withheld; it" in capsys.readouterr().out
    alone = replace(found, policies=[hidden, others[0]])
    assert alone.order == {}
    _print(alone)
    printed = capsys.readouterr().out
    assert "order" not in printed
    assert "value@5: what" in printed


def test_value_at_5_is_of_the_asked_rewards_and_the_judged_split(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, policy = open_dataset(work / "dqn"), load(work / "dqn", "cpu")
    options, found = with_history(ValueOptions(updates=10), policy.history), []
    for split, pay in (("test", 1.0), ("validation", 1.0), ("test", 3.0)):
        asked = {"split": split, "reward": (f"buy={pay}",), "json": True, **FAST}
        Estimate((work / "dqn",), **asked).run()  # type: ignore[arg-type]
        (one,) = json.loads(capsys.readouterr().out)["policies"]
        found.append(one["value@5"])
        assert one["order"] is None
        rewards = reward_vector(dataset.behaviours, {"buy": pay})
        logged = value_at_5.load_or_fit(dataset, rewards, 0.9, options, policy.device, Console(quiet=True))
        events = ScoredEvents(dataset, split, policy.history, policy.device)  # type: ignore[arg-type]
        assert one["value@5"] == pytest.approx(value_at_5.scorer(logged, events)(policy))
    assert len(set(found)) == 3


def test_value_at_5_where_there_is_none(tmp_path: Path) -> None:
    """Weights need no Q, so none is fitted for its sake; a log without training sessions has none to be fitted to."""
    dataset = lists_of_one(tmp_path, (60, 0, 60))
    policies = {name: Fixed(dataset, [0.0] * 6) for name in "ab"}
    found = estimate(policies, dataset, EstimateOptions(estimators=("self_normalised",))).as_json()["policies"]
    assert [(one["value@5"], one["order"]) for one in found] == [(None, None)] * 2
    assert not (dataset.path / "values").exists()
    (one,) = estimate(policies["a"], dataset, EstimateOptions(refits=0, values=FEW, value_at_5=False)).policies
    assert one.value is None
    rewards = reward_vector(dataset.behaviours, {})
    for splits in ((0, 0, 60), (60, 0, 0)):
        lacking = lists_of_one(tmp_path, splits)
        assert value_at_5.scorer_for(lacking, "test", rewards, FEW, policies["a"], Console(quiet=True)) is None


def test_the_log_judged_by_itself(tmp_path: Path) -> None:
    """A policy that is the one that logged earns what the log earned, and a paired difference knows it."""
    random = np.random.default_rng(1)
    sessions = random.choice(4, size=(600, 2), p=[0.1, 0.2, 0.3, 0.4]).tolist()
    words = [["buy" if item == 3 else "view" for item in session] for session in sessions]
    chances = [0.1, 0.2, 0.3, 0.4]
    decisions = [[(t, [item], chances[item], t) for t, item in enumerate(session)] for session in sessions]
    dataset = write_dataset(tmp_path, sessions, words, (100, 0, 500), items=4, decisions=decisions)
    same = Fixed(dataset, np.log(chances).tolist())
    found = estimate({"same": same}, dataset, EstimateOptions(estimators=("importance", "self_normalised")))
    (one,) = found.policies
    for name, assessed in one.assessed.items():
        assert assessed.interval.estimate == pytest.approx(found.logged.estimate, rel=1e-5)
        assert assessed.verdict == "trust"
        assert one.differences[name].estimate == pytest.approx(0.0, abs=1e-5)
        assert one.differences[name].high - one.differences[name].low < 1e-4
    assert found.has_lists
    far = Fixed(dataset, [0.0, 0.0, 0.0, 20.0])
    (alone,) = estimate(far, dataset, EstimateOptions(estimators=("self_normalised",))).policies
    assert alone.assessed["self_normalised"].verdict == "caution"
    (blended,) = estimate(far, dataset, EstimateOptions(estimators=("all",), blend=0.1)).policies
    assert list(blended.assessed) == ["importance", "capped", "self_normalised"]  # no Q, for it has no E_b
    truth, around = 2 * (0.46 + 0.54 * 0.2), blended.assessed["self_normalised"].interval
    assert blended.assessed["self_normalised"].verdict == "trust"
    assert around.low < truth < around.high
    better = Fixed(dataset, np.log([0.05, 0.1, 0.15, 0.7]).tolist())
    (one,) = estimate(better, dataset, EstimateOptions(estimators=("importance",))).policies
    truth = 2 * (0.7 + 0.3 * 0.2)
    around = one.assessed["importance"].interval
    assert around.low < truth < around.high
    assert one.differences["importance"].low > 0


def test_thin_support_is_withheld_unless_asked_for_by_name(tmp_path: Path) -> None:
    sessions = [[0, 1, 0]] * 30
    dataset = write_dataset(tmp_path, sessions, splits=(10, 0, 20), items=3,
                            decisions=[[(t, [i], 0.5, t) for t, i in enumerate(s)] for s in sessions])  # fmt: skip
    far = Fixed(dataset, [0.0, 0.0, 12.0])
    found = estimate({"far": far}, dataset, EstimateOptions(estimators=("all",), refits=0, values=FEW)).as_json()
    assert found["policies"][0]["estimates"]["importance"]["withheld"]
    assert found["policies"][0]["estimates"]["importance"]["estimate"] is None
    assert found["policies"][0]["estimates"]["importance"]["over_logging"] is None
    named = estimate({"far": far}, dataset, EstimateOptions(estimators=("importance",))).as_json()
    assert named["policies"][0]["estimates"]["importance"]["estimate"] is not None


def test_refits_give_the_direct_method_an_interval(work: Path) -> None:
    dataset = open_dataset(work / "sl")
    found = offrec.estimate(Fixed(dataset, [0.0] * 10), dataset, EstimateOptions(refits=2, values=FEW))
    around = found.policies[0].assessed["direct"].interval
    assert around.low < around.estimate < around.high


def test_an_estimator_that_the_log_cannot_have_is_refused_by_name_and_left_out_of_all(tmp_path: Path) -> None:
    sessions = [[0, 1]] * 30
    dataset = write_dataset(tmp_path, sessions, splits=(10, 0, 20), items=2,
                            decisions=[[(t, [i], 0.5, t) for t, i in enumerate(s)] for s in sessions])  # fmt: skip
    policy = Fixed(dataset, [0.0, 0.0])
    with pytest.raises(InputError, match="so marginal cannot judge by it"):
        estimate(policy, dataset, EstimateOptions(estimators=("marginal",)))
    (one,) = estimate(policy, dataset, EstimateOptions(estimators=("all",), refits=0, values=FEW)).policies
    assert "marginal" not in one.assessed


def test_a_difference_counts_each_error_once() -> None:
    """V is the same in every session, so all that is uncertain are refits and what sessions earned."""
    reward = np.array([0.0, 2.0] * 50)
    steps = Trajectories(np.arange(101), reward, q=np.full(100, 1.5), v=np.full(100, 1.5))
    refits = np.array([1.4, 1.6])
    found = difference("direct", steps, EstimateOptions(), refits)
    error = np.hypot(refits.std(ddof=1), reward.std(ddof=1) / 10)
    assert found.estimate == pytest.approx(0.5)
    assert found.high - found.estimate == pytest.approx(12.7062 * error, rel=1e-4)
    alike = replace(steps, v=reward + 0.5, q=reward + 0.5)  # V knows what each session earns: of that nothing is left
    assert difference("direct", alike, EstimateOptions(), refits).error == pytest.approx(refits.std(ddof=1))


def test_refused(work: Path, tmp_path: Path) -> None:
    other: Any = write_dataset(tmp_path, [[0, 1], [1], [0, 0], [1, 1]])
    (other.path / "dataset.json").write_text(
        (other.path / "dataset.json").read_text().replace("made-for-a-test", "another")
    )
    train(other.path, tmp_path / "run", settings=SMALL, console=Console(quiet=True))
    run = work / "sl"
    for asked, words in (
        (Estimate((run, tmp_path / "run")), "trained on different datasets"),
        (Estimate(), "Give the folders of runs, or --baselines"),
        (Estimate((run,), estimator="guess"), "There is no estimator 'guess'"),
        (Estimate((run,), reward=("cart",)), "--reward cart is not of the form"),
        (Estimate((run,), gamma=1.5), "gamma is 1.5"),
        (Estimate((run,), play="topk", estimator="capped"), "has no weights, so capped cannot judge it"),
        (Estimate((run,), blend=0.5, estimator="direct"), "direct cannot judge a blend"),
        (Estimate((run, work / "dqn"), blend=0.5), "played by its best k and has no weights, so no blend"),
        (Estimate((run,), blend=1.5), "The blend is 1.5"),
        (Estimate((run, work / "dqn"), estimator="direct,importance"), "dqn gives scores, not chances, so it has no"),
        (Estimate((run,), refits=1), "An interval from 1 refits"),
        (Estimate((run,), picture=Path("forest.xyz")), "must end in .png"),
        (Estimate((run,), temperature=-1.0, device="cpu"), "The temperature is -1.0"),
        (Estimate((run,), updates=0, device="cpu"), "There are 0 updates"),
        (Estimate((tmp_path,)), "is not a run"),
    ):
        with pytest.raises(InputError, match=words):
            asked.run()
