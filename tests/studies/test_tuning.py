"""Tuning: search spaces, resuming a search, and no look at test sessions."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offrec import cli
from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.plugins import Range
from offrec.reports.report import build_report
from offrec.runs.options import resolve_options
from offrec.studies import tuning
from offrec.studies.study import Study
from offrec.studies.tuning import SEARCH_ALL, Search, best_trial, train_command, tune
from offrec.studies.worker import WorkerOptions
from small_studies import FAST, QUIET, small_dataset

CPU = WorkerOptions(device="cpu")


@pytest.fixture
def search(tmp_path: Path) -> Search:
    dataset = small_dataset(tmp_path / "data")
    return Search(dataset, tmp_path / "study", "dc", settings=FAST, trials=4)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_search_spaces_contain_existing_options_and_the_presets_values(name: str, preset: str) -> None:
    flat = {"algorithm.name": name, "preset": preset}
    options = resolve_options(flat, "events").settings()
    searched = {**SEARCH_ALL, **LEARNERS[name].search}
    for key, kind in searched.items():
        if key in LEARNERS[name].ignored:
            continue  # `Search.space` leaves it out
        assert key in options, key
        inside = kind.low <= options[key] <= kind.high if isinstance(kind, Range) else options[key] in kind
        assert inside, f"{key} = {options[key]} of {preset} lies outside of what is searched"


def trials(study: Study) -> list[tuple[dict[str, object], object]]:
    """Return the options and the validation NDCG@10 of each trial."""
    pairs = []
    for run in study.runs:
        facts = json.loads(study.path("results", f"{run.name}.json").read_text())
        pairs.append((study.group(run).varied, facts["validation"]["all"]["NDCG@10"]))
    return pairs


def test_a_resumed_search_proposes_the_same_trials(search: Search, tmp_path: Path) -> None:
    whole = tune(search, CPU, QUIET)
    assert [group.trial for group in whole.groups] == [0, 1, 2, 3]
    assert whole.groups[0].varied["algorithm.alpha"] == 0.02, "trial 0 is the preset"
    assert len({group.options["algorithm.alpha"] for group in whole.groups}) == 4
    parts = replace(search, out=tmp_path / "parts")
    tune(replace(parts, trials=2), CPU, QUIET)
    (tmp_path / "parts/results/trial-001.0.json").unlink()  # as if killed before its evaluation
    again = tune(parts, CPU, QUIET)
    assert trials(again) == trials(whole)
    best = best_trial(whole)
    assert best is not None
    values = [value for _, value in trials(whole)]
    assert best.trial == values.index(max(values))  # type: ignore[type-var]


def test_tuning_does_not_evaluate_test_sessions(search: Search) -> None:
    study = tune(replace(search, trials=1), CPU, QUIET)
    facts = json.loads(study.path("results", "trial-000.0.json").read_text())
    assert "validation" in facts
    assert not {"test", "shop", "value"} & facts.keys()
    assert not list(study.path("results").glob("*.npy"))
    (table,) = [table for table in build_report([study.folder]).every_table if table.key.startswith("trials")]
    assert table.heads[0] == "validation NDCG@10"


def test_invalid_searches_are_refused(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="There is no algorithm 'magic'"):
        tune(replace(search, algorithm="magic"), CPU, QUIET)
    with pytest.raises(InputError, match="--trials must be at least 1; got 0"):
        tune(replace(search, trials=0), CPU, QUIET)
    study = tune(replace(search, trials=1), CPU, QUIET)
    with pytest.raises(InputError, match="contains another study; choose another --out"):
        tune(replace(search, objective="reward"), CPU, QUIET)
    with tuning._exclusive(study), pytest.raises(InputError, match="Another process is tuning"):
        tune(search, CPU, QUIET)


def test_a_failed_trial_does_not_stop_the_search(search: Search) -> None:
    broken = replace(search, settings=[*FAST, "training.learning_rate=1e30"], trials=2)
    study = tune(broken, CPU, QUIET)
    assert best_trial(study) is None
    assert [study.has_failed(run) for run in study.runs] == [True, True]


def test_value_at_5_as_objective(search: Search) -> None:
    study = tune(replace(search, objective="value", trials=2), CPU, QUIET)
    metrics = [
        json.loads(path.read_text())["validation"]["all"] for path in sorted(study.path("results").glob("*.json"))
    ]
    assert [0 < one["value@5"] < 10 for one in metrics] == [True, True]
    (chosen,) = [group for group in study.groups if group is best_trial(study)]
    assert chosen.trial == max((0, 1), key=lambda n: metrics[n]["value@5"])
    assert len(list((search.dataset / "values").glob("*/about.json"))) == 1


@pytest.mark.parametrize(
    ("preset", "backbone", "more"),
    [
        ("strong", None, ["seed=7", "reward.cart=3"]),
        ("paper", "caser", ["gamma=0.8"]),
    ],
)
def test_the_printed_command_trains_with_the_tuned_options(
    search: Search, monkeypatch: pytest.MonkeyPatch, preset: str, backbone: str | None, more: list[str]
) -> None:
    variant = replace(search, preset=preset, backbone=backbone, settings=[*FAST, *more])
    trial = tuning._add_trials(variant, tuning._create_or_continue(variant), [{"algorithm.alpha": 0.123456789}]).groups[
        -1
    ]
    trained: list[dict[str, Any]] = []
    monkeypatch.setattr("offrec.runs.train.train", lambda *_, settings, **__: trained.append(settings))
    monkeypatch.setattr(sys, "argv", shlex.split(train_command(variant, trial)))
    cli.main()
    options = resolve_options(trained[0], "events").settings()
    assert {key: value for key, value in options.items() if key not in ("seed", "device")} == trial.options
    assert options["algorithm.alpha"] == 0.123456789
    assert options["seed"] == 0, "a trial has its own seeds"


def test_the_last_line_is_the_train_command(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    from offrec.commands.studies import Execution, Tune

    Tune(search.dataset, search.out, "dc", Execution(device="cpu"), trials=1, preset="paper", set=tuple(FAST)).run()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        f"Next: offrec train {search.dataset} --algorithm dc --backbone cfn --preset paper --out RUN "
    )
    assert all(f"--set {setting}" in last for setting in FAST)


def test_settings_that_contradict_a_flag_are_refused(search: Search) -> None:
    for setting, flag in (("network.backbone=sasrec", "--backbone is gru"), ("preset=paper", "--preset is strong")):
        with pytest.raises(InputError, match=f"{flag}, but .* give only one of them"):
            tune(replace(search, settings=[setting]), CPU, QUIET)
