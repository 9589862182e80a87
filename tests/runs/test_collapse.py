"""Warnings about collapsed policies: the figures, the conditions, and where they are printed and stored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.catalogue import top_k
from offrec.commands.evaluate import Evaluate
from offrec.console import Console
from offrec.evaluation import ScoredEvents
from offrec.evaluation.exposure import LIST_LENGTH, Exposure, ExposureCounter, effective_number, rare_threshold
from offrec.policy import Policy
from offrec.runs import train as train_module
from offrec.runs.collapse import find_collapse, remedy
from offrec.runs.loading import load
from offrec.runs.options import resolve_options
from offrec.runs.train import train

HEALTHY = Exposure(2048, 400, 120.0, 0.03, 300.0, 0.05, 4)
SMALL = {"network.width": 8, "network.history": 4, "training.batch_size": 64, "diagnostics": "some"}


class Stochastic(Policy):
    stochastic, n_items = True, 1000

    def __init__(self) -> None:
        pass


def log() -> list[list[int]]:
    random = np.random.default_rng(0)
    starts = random.integers(0, 60, 150)
    return [[(int(start) + 3 * step) % 60 for step in range(random.integers(2, 9))] for start in starts]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, log(), splits=(110, 20, 20))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the lines that consoles print."""
    printed: list[str] = []
    monkeypatch.setattr(Console, "line", lambda self, text: printed.append(text))
    return printed


def findings(exposure: Exposure = HEALTHY, entropy: float = 2.0, **settings: Any) -> dict[str, str]:
    options = resolve_options({"algorithm.name": "sdac", **settings}, "events")
    return find_collapse(options, exposure, {"entropy": entropy}, Stochastic())


def test_effective_number_by_hand() -> None:
    assert effective_number(torch.tensor([5, 5, 0, 5])) == pytest.approx(3.0)
    assert effective_number(torch.tensor([8, 4, 4])) == pytest.approx(2**1.5)
    assert effective_number(torch.tensor([0, 0])) == 0.0


def test_rare_items_share_at_most_five_percent_of_the_events() -> None:
    assert rare_threshold(np.array([0, 1, 2, 2, 95])) == 95  # 0 + 1 + 2 + 2 = 5 of 100
    assert rare_threshold(np.array([0, 1, 2, 3, 94])) == 3
    assert rare_threshold(np.array([10, 10, 10])) == 10  # no item has fewer
    assert rare_threshold(np.array([0, 0])) == 0


def test_exposure_of_two_lists_by_hand() -> None:
    counter = ExposureCounter(np.array([1, 2, 97, 0]), torch.device("cpu"))
    counter.add(torch.tensor([[3.0, 1.0], [2.0, float("nan")]]), torch.tensor([[2, 0], [3, 1]]))
    figures = counter.figures()
    assert (figures.lists, figures.items, figures.rare_below) == (2, 3, 97)
    assert figures.rare_share == pytest.approx(2 / 3)
    assert figures.log_rare_share == pytest.approx(0.03)
    assert figures.effective_items == pytest.approx(3.0)


