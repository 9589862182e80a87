"""Value estimates in studies."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.baselines import baseline
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.reports import text_formats
from offrec.reports.report import build_report
from offrec.runs.loading import load
from offrec.studies import design, results, value, worker
from offrec.studies.study import Study
from offrec.types import Batch
from small_datasets import write_dataset
from small_studies import FAST, finished, small_dataset, small_study


class First(Policy):
    """Ranks items by their index."""

    name = "first"

    def head(self, batch: Batch) -> Head:
        nothing = torch.zeros(len(batch), 0)
        return Head(nothing, torch.zeros(self.n_items, 0), -torch.arange(float(self.n_items)))


def test_the_estimate_matches_a_known_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One list of one item per session: the first item is bought, the second viewed. Top-1 always earns a purchase."""
    random = np.random.default_rng(0)
    shown = random.integers(2, size=600).tolist()
    decisions = [[(0, [item], 0.5, 0)] for item in shown]
    behaviours = [["view" if item else "buy"] for item in shown]
    dataset = write_dataset(
        tmp_path, [[item] for item in shown], behaviours, (300, 0, 300), items=2, decisions=decisions
    )
    policy = First(dataset.vocabulary, 5, torch.device("cpu"), dataset.meta["data_hash"])
    monkeypatch.setattr(value, "UPDATES", 150)
    estimate = value.estimate_value(policy, dataset, {"buy": 3.0})
    assert estimate["value"] == pytest.approx(3.0, abs=0.4)
    assert estimate["low"] < estimate["value"] < estimate["high"]
    assert estimate["verdict"] == "do not trust"  # the log earned 1.6 per session
    assert "excess over the logged reward" in estimate["reason"]


def test_values_are_estimated_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "UPDATES", 5)
    dataset = small_dataset(tmp_path / "data")
    opened = Dataset.open(dataset)
    study = small_study(dataset, tmp_path / "valued", algorithms="sl", seeds="1", value=True)
    with monkeypatch.context() as bare:  # an estimate needs torch and numpy only
        bare.setattr(worker, "find_spec", lambda name: None)
        for name in ("scipy", "scipy.sparse", "scipy.special"):
            bare.setitem(sys.modules, name, None)
        assert finished(study).done == 1
    assert finished(study).done == 2
    facts = [json.loads(path.read_text()) for path in study.path("results").glob("*.json")]
    assert len(facts) == 2
    for one in facts:
        assert {"value", "low", "high", "logged", "verdict", "reason"} == one["value"].keys()
        assert one["value"]["verdict"] in ("caution", "do not trust")
    without = small_study(dataset, tmp_path / "plain", algorithms="sl", baselines="none", seeds="1")
    assert not without.estimate_value
    assert (
        "value" not in results.measure_policy(without, without.groups[0], baseline("popular", opened), opened, {}).facts
    )
    with pytest.raises(InputError, match="plain was created without --value; repeat that"):
        small_study(dataset, tmp_path / "plain", algorithms="sl", baselines="none", seeds="1", value=True)


def test_a_missing_reward_is_refused_before_any_run(tmp_path: Path) -> None:
    strange = write_dataset(tmp_path, [[0, 1]] * 8, [["gaze", "gaze"]] * 8)
    with pytest.raises(InputError, match="The behaviour 'gaze' has no reward"):
        design.plan_comparison([strange.path], tmp_path / "study", algorithms="sl", settings=FAST, value=True)


def sweep(dataset: Path, out: Path, **choices: Any) -> Study:
    usual = {"algorithm": "sr", "vary": ["reward.cart=1,50"], "compare_with": ["algorithm.name=sl"], "seeds": "2"}
    return design.plan_sweep([dataset], out, settings=FAST, **{**usual, **choices})


def test_values_of_a_sweep_use_default_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path / "data")
    study = design.create_or_extend(sweep(dataset, tmp_path / "valued", value=True))
    with monkeypatch.context() as without:
        for name in ("scipy", "scipy.sparse", "scipy.special"):
            without.setitem(sys.modules, name, None)
        assert finished(study).done == 6
    assert len(list((dataset / "values").glob("*/about.json"))) == 1, "one fit for all rewards"
    facts = {path.stem: json.loads(path.read_text()) for path in study.path("results").glob("*.json")}
    for name, one in facts.items():
        policy, opened = load(study.path("runs", name), "cpu"), Dataset.open(dataset)
        assert one["test"]["all"]["value@5"] == pytest.approx(value.compute_value_at_5(policy, opened, {}, "test"))
        assert "value" not in one
        assert "value@5" not in one["validation"]["all"]
    report = build_report([study.folder])
    (table,) = [table for table in report.every_table if table.key.startswith("sweep")]
    column = table.heads.index("estimated value@5")
    assert all(row.cells[column].spread.startswith("±") for row in table.rows)
    (section,) = [section for section in report.sections if section.title == "Sweeps"]
    assert "an estimate from the log" in section.notes[-1]
    (picture,) = [picture for picture in section.figures if picture.key.startswith("sweep-value@5")]
    assert "estimated value@5" in picture.svg
    assert text_formats.csv(report).count(",test,all,value@5,") == 6
    with pytest.raises(InputError, match="valued was created with --value; repeat that"):
        design.create_or_extend(sweep(dataset, study.folder))


def test_a_sweep_without_value_has_no_value_column(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "data")
    study = design.create_or_extend(
        sweep(dataset, tmp_path / "plain", seeds="1", vary=["algorithm.beta=1"], compare_with=[])
    )
    assert finished(study).done == 1
    assert not (dataset / "values").exists()
    assert "value@5" not in text_formats.markdown(build_report([study.folder]))


def test_a_sweep_refuses_value_without_default_rewards(tmp_path: Path) -> None:
    strange = write_dataset(tmp_path, [[0, 1]] * 8, [["gaze", "gaze"]] * 8).path
    options = {"vary": ["reward.gaze=1,2"], "compare_with": []}
    with pytest.raises(InputError, match=r"has the behaviours gaze; --value of a sweep uses default rewards"):
        sweep(strange, tmp_path / "study", value=True, **options)
    assert not (tmp_path / "study").exists()
    assert len(sweep(strange, tmp_path / "study", **options).groups) == 2, "without --value the sweep is valid"
