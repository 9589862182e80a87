"""Tuning: what is searched exists, test sessions are not looked at, a search that was stopped goes on as it would."""

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
def test_spaces_hold_options_that_exist_and_the_presets_own_values(name: str, preset: str) -> None:
    flat = {"algorithm.name": name, "preset": preset}
    options = resolve_options(flat, "events").settings()
    for key, kind in {**SEARCH_ALL, **LEARNERS[name].search}.items():
        assert key in options, key
        inside = kind.low <= options[key] <= kind.high if isinstance(kind, Range) else options[key] in kind
        assert inside, f"{key} = {options[key]} of {preset} lies outside of what is searched"


def trials(study: Study) -> list[tuple[dict[str, object], object]]:
    """What each trial was given, and what came of it."""
    found = []
    for run in study.runs:
        facts = json.loads(study.path("results", f"{run.name}.json").read_text())
        found.append((study.group(run).varied, facts["validation"]["all"]["NDCG@10"]))
    return found


def test_stopped_and_continued(search: Search, tmp_path: Path) -> None:
    whole = tune(search, CPU, QUIET)
    assert [group.trial for group in whole.groups] == [0, 1, 2, 3]
    assert whole.groups[0].varied["algorithm.alpha"] == 0.02, "the preset as it is comes first"
    assert len({group.options["algorithm.alpha"] for group in whole.groups}) == 4
    parts = replace(search, out=tmp_path / "parts")
    tune(replace(parts, trials=2), CPU, QUIET)
    (tmp_path / "parts/results/trial-001.0.json").unlink()  # killed before it was judged
    again = tune(parts, CPU, QUIET)
    assert trials(again) == trials(whole)
    found = best_trial(whole)
    assert found is not None
    values = [value for _, value in trials(whole)]
    assert found.trial == values.index(max(values))  # type: ignore[type-var]


def test_test_sessions_are_not_looked_at(search: Search) -> None:
    study = tune(replace(search, trials=1), CPU, QUIET)
    facts = json.loads(study.path("results", "trial-000.0.json").read_text())
    assert "validation" in facts
    assert not {"test", "shop", "value"} & facts.keys()
    assert not list(study.path("results").glob("*.npy"))
    (table,) = [table for table in build_report([study.folder]).every_table if table.key.startswith("trials")]
    assert table.heads[0] == "NDCG@10 on validation"


def test_what_cannot_be_tuned(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="There is no algorithm 'magic'"):
        tune(replace(search, algorithm="magic"), CPU, QUIET)
    with pytest.raises(InputError, match="--trials is 0"):
        tune(replace(search, trials=0), CPU, QUIET)
    study = tune(replace(search, trials=1), CPU, QUIET)
    with pytest.raises(InputError, match="is a study that asked something else"):
        tune(replace(search, objective="reward"), CPU, QUIET)
    with tuning._alone(study), pytest.raises(InputError, match="Another process is tuning"):
        tune(search, CPU, QUIET)


def test_a_failed_trial_is_told_to_the_search(search: Search) -> None:
    broken = replace(search, settings=[*FAST, "training.learning_rate=1e30"], trials=2)
    study = tune(broken, CPU, QUIET)
    assert best_trial(study) is None
    assert [study.has_failed(run) for run in study.runs] == [True, True]


def test_a_search_by_value(search: Search) -> None:
    """The figure that --select value goes by, on validation, with one discount for all trials."""
    study = tune(replace(search, objective="value", trials=2), CPU, QUIET)
    found = [json.loads(path.read_text())["validation"]["all"] for path in sorted(study.path("results").glob("*.json"))]
    assert [0 < one["value@5"] < 10 for one in found] == [True, True]
    (chosen,) = [group for group in study.groups if group is best_trial(study)]
    assert chosen.trial == max((0, 1), key=lambda n: found[n]["value@5"])
    assert len(list((search.dataset / "values").glob("*/about.json"))) == 1


@pytest.mark.parametrize(
    ("preset", "backbone", "more"),
    [
        ("strong", None, ["seed=7", "reward.cart=3"]),
        ("paper", "caser", ["gamma=0.8"]),
        ("strong", "gru", ["network.backbone=sasrec", "preset=paper"]),
    ],
)
def test_the_next_command_trains_the_model_that_was_tuned(
    search: Search, monkeypatch: pytest.MonkeyPatch, preset: str, backbone: str | None, more: list[str]
) -> None:
    asked = replace(search, preset=preset, backbone=backbone, settings=[*FAST, *more])
    found = tuning._with(asked, tuning._begin(asked), [{"algorithm.alpha": 0.123456789}]).groups[-1]
    trained: list[dict[str, Any]] = []
    monkeypatch.setattr("offrec.runs.train.train", lambda *_, settings, **__: trained.append(settings))
    monkeypatch.setattr(sys, "argv", shlex.split(train_command(asked, found)))
    cli.main()
    options = resolve_options(trained[0], "events").settings()
    assert {key: value for key, value in options.items() if key not in ("seed", "device")} == found.options
    assert options["algorithm.alpha"] == 0.123456789
    assert options["seed"] == 0, "trials have seeds of their own, whatever is held"


def test_the_commands_last_line(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    from offrec.commands.studies import Execution, Tune

    Tune(search.dataset, search.out, "dc", Execution(device="cpu"), trials=1, preset="paper", set=tuple(FAST)).run()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        f"Next: offrec train {search.dataset} --algorithm dc --backbone cfn --preset paper --out RUN "
    )
    assert all(f"--set {setting}" in last for setting in FAST)
