"""Reading studies: merging, missing runs and studies that do not fit together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from made_studies import made_log, made_study
from offrec.data.json_files import write_json
from offrec.errors import InputError
from offrec.reports.reading import read_studies
from offrec.reports.report import build_report
from offrec.reports.text_formats import markdown


def test_missing_seeds_are_named(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.6})
    study.path("results", "yoochoose.dc.gru.1.json").unlink()
    report = build_report([study.folder])
    assert "DC (2 of 3 seeds)" in markdown(report)
    assert "1 run is waiting" in markdown(report)
    assert report.summary.endswith("1 waiting.")


@pytest.mark.parametrize("metric", ["value@5", "value"])
def test_of_two_results_of_a_seed_the_one_with_values_is_used(tmp_path: Path, metric: str) -> None:
    studies = [made_study(tmp_path / name, [made_log()], {"sl": 0.5}) for name in ("plain", "valued")]
    path = studies[1].path("results", "yoochoose.sl.gru.1.json")
    facts = json.loads(path.read_text())
    if metric == "value":
        facts["value"] = {"value": 1.5, "low": 1.2, "high": 1.8, "verdict": "caution"}
    else:
        facts["test"]["all"]["value@5"] = 1.5
    write_json(path, facts)
    for order in (studies, studies[::-1]):
        (policy,) = read_studies([study.folder for study in order]).policies
        assert policy.values("all", metric) == {1: 1.5}
        first = order[0].folder.name
        sources = [(result.run.seed, result.study.folder.name) for result in policy.results]
        assert sources == [(0, first), (1, "valued"), (2, first)]


def test_studies_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.4})
    other = made_study(tmp_path / "a", [made_log("other", score_first=False)], {"sl": 0.4})
    with pytest.raises(InputError, match=r"yoochoose has score_first = True and other has False; one table"):
        build_report([study.folder, other.folder])
    same = made_study(tmp_path / "b", [replace(made_log(), fingerprint="another")], {"sl": 0.4})
    with pytest.raises(InputError, match=r"has the fingerprint another in .* and print-yoochoose in another study"):
        build_report([study.folder, same.folder])
    with pytest.raises(InputError, match=r"--cutoffs must be among 5, 10, 20; got 3"):
        build_report([study.folder], cutoffs=(3,))


def test_damaged_results_are_named(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.4, "dc": 0.5})
    study.path("results", "yoochoose.dc.gru.0.ranks.npy").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"ranks.npy cannot be read .*; delete the run's .json file"):
        build_report([study.folder])
    study.path("results", "yoochoose.dc.gru.0.json").write_text("{")
    with pytest.raises(
        InputError,
        match=r"json is damaged: .*; delete the run's .json file in that folder",
    ):
        build_report([study.folder])


def test_impossible_values_of_results_are_named(tmp_path: Path) -> None:
    """The checksums are right: another program may have written the file."""
    study = made_study(
        tmp_path / "study", [made_log()], {"sl": 0.4}, earned={"sl": 1.0, "sl sampled": 1.1, "informed": 3.0}
    )
    learner, own = study.path("results", "yoochoose.sl.gru.0.json"), study.path("results", "yoochoose.informed.0.json")
    facts, rollout = json.loads(learner.read_text()), json.loads(own.read_text())["shop"]
    without_end = {name: value for name, value in rollout["reward"].items() if name != "high"}
    for path, changes, reason in (
        (own, {"shop": {**rollout, "seed": None}}, "shop.seed must be a whole number"),
        (own, {"shop": {**rollout, "rollout_seed": "x"}}, "shop.rollout_seed must be a whole number"),
        (own, {"shop": {**rollout, "reward": without_end}}, "shop.reward lacks high"),
        (own, {"shop": {**rollout, "reward": {**rollout["reward"], "mean": 1e308}}}, "shop.reward.mean must be a num"),
        (own, {"shop": None}, "it has no shop;"),
        (learner, {"test": {**facts["test"], "view": {"events": None}}}, "test.view.events must be a whole number"),
        (learner, {"learning_curve": []}, "it has no learning_curve;"),
        (learner, {"selected_epoch": 9}, "selected_epoch is not in learning_curve;"),
        (learner, {"machine": None}, "machine must be an object"),
    ):
        before = path.read_text()
        write_json(path, {**json.loads(before), **changes})
        with pytest.raises(InputError, match=f"json is damaged: {reason}"):
            build_report([study.folder])
        path.write_text(before)
    build_report([study.folder])


def test_a_reward_of_one_visitor_has_no_interval(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {}, earned={"sl": 1.0, "logging": 2.0})
    for path in study.path("results").glob("*.json"):
        content = json.loads(path.read_text())
        content["shop"]["reward"] |= {"low": None, "high": None}
        write_json(path, content)
    assert build_report([study.folder]).every_table


def test_diagnostics_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.4, "dc": 0.5}, seeds=2)
    path = study.path("results", "yoochoose.dc.gru.0.json")
    content = json.loads(path.read_text())
    content["learning_curve"][-1]["diagnostics"]["entropy"] = None
    write_json(path, content)
    (dc,) = (policy for policy in read_studies([study.folder]).policies if policy.group.policy == "dc")
    assert dc.diagnostics["entropy"] == 2.0, "the mean over the other seed"
    build_report([study.folder])
