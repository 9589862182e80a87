"""Planning studies, and the messages for invalid requests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offrec.algorithms import LEARNERS
from offrec.baselines import BASELINES
from offrec.commands.studies import Compare, Execution
from offrec.data.json_files import format_json
from offrec.errors import InputError
from offrec.reports.reading import read_studies
from offrec.reports.report import build_report
from offrec.studies import design
from offrec.studies.folder import read_study
from small_studies import FAST, finished, small_dataset, small_study


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("data"))


def test_the_default_is_every_learner_and_baseline(dataset: Path, tmp_path: Path) -> None:
    study = design.plan_comparison([dataset], tmp_path / "study", backbones="gru,caser", seeds="0,3")
    baselines = [name for name in BASELINES if BASELINES[name].needs_only_events]  # the dataset has no lists
    planners = [name for name in LEARNERS if LEARNERS[name].family == "planner"]  # they have no backbone
    groups = 2 * len(LEARNERS) - len(planners)
    assert len(study.groups) == len(baselines) + groups
    assert len(study.runs) == len(baselines) + 2 * groups, "a baseline has one run"
    assert {run.seed for run in study.runs if run.group == "small.dc.caser"} == {0, 3}
    dc = next(group for group in study.groups if group.name == "small.dc.gru")
    assert dc.options["algorithm.alpha"] == 0.02, "presets are resolved"
    assert dc.options["select"] == "last"
    assert not (tmp_path / "study").exists(), "planning writes nothing"


def test_a_baseline_that_needs_lists_is_named_if_there_are_none(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--baselines pick-rate needs served lists"):
        design.plan_comparison([dataset], tmp_path / "study", algorithms="sl", baselines="recent,pick-rate")


def test_all_baselines_names_those_that_are_left_out(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In study.json, on the terminal and in the report."""
    options: dict[str, Any] = {"algorithms": "sl", "seeds": "1", "set": tuple(FAST)}
    Compare((dataset,), tmp_path / "study", execution=Execution(device="cpu", json=True), **options).run()
    left_out = read_study(tmp_path / "study").request["left_out"]
    names = [name for name in BASELINES if not BASELINES[name].needs_only_events]
    assert [sentence.split(",")[0] for sentence in left_out] == [f"Left out: {name}" for name in names]
    assert "Left out: pick-rate, which needs served lists; the dataset small contains none." in left_out
    (setup,) = (part for part in build_report([tmp_path / "study"]).sections if part.title == "Setup")
    assert setup.notes == left_out
    Compare((dataset,), tmp_path / "study", execution=Execution(device="cpu", plan_only=True), **options).run()
    assert capsys.readouterr().err.count("Left out: ") == len(names)
    study = design.plan_comparison([dataset], tmp_path / "other", algorithms="sl", baselines="recent")
    assert study.request["left_out"] == []


