"""Values in studies: what is asked for is estimated, of what is played, and only then."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_datasets import write_dataset
from offrec.baselines import baseline
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.reports import text_formats as plain
from offrec.reports.report import build_report
from offrec.runs.loading import load
from offrec.studies import design, results, value, worker
from offrec.studies.study import Study
from offrec.types import Batch
from small_studies import FAST, finished, small_dataset, small_study


class First(Policy):
    """The first item before all others."""

    name = "first"

    def head(self, batch: Batch) -> Head:
        nothing = torch.zeros(len(batch), 0)
        return Head(nothing, torch.zeros(self.n_items, 0), -torch.arange(float(self.n_items)))


def test_what_a_policy_earns_in_a_log_whose_truth_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One item a list, one list a session; the first is bought, the second viewed. Best k of one: always bought."""
    random = np.random.default_rng(0)
    shown = random.integers(2, size=600).tolist()
    decisions = [[(0, [item], 0.5, 0)] for item in shown]
    words = [["view" if item else "buy"] for item in shown]
    dataset = write_dataset(tmp_path, [[item] for item in shown], words, (300, 0, 300), items=2, decisions=decisions)
    policy = First(dataset.vocabulary, 5, torch.device("cpu"), dataset.meta["data_hash"])
    monkeypatch.setattr(value, "UPDATES", 150)
    found = value.estimate_value(policy, dataset, {"buy": 3.0})
    assert found["value"] == pytest.approx(3.0, abs=0.4)
    assert found["low"] < found["value"] < found["high"]
    assert found["verdict"] == "do not trust"  # the log paid 1.6 a session
    assert "more than the log paid" in found["reason"]


def test_a_study_has_values_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "UPDATES", 5)
    dataset = small_dataset(tmp_path / "data")
    opened = Dataset.open(dataset)
    study = small_study(dataset, tmp_path / "valued", algorithms="sl", seeds="1", value=True)
    with monkeypatch.context() as bare:  # a value takes torch and numpy; a baseline, left to another machine, scipy
        bare.setattr(worker, "find_spec", lambda name: None)
        for name in ("scipy", "scipy.sparse", "scipy.special"):
            bare.setitem(sys.modules, name, None)
        assert finished(study).done == 1
    assert finished(study).done == 2
    facts = [json.loads(path.read_text()) for path in study.path("results").glob("*.json")]
    assert len(facts) == 2
    for one in facts:
        assert {"value", "low", "high", "verdict", "reason"} == one["value"].keys()
        assert one["value"]["verdict"] in ("caution", "do not trust")
    without = small_study(dataset, tmp_path / "plain", algorithms="sl", baselines="none", seeds="1")
    assert not without.value
    assert "value" not in results.measure_policy(without, baseline("popular", opened), opened, {}).facts
    with pytest.raises(InputError, match="plain was asked without --value; ask it the same way"):
        small_study(dataset, tmp_path / "plain", algorithms="sl", baselines="none", seeds="1", value=True)


def test_what_values_need_is_asked_first(tmp_path: Path) -> None:
    strange = write_dataset(tmp_path, [[0, 1]] * 8, [["gaze", "gaze"]] * 8)
    with pytest.raises(InputError, match="No reward is known for the behaviour 'gaze'"):
        design.plan_comparison([strange.path], tmp_path / "study", algorithms="sl", settings=FAST, value=True)


def test_the_epoch_kept_by_value() -> None:
    curve = [{"validation": {"value@5": worth}} for worth in (1.0, 3.0, 2.0)]
    assert worker.selected_epoch(curve, "value") == 2


def sweep(dataset: Path, out: Path, **choices: Any) -> Study:
    usual = {"algorithm": "sr", "vary": ["reward.cart=1,50"], "compare_with": ["algorithm.name=sl"], "seeds": "2"}
    return design.plan_sweep([dataset], out, settings=FAST, **{**usual, **choices})


def test_a_sweep_has_values_in_one_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path / "data")
    study = design.create_or_extend(sweep(dataset, tmp_path / "valued", value=True))
    with monkeypatch.context() as without:
        for name in ("scipy", "scipy.sparse", "scipy.special"):
            without.setitem(sys.modules, name, None)
        assert finished(study).done == 6
    assert len(list((dataset / "values").glob("*/about.json"))) == 1, "one fit, whatever a cart is worth to a run"
    facts = {path.stem: json.loads(path.read_text()) for path in study.path("results").glob("*.json")}
    for name, one in facts.items():
        policy, opened = load(study.path("runs", name), "cpu"), Dataset.open(dataset)
        assert one["test"]["all"]["value@5"] == pytest.approx(value.compute_value_at_5(policy, opened, {}, "test"))
        assert "value" not in one
        assert "value@5" not in one["validation"]["all"]
    found = build_report([study.folder])
    (table,) = [table for table in found.every_table if table.key.startswith("sweep")]
    column = table.heads.index("value@5, estimated")
    assert all(row.cells[column].spread.startswith("±") for row in table.rows)
    (section,) = [section for section in found.sections if section.title == "Sweeps"]
    assert "an estimate from the log alone" in section.words[-1]
    (picture,) = [picture for picture in section.pictures if picture.key.startswith("sweep-value@5")]
    assert "value@5, estimated" in picture.svg
    assert plain.csv(found).count(",test,all,value@5,") == 6
    with pytest.raises(InputError, match="valued was asked with --value; ask it the same way"):
        design.create_or_extend(sweep(dataset, study.folder))


def test_a_sweep_without_values_says_nothing_of_them(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "data")
    study = design.create_or_extend(
        sweep(dataset, tmp_path / "plain", seeds="1", vary=["algorithm.beta=1"], compare_with=[])
    )
    assert finished(study).done == 1
    assert not (dataset / "values").exists()
    assert "value@5" not in plain.markdown(build_report([study.folder]))


def test_a_sweep_refuses_values_of_what_has_no_default_reward(tmp_path: Path) -> None:
    strange = write_dataset(tmp_path, [[0, 1]] * 8, [["gaze", "gaze"]] * 8).path
    asked = {"vary": ["reward.gaze=1,2"], "compare_with": []}
    with pytest.raises(InputError, match=r"has the behaviours gaze; a sweep's --value counts in default rewards"):
        sweep(strange, tmp_path / "study", value=True, **asked)
    assert not (tmp_path / "study").exists()
    assert len(sweep(strange, tmp_path / "study", **asked).groups) == 2, "without --value it is swept"
