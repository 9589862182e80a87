"""Estimates on splits with hardly any data: no picks, no lists, no sessions, or a single list."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixed_policies import Fixed

from offrec.cli import main
from offrec.commands.estimate_output import print_result
from offrec.errors import InputError
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.fitted_q import collect_top_lists
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.result import EstimateResult
from offrec.estimation.session_lists import best_lists
from offrec.estimation.value_at_5 import can_score
from offrec.models.network import NetworkOptions
from small_datasets import write_dataset

FEW = ValueOptions(network=NetworkOptions(width=8), updates=5)
Reactions = Sequence[bool] | None  # whether each list of a session was picked from; None: one event and no list
PICKED, IGNORED = (True, False), (False, False)


def log_of(path: Path, train: Reactions, test: Sequence[Reactions]) -> Any:
    """Write a log of lists of one item, one of three with equal probability, and 20 equal training sessions."""
    sessions, decisions = [], []
    for number, reactions in enumerate([train] * 20 + list(test)):
        events: list[int] = []
        lists = []
        for is_picked in reactions or ():
            lists.append((len(events), [number % 3], 1 / 3, len(events) if is_picked else None))
            events += [number % 3] * is_picked
        sessions.append([number % 3] if reactions is None else events)
        decisions.append(lists)
    return write_dataset(path, sessions, None, (20, 0, len(test)), items=3, decisions=decisions)


def run(dataset: Any, *estimators: str, **options: Any) -> EstimateResult:
    """Estimate a policy that was trained on another log, and print the result."""
    policy = Fixed(dataset, [0.5, 0.0, 0.0])
    policy.data_hash = "another"
    given = EstimateOptions(estimators=estimators, refits=2, values=FEW, split="test", jobs=1, **options)
    result = estimate(policy, dataset, given)
    print_result(result)
    return result


@pytest.mark.parametrize("test", [[IGNORED] * 30, [(False,)]])
def test_a_split_without_picks_earns_nothing(tmp_path: Path, test: list[Reactions]) -> None:
    dataset = log_of(tmp_path, PICKED, test)
    result = run(dataset, "all")
    assert result.logged.estimate == 0
    assert {"direct", "state_marginal_doubly_robust"} <= set(result.policies[0].assessments)
    for name in ("importance", "self_normalised", "state_marginal"):
        assert result.policies[0].assessments[name].interval.estimate == 0
    run(dataset, certify=True, shares=(0.1, 1.0))


def test_the_command_estimates_from_ignored_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"session": f"{n:02}", "time": n, "offered": [n % 3], "propensity": 1 / 3, "item": n % 3 if n < 32 else None}
        for n in range(40)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log, data = str(tmp_path / "log.jsonl"), str(tmp_path / "data")
    options = ["--device", "cpu", "--refits", "0", "--updates", "5", "--estimator", "importance,direct,state_marginal"]
    for words in (
        ["prepare", log, "--format", "decisions", "--split", "time", "--out", data],
        ["estimate", "--baselines", "popular", "--dataset", data, "--json", *options],
    ):
        monkeypatch.setattr(sys, "argv", ["offrec", *words])
        main()
        printed = capsys.readouterr().out
    result = json.loads(printed)
    assert result["logging_policy"]["estimate"] == 0
    assert result["policies"][0]["estimates"]["state_marginal"]["estimate"] == 0


@pytest.mark.parametrize("test", [[(True,)], [(True,), (False,)] * 10])
def test_sessions_of_one_list(tmp_path: Path, test: list[Reactions]) -> None:
    """The state-marginal weight of a first list is its ratio."""
    found = run(log_of(tmp_path, PICKED, test), "self_normalised", "state_marginal").policies[0].assessments
    one, other = (found[name].interval for name in ("self_normalised", "state_marginal"))
    assert one.estimate == pytest.approx(other.estimate)


def test_a_log_without_any_pick(tmp_path: Path) -> None:
    dataset = log_of(tmp_path, IGNORED, [IGNORED] * 20)
    assert run(dataset, "all").logged.estimate == 0
    decisions, policy = LoggedDecisions.load(dataset, "test"), Fixed(dataset, [0.5, 0.0, 0.0])
    assert decisions.behaviour().tolist() == [len(dataset.behaviours)] * 40
    lists = collect_top_lists(ListPolicy(policy, "topk", 2), decisions)
    assert best_lists(policy, decisions, 2).equal(lists)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ([], "has no sessions; choose another --split"),
        ([()] * 3, "has sessions but no decisions; choose another --split"),
        ([None] * 3, "has sessions but no decisions; choose another --split"),  # events alone are no decisions
    ],
)
def test_splits_without_decisions_are_refused(tmp_path: Path, test: list[Reactions], message: str) -> None:
    with pytest.raises(InputError, match=f"^The test split of .* {message}"):
        run(log_of(tmp_path, PICKED, test))


def test_training_sessions_without_decisions(tmp_path: Path) -> None:
    dataset = log_of(tmp_path, None, [PICKED] * 20)
    result = run(dataset, "self_normalised")  # each session has one pick, which pays the same
    interval = result.policies[0].assessments["self_normalised"].interval
    assert interval.estimate == pytest.approx(result.logged.estimate)
    assert result.logged.estimate > 0
    assert not can_score(dataset, "test")
    with pytest.raises(InputError, match="has no training decisions; Q needs at least one"):
        run(dataset, "direct")


@pytest.mark.parametrize(("splits", "name"), [((0, 2, 2), "train"), ((2, 0, 2), "validation")])
def test_propensities_need_training_and_validation_events(
    tmp_path: Path, splits: tuple[int, int, int], name: str
) -> None:
    picks = write_dataset(tmp_path, [[0, 1], [1, 0]] * 2, splits=splits, items=2)
    with pytest.raises(InputError, match=f"The {name} split of .* has no events, so its propensities cannot be fitted"):
        estimate(Fixed(picks, [0.0, 0.0]), picks, EstimateOptions(values=FEW))