def test_study_json_stores_the_plan(dataset: Path, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    assert read_study(study.folder) == study
    stored = json.loads((study.folder / "study.json").read_text())
    assert stored["datasets"][0]["fingerprint"] == study.datasets[0].fingerprint
    assert stored["datasets"][0]["protocol"]["split"] == "random"


def test_study_json_stores_labels_and_families(dataset: Path, tmp_path: Path) -> None:
    """A report then needs no plug-in."""
    recent, sl, _ = small_study(dataset, tmp_path / "study").groups
    assert (recent.policy_label, recent.short_label) == ("Most recent items", BASELINES["recent"].short_label)
    assert (sl.policy_label, sl.family, sl.backbone_label, sl.backbone_family) == (
        "SL",
        "imitation",
        "GRU",
        "recurrent",
    )
    sweep = design.plan_sweep(
        [dataset], tmp_path / "x", algorithm="dc", vary=["algorithm.alpha=1"], compare_with=["algorithm.name=sl"]
    )
    assert [(group.policy_label, group.family) for group in sweep.groups] == [
        ("DC", "constrained"),
        ("SL", "imitation"),
    ]


def test_a_setting_can_apply_to_one_learner(dataset: Path, tmp_path: Path) -> None:
    settings = ["training.epochs=3", "dc:algorithm.alpha=0.5", "dc:training.epochs=7"]
    study = design.plan_comparison([dataset], tmp_path / "study", algorithms="sl,dc", settings=settings)
    options = {group.policy: group.options for group in study.groups}
    assert options["dc"]["algorithm.alpha"] == 0.5
    assert options["dc"]["training.epochs"] == 7
    assert options["sl"]["training.epochs"] == 3


def test_repeated_splits_are_one_log(tmp_path: Path) -> None:
    three = [small_dataset(tmp_path / str(seed), f"split-{seed}", split_seed=seed) for seed in range(3)]
    study = design.create_or_extend(
        design.plan_comparison(
            three,
            tmp_path / "study",
            algorithms="sl",
            baselines="recent",
            seeds="3",
            settings=FAST,
            repeated_splits=True,
        )
    )
    assert [(run.dataset, run.seed) for run in study.runs if run.group == "split-0.sl.gru"] == [
        ("split-0", 0), ("split-1", 1), ("split-2", 2)
    ]  # fmt: skip
    assert finished(study).done == 6
    read = read_studies([study.folder])
    assert list(read.logs) == ["split-0"], "one log, one column"
    assert {len(entry.results) for entry in read.policies} == {3}
    assert build_report([study.folder]).every_table[0].spans == [("split-0, view", 4)]
    with pytest.raises(InputError, match="give --seeds 3"):
        design.plan_comparison(three, tmp_path / "x", repeated_splits=True)
    once = r"split-0 and split-1 are the same log with --split-seed 0 and 1; add --repeated-splits"
    with pytest.raises(InputError, match=once):
        design.plan_comparison(three, tmp_path / "x")
    existing = small_study(three[0], tmp_path / "existing")
    with pytest.raises(InputError, match=r"split-1 and split-0 are the same log"):
        small_study(three[1], existing.folder)
    another = small_dataset(tmp_path / "another", "another")
    with pytest.raises(InputError, match=r"split-0 and .*another are the same dataset; give it once"):
        design.plan_comparison([three[0], another], tmp_path / "x", algorithms="sl")
    other = small_dataset(tmp_path / "other", "other", unseen="drop")
    with pytest.raises(InputError, match="--repeated-splits needs splits of one log"):
        design.plan_comparison([three[0], other], tmp_path / "x", seeds="2", repeated_splits=True)


def test_a_sweep_has_a_row_per_value_and_per_comparison(dataset: Path, tmp_path: Path) -> None:
    study = design.plan_sweep(
        [dataset], tmp_path / "study", algorithm="sr", vary=["algorithm.beta=0.1,1"],
        compare_with=["algorithm.adaptive=true,algorithm.epsilon=1", "algorithm.name=sl"], seeds="1", settings=FAST,
    )  # fmt: skip
    assert [group.varied for group in study.groups] == [{"algorithm.beta": 0.1}, {"algorithm.beta": 1.0}, {}, {}]
    adaptive, sl = study.groups[2:]
    assert adaptive.options["algorithm.adaptive"] is True
    assert sl.policy == "sl"
    assert finished(design.create_or_extend(study)).done == 4
    report = build_report([study.folder])
    (table,) = [table for table in report.every_table if table.key.startswith("sweep")]
    assert [row.label for row in table.rows] == ["β = 0.1", "β = 1", "adaptive, ε = 1", "SL"]
    (section,) = [section for section in report.sections if section.title == "Sweeps"]
    assert table.heads[:4] == ["NDCG@10", "HR@5", "NDCG@10 of view", "NDCG@10 of cart"]
    dashed = [picture.svg.count("stroke-dasharray") for picture in section.figures]
    assert dashed == [2, 2, 2], "one figure for all behaviours and one for each, with a dashed line per comparison"


def test_a_compared_learner_does_not_get_options_of_the_swept_learner(dataset: Path, tmp_path: Path) -> None:
    settings = ["critic.ground=3", "algorithm.start=supervised", "network.width=8"]
    study = design.plan_sweep(
        [dataset], tmp_path / "study", algorithm="dc", vary=["algorithm.alpha=0.1"], compare_with=["algorithm.name=sl"],
        settings=settings,
    )  # fmt: skip
    dc, sl = (group.options for group in study.groups)
    assert (dc["critic.ground"], dc["network.width"], sl["network.width"]) == (3, 8, 8)
    assert "algorithm.start" not in sl
    assert not any(key.startswith("critic.") for key in sl)


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"algorithms": "sl,magic"}, r"There is no algorithm 'magic'; the known ones are sl, dqn, pg"),
    ({"backbones": "mlp"}, r"There is no backbone 'mlp'; the known ones are gru"),
    ({"baselines": "best"}, r"There is no baseline 'best'; the known ones are popular"),
    ({"seeds": "many"}, r"--seeds must be a number of seeds \(5; at most 10,000\) or a list .*; got 'many'"),
    ({"seeds": "0"}, r"--seeds must be .*; got '0'"),
    ({"seeds": "1,1"}, r"--seeds must be .*; got '1,1'"),
    (
        {"settings": ["training.epoch=3"]},
        r"sl on small: There is no option 'training.epoch'; did you mean training.epochs",
    ),
    ({"settings": ["algorithm.alpha=1"]}, r"sl on small: algorithm.alpha is not an option of sl"),
    (
        {"settings": ["dc:algorithm.alpha=1"], "algorithms": "sl"},
        r"is for the learner 'dc', which is not part of this study; its learners are sl",
    ),
    ({"settings": ["preset=paper"]}, r"--preset is strong, but preset is set to paper; give only one of them"),
    ({"settings": ["algorithm.name=dc"]}, r"--algorithms is sl, but algorithm.name is set to dc"),
    ({"settings": ["training.epochs=many"]}, r"training.epochs must be a whole number; got 'many'"),
    ({"visitors": 0}, r"--visitors must be at least 1; got 0"),
]


