"""The structure of a result: its JSON, its table and its forest plot."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_policies import Fixed

from offrec.commands.estimate import Estimate
from offrec.commands.estimate_output import LEGEND, print_result
from offrec.console import Console
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.forest_plot import draw_forest_plot
from offrec.estimation.options import EstimateOptions
from offrec.estimation.result import EstimateResult
from offrec.estimation.sensitivity import Sensitivity
from offrec.models.network import NetworkOptions
from offrec.runs.train import train
from small_datasets import write_dataset

SMALL = {"network.width": 8, "training.epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A log of picks."""
    random = np.random.default_rng(0)
    sessions = [random.integers(6, size=random.integers(1, 4)).tolist() for _ in range(200)]
    words = [["buy" if item < 3 else "view" for item in session] for session in sessions]
    return write_dataset(tmp_path_factory.mktemp("result"), sessions, words, (100, 10, 90), items=6)


@pytest.fixture(scope="module")
def result(dataset: Any) -> EstimateResult:
    """Two policies that show their top item, without refits."""
    policies = {name: Fixed(dataset, [float(item == n) for item in range(6)]) for n, name in enumerate("ab")}
    network = NetworkOptions(width=8)
    values = ValueOptions(network=network, updates=10)
    options = EstimateOptions(estimators=("direct",), play="topk", refits=0, values=values, network=network)
    return estimate(policies, dataset, options)


def cells(printed: str) -> list[list[str]]:
    """The header and the rows of a printed table."""
    lines = [line for line in printed.splitlines() if line.startswith(("│", "┃"))]
    return [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines]


def test_the_direct_estimator_has_no_interval_without_refits(
    result: EstimateResult, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(result)
    header, _, row, *_ = cells(capsys.readouterr().out)
    assert row[header.index("95 % interval")] == "–"
    assert "difference" not in header, "no policy has one"
    one = json.loads(json.dumps(result.as_json()))["policies"][0]["estimates"]["direct"]
    for numbers in (one, one["difference_to_logging_policy"]):
        assert numbers["estimate"] is not None
        assert [numbers[name] for name in ("low", "high", "standard_error")] == [None] * 3
    print_result(replace(result, options=replace(result.options, refits=2)))
    header, _, row, *_ = cells(capsys.readouterr().out)
    assert "…" in row[header.index("95 % interval")]


def test_the_forest_plot_draws_intervals_only_with_refits(
    result: EstimateResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from matplotlib.axes import Axes

    points: list[int] = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, *rest, **style: points.append(len(x)))
    draw_forest_plot(result, tmp_path / "forest.svg")
    assert points == [1, 1], "markers without intervals"
    draw_forest_plot(replace(result, options=replace(result.options, refits=2)), tmp_path / "forest.svg")
    assert points[2:] == [2, 1, 2, 1]


def test_the_legend_explains_every_column_and_every_reason(
    result: EstimateResult, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(result)
    printed = capsys.readouterr().out
    header = cells(printed)[0]
    codes = {reason.code for one in result.policies for reason in one.assessments["direct"].reasons}
    assert "no_refits" in codes
    for entry in (*(column for column in header if column in LEGEND), *codes):
        assert sum(line.startswith(f"{entry} ") for line in printed.splitlines()) == 1, entry


def test_small_rewards_are_printed_with_significant_digits(
    result: EstimateResult, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(result.logged, estimate=0.000123, low=0.000101, high=0.000145)
    print_result(replace(result, logged=small))
    header, row, *_ = cells(capsys.readouterr().out)
    assert row[header.index("estimate")] == "0.000123"
    assert row[header.index("95 % interval")] == "0.000101 … 0.000145"


def test_baselines_use_the_history_length_of_the_runs(dataset: Any, tmp_path: Path) -> None:
    for history in (3, 5):
        settings = {**SMALL, "network.history": history}
        train(dataset, tmp_path / str(history), settings=settings, console=Console(quiet=True))
    three, five = tmp_path / "3", tmp_path / "5"
    for runs, history in (((three,), 3), ((five,), 5), ((three, five), 50), ((), 50)):
        command = Estimate(runs, baselines="recent,markov", dataset=dataset.path, device="cpu")
        policies = command._load_policies(dataset)
        assert {policies[name].history for name in ("recent", "markov")} == {history}


def test_the_strength_of_hidden_knowledge_is_printed(
    result: EstimateResult, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = [
        replace(one, assessments={name: replace(each, sensitivity=Sensitivity(1.25, 2.0), is_withheld=False)})
        for one in result.policies
        for name, each in one.assessments.items()
    ]
    print_result(replace(result, policies=policies))
    lines = [line for line in capsys.readouterr().out.splitlines() if "hidden knowledge" in line]
    assert [line.split(":")[0] for line in lines] == ["a, direct", "b, direct"]
    assert lines[0].startswith("a, direct: hidden knowledge that changes the odds of a list by 25% per decision could")
