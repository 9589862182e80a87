"""What `offrec estimate` says beside its figures, and what it leaves unsaid."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_policies import Fixed

from made_datasets import write_dataset
from offrec.commands.estimate import Estimate, _print
from offrec.console import Console
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import EstimateOptions, EstimateResult, estimate
from offrec.estimation.forest_plot import draw_forest_plot
from offrec.models.network import NetworkOptions
from offrec.runs.train import train

FEW = ValueOptions(network=NetworkOptions(width=8), updates=10)
SMALL = {"network.width": 8, "training.epochs": 1, "device": "cpu"}
DRAWN = "It was found on policies that all play their best k (--play topk); here some are drawn from."


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of picks."""
    random = np.random.default_rng(0)
    sessions = [random.integers(6, size=random.integers(1, 4)).tolist() for _ in range(200)]
    words = [["buy" if item < 3 else "view" for item in session] for session in sessions]
    return write_dataset(tmp_path_factory.mktemp("said"), sessions, words, (100, 10, 90), items=6)


@pytest.fixture(scope="module")
def compared(dataset: Any) -> EstimateResult:
    """Without refits, by their best item."""
    policies = {name: Fixed(dataset, [float(item == n) for item in range(6)]) for n, name in enumerate("ab")}
    network = NetworkOptions(width=8)
    return estimate(
        policies, dataset, EstimateOptions(estimators=("direct",), play="topk", refits=0, values=FEW, network=network)
    )


def test_an_order_of_policies_that_are_drawn_from_was_not_tried(
    compared: EstimateResult, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [
        replace(one, assessed={"direct": replace(one.assessed["direct"], withheld=False)}) for one in compared.policies
    ]
    first, second = plain
    for policies, said in ((plain, False), ([first, replace(second, play="sample")], True)):
        _print(replace(compared, policies=policies))
        printed = capsys.readouterr().out
        assert "order: which to try first" in printed
        assert (DRAWN in printed) is said
    hidden = replace(second, name="c", play="sample", value=None)
    _print(replace(compared, policies=[*plain, hidden]))
    assert DRAWN not in capsys.readouterr().out, "it has no place in the order"


def test_without_refits_there_is_no_interval(
    compared: EstimateResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from matplotlib.axes import Axes

    _print(compared)
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("│ a "))
    assert row.split("│")[3].strip() == "–"
    assert printed.count("no refits, so no interval") == 1
    assert "over logging" not in printed
    found = json.loads(json.dumps(compared.as_json()))["policies"][0]["estimates"]["direct"]
    for part in (found, found["over_logging"]):
        assert part["estimate"] is not None
        assert [part[name] for name in ("low", "high", "error")] == [None] * 3
    drawn: list[int] = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, *rest, **how: drawn.append(len(x)))
    draw_forest_plot(compared, tmp_path / "forest.svg")
    assert drawn == [1, 1], "points without bars"
    _print(replace(compared, asked=replace(compared.asked, refits=2)))
    assert "no interval" not in capsys.readouterr().out
    draw_forest_plot(replace(compared, asked=replace(compared.asked, refits=2)), tmp_path / "forest.svg")
    assert drawn[2:] == [2, 1, 2, 1]


def test_baselines_see_as_much_as_the_runs(dataset: Any, tmp_path: Path) -> None:
    for history in (3, 5):
        settings = {**SMALL, "network.history": history}
        train(dataset, tmp_path / str(history), settings=settings, console=Console(quiet=True))
    three, five = tmp_path / "3", tmp_path / "5"
    for runs, history in (((three,), 3), ((five,), 5), ((three, five), 50), ((), 50)):
        asked = Estimate(runs, baselines="recent,markov", dataset=dataset.path, device="cpu")
        policies = asked._policies(dataset)
        assert {policies[name].history for name in ("recent", "markov")} == {history}