@pytest.mark.parametrize(("choices", "message"), INVALID)
def test_invalid_comparisons_are_refused(dataset: Path, tmp_path: Path, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        design.plan_comparison([dataset], tmp_path / "study", **choices)
    assert not (tmp_path / "study").exists()


def test_invalid_sweeps_are_refused(dataset: Path, tmp_path: Path) -> None:
    def refused(message: str, **choices: Any) -> None:
        with pytest.raises(InputError, match=message):
            design.plan_sweep([dataset], tmp_path / "study", **choices)

    refused(
        "dc on small: There is no option 'algorithm.gravity'; `offrec options --algorithm dc` lists all options",
        algorithm="dc", vary=["algorithm.gravity=1,2"],
    )  # fmt: skip
    refused(
        "There is no option 'gama'; did you mean gamma", algorithm="dc", vary=["gamma=0.5"], compare_with=["gama=1"]
    )
    refused("--vary is missing; give KEY=VALUE,VALUE", algorithm="dc", vary=[])
    refused("--vary must have the form KEY=VALUE,VALUE", algorithm="dc", vary=["algorithm.alpha"])
    refused("algorithm.alpha must be a finite number; got 'high'", algorithm="dc", vary=["algorithm.alpha=high"])
    refused("--vary cannot vary seed", algorithm="dc", vary=["seed=1,2"])
    refused("There is no algorithm 'all'", algorithm="all,dc", vary=["gamma=0.5"])


def test_an_extended_study_keeps_its_options(dataset: Path, tmp_path: Path) -> None:
    small_study(dataset, tmp_path / "study", visitors=300)
    with pytest.raises(InputError, match="was created with --visitors 300; repeat that, or choose another --out"):
        small_study(dataset, tmp_path / "study", visitors=200)


def test_datasets_with_different_protocols_are_refused(dataset: Path, tmp_path: Path) -> None:
    other = small_dataset(tmp_path, "other", score_first=False)
    with pytest.raises(
        InputError, match=r"small has score_first = True and other has False; one table needs equal values"
    ):
        design.plan_comparison([dataset, other], tmp_path / "study")
    parts = small_dataset(tmp_path, "parts", split_parts=(6, 2, 2))
    with pytest.raises(InputError, match=r"split_parts = 8:1:1 and parts has 6:2:2"):
        design.plan_comparison([dataset, parts], tmp_path / "study")
    (tmp_path / "twice").mkdir()
    with pytest.raises(InputError, match="Two dataset folders are called small"):
        design.plan_comparison([dataset, small_dataset(tmp_path / "twice")], tmp_path / "study")
    study = small_study(dataset, tmp_path / "existing")
    with pytest.raises(InputError, match=r"score_first = False and small has True"):
        design.create_or_extend(design.plan_comparison([other], study.folder, algorithms="sl"))


def test_other_folders_and_damaged_studies_are_refused(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"is not a study folder: it contains no study.json; create one with `offrec compare`"
    ):
        read_study(tmp_path)
    study = small_study(dataset, tmp_path / "study")
    stored = json.loads((study.folder / "study.json").read_text())
    for version, written_by in ((99, ""), (1, r" \(offrec 0.1\)")):
        (study.folder / "study.json").write_text(json.dumps({**stored, "study_version": version}))
        message = f"study has study format {version}{written_by}; this version of offrec reads format 3; run the study"
        with pytest.raises(InputError, match=message):
            read_study(study.folder)
    known, *_ = stored["datasets"]
    run, (group, *others) = stored["runs"][0], stored["groups"]
    for content, reason in (
        ("{", "it ends within line 1;"),
        ("[1]", "it must contain an object;"),
        (json.dumps({**stored, "visitors": 5}), "its checksum does not match;"),
        ({"study_version": 3}, "the content lacks kind, datasets, groups, runs;"),
        ({**stored, "runs": [{"name": "a"}]}, r"runs\[0\] lacks group, dataset, seed;"),
        ({**stored, "runs": [{**run, "name": "../../../escaped"}]}, r"runs\[0\].name must match "),
        ({**stored, "runs": [{**run, "name": ".."}]}, r"runs\[0\].name must match "),
        ({**stored, "runs": [run, run]}, "a name occurs twice;"),
        ({**stored, "runs": [{**run, "group": "x"}]}, ".* has no group or dataset;"),
        ({**stored, "datasets": [{**known, "smell": 1}]}, r"'datasets\[0\].smell' is not a known key"),
        ({**stored, "datasets": [5]}, r"datasets\[0\] must be an object; got 5"),
        ({**stored, "datasets": 5}, "datasets must be a list"),
        ({**stored, "datasets": [{**known, "counts": {}}]}, r"datasets\[0\].counts lacks sessions, events, items;"),
        ({**stored, "datasets": [{**known, "protocol": {}}]}, r"datasets\[0\].protocol lacks format, "),
        ({**stored, "visitors": 2**63}, "visitors must be a whole number"),
        ({**stored, "kind": "tune"}, "request.objective must be text;"),
        ({**stored, "kind": "tune", "request": {"objective": "NDCG@10"}}, ".* has no number of a trial;"),
        ({**stored, "groups": [{**group, "trial": 1}, *others]}, ".* is a trial, but the study is not a search;"),
    ):
        (study.folder / "study.json").write_text(content if isinstance(content, str) else format_json(content))
        with pytest.raises(InputError, match=f"study.json is damaged: {reason}"):
            read_study(study.folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("notes")
    with pytest.raises(InputError, match="is not empty and not a study folder"):
        small_study(dataset, tmp_path / "mine")
    with pytest.raises(InputError, match=r"mine/notes is a file; a study needs a folder; choose another --out."):
        small_study(dataset, tmp_path / "mine/notes")
    with pytest.raises(InputError, match=r"cannot be written \(.*/notes is not a folder\); choose another"):
        small_study(dataset, tmp_path / "mine/notes/below")
    empty = small_study(dataset, tmp_path / "empty")
    with pytest.raises(InputError, match=r"No run of .* is done yet; run the study first"):
        build_report([empty.folder])


def test_the_commands_run_as_typed(dataset: Path, tmp_path: Path) -> None:
    def offrec(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "offrec", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
        assert done.returncode == code, f"{done.returncode}: {done.stderr}{done.stdout}"
        return done

    fast = [word for setting in FAST for word in ("--set", setting)]
    command = ["compare", dataset, "--algorithms", "sl,dqn", "--baselines", "recent", "--seeds", "1", "--device", "cpu"]
    done = offrec(*command, *fast, "--out", tmp_path / "study")
    assert "View, recurrent backbones" in done.stdout
    assert "Most recent items" in done.stdout
    assert "small, GRU: " in done.stdout
    assert (tmp_path / "study/report.html").exists()
    printed = json.loads(offrec(*command, *fast, "--out", tmp_path / "study", "--json").stdout)
    assert (printed["done"], printed["failed"], printed["waiting"]) == (3, 0, 0)
    assert {run["run"] for run in printed["runs"]} == {"small.recent.0", "small.sl.gru.0", "small.dqn.gru.0"}
    out = tmp_path / "report.csv"
    offrec("report", tmp_path / "study", "--out", out, "--out", tmp_path / "report.md", "--cutoffs", "5,10,20")
    assert out.exists()
    assert not (tmp_path / "report.html").exists(), "only the requested files"
    assert "NDCG@20" in (tmp_path / "report.md").read_text()
    refused = offrec("report", dataset, code=2)
    assert [line for line in refused.stderr.splitlines() if line][-1].startswith("offrec: ")
    assert "is not a study folder" in refused.stderr
    assert "Traceback" not in refused.stderr