def test_exposure_comes_with_the_same_ranks(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = train(
        dataset, dataset.path.parent / "run", settings={**SMALL, "training.epochs": 1}, console=Console(True)
    )
    events = ScoredEvents(dataset, "validation", policy.history, policy.device, batch_size=16)
    ranks, exposure = events.ranks_and_exposure(policy)
    assert np.array_equal(ranks.rank, events.ranks(policy).rank)
    assert exposure.lists == len(ranks.rank)
    lists = torch.cat([top_k(policy.head(batch), LIST_LENGTH)[1] for batch in events.batches()])
    assert exposure.items == len(lists.unique())
    assert exposure.effective_items == pytest.approx(effective_number(lists.flatten().bincount()))
    monkeypatch.setattr("offrec.evaluation.scored_events.LIST_ROWS", len(ranks.rank) // 3)
    sampled_ranks, sampled = events.ranks_and_exposure(policy)
    assert np.array_equal(ranks.rank, sampled_ranks.rank)
    assert len(ranks.rank) // 3 <= sampled.lists <= len(ranks.rank) // 3 + 32


def test_a_healthy_policy_has_no_warning() -> None:
    assert findings() == {}


@pytest.mark.parametrize(
    ("condition", "exposure", "entropy"),
    [
        ("entropy", HEALTHY, 0.001),
        ("rare", Exposure(2048, 400, 120.0, 0.8, 300.0, 0.05, 4), 2.0),
        ("same", Exposure(2048, 30, 10.5, 0.03, 300.0, 0.05, 4), 2.0),
    ],
)
def test_each_condition_is_found_alone_with_its_page(condition: str, exposure: Exposure, entropy: float) -> None:
    found = findings(exposure, entropy)
    assert list(found) == [condition]
    assert found[condition].endswith("(docs/explanation/collapse.md).")


def test_equal_lists_are_no_collapse_if_the_log_has_few_items() -> None:
    assert findings(Exposure(2048, 12, 10.5, 0.03, 30.0, 0.05, 4)) == {}


@pytest.mark.parametrize(
    ("settings", "condition", "expected"),
    [
        ({"algorithm.name": "sdac", "critic.ground": 0}, "entropy", "set critic.ground=8"),
        ({"algorithm.name": "dc", "algorithm.alpha": 0.001}, "entropy", "raise algorithm.alpha (it is 0.001)"),
        ({"algorithm.name": "dqn"}, "rare", "set algorithm.delta=0.001"),
        ({"algorithm.name": "pg"}, "same", "set algorithm.start=supervised"),
        ({"algorithm.name": "sl"}, "same", "train for more epochs"),
    ],
)
def test_the_remedy_depends_on_the_learner(settings: dict[str, Any], condition: str, expected: str) -> None:
    assert remedy(resolve_options(settings, "events"), condition).startswith(expected)


def test_a_condition_is_printed_once_when_it_lasts_two_epochs(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    epochs = iter([{"same": "early."}, {}, {"rare": "x."}, {"rare": "x."}, {"rare": "x."}, {"entropy": "last."}])
    monkeypatch.setattr(train_module, "find_collapse", lambda *arguments: next(epochs))
    out = dataset.path.parent / "run"
    settings = {**SMALL, "training.epochs": 6, "training.patience": 9, "training.warmup": 0, "select": "last"}
    policy = train(dataset, out, settings=settings)
    printed = [line for line in lines if line.startswith("Warning")]
    # x once, when it has lasted two epochs; the condition of the last epoch at once, and again in the last words
    assert printed == ["Warning: x.", "Warning: last.", "Warning: last."]
    assert "Trained" in lines[lines.index("Warning: last.") + 1]
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [one.get("warnings") for one in records] == [
        {"same": "early."}, None, {"rare": "x."}, {"rare": "x."}, {"rare": "x."}, {"entropy": "last."},
    ]  # fmt: skip
    assert all(set(one["lists"]) == {"items", "effective_items", "rare_share"} for one in records)
    assert policy.warnings == load(out, "cpu").warnings == ("last.",)


def test_a_phase_of_the_warm_up_is_not_printed(dataset: Any, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    epochs = iter([{"same": "x."}, {"same": "x."}, {}])
    monkeypatch.setattr(train_module, "find_collapse", lambda *arguments: next(epochs))
    out = dataset.path.parent / "run"
    train(dataset, out, settings={**SMALL, "training.epochs": 3, "select": "last"})
    assert not [line for line in lines if line.startswith("Warning")]
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [one.get("warnings") for one in records] == [{"same": "x."}, {"same": "x."}, None]


def test_evaluate_repeats_the_warnings_of_the_selected_epoch(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_module, "find_collapse", lambda *arguments: {"same": "the same list."})
    out = dataset.path.parent / "run"
    train(dataset, out, settings={**SMALL, "training.epochs": 1})
    lines.clear()
    Evaluate((out,)).run()
    assert lines == ["Warning: the same list."]
    Evaluate((out,), json=True).run()
    assert json.loads(capsys.readouterr().out.partition("{\n")[2].join(["{", ""]))["policies"][0]["warnings"] == [
        "the same list."
    ]


def test_a_tiny_temperature_collapses_and_a_usual_one_does_not(dataset: Any, lines: list[str]) -> None:
    settings = {**SMALL, "algorithm.name": "sdac", "algorithm.ranks": "critic", "training.epochs": 1}
    for alpha, expected in ((1e-6, True), (0.3, False)):
        out = dataset.path.parent / f"run-{alpha}"
        policy = train(dataset, out, settings={**settings, "algorithm.alpha": alpha})
        assert any("entropy" in sentence for sentence in policy.warnings) is expected
