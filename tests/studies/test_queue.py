"""The queue: killed, moved, shared and failed runs."""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.errors import InputError, Interrupted, RunError
from offrec.policy import Policy
from offrec.reports.report import build_report
from offrec.reports.text_formats import csv
from offrec.studies import results, worker
from offrec.studies.claims import Claim
from offrec.studies.folder import locate_datasets, open_dataset, read_study
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts
from offrec.training.loop import Trainer
from small_studies import FAST, begun_by, finished, process, small_dataset, small_study

KILLS = 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = small_study(dataset, tmp_path_factory.mktemp("undisturbed") / "study")
    assert finished(study) == RunCounts(5, 0, 0)
    return study


def tables(study: Study) -> str:
    return csv(build_report([study.folder])).replace(study.folder.name, "study")


def test_killed_at_random_and_continued(dataset: Path, undisturbed: Study, tmp_path: Path) -> None:
    """Some kills come before a run's first checkpoint, some between epochs, some while it is judged."""
    study, kills, delays = small_study(dataset, tmp_path / "study"), 0, random.Random(7)
    for begun in range(1, 30):
        working = process(study)
        working.start()
        while working.is_alive() and len(begun_by(study)) < begun:
            time.sleep(0.002)
        if begun <= KILLS:
            working.join(delays.uniform(0.0, 0.3))
            kills += working.is_alive()
            working.kill()
        working.join()
        if RunCounts.of(study).waiting == 0:
            break
    assert RunCounts.of(study) == RunCounts(5, 0, 0)
    assert kills >= 3, "the study was finished before it could be killed"
    assert tables(study) == tables(undisturbed)


def test_two_processes_share_a_queue(dataset: Path, undisturbed: Study, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    both = [process(study), process(study)]
    for working in both:
        working.start()
    for working in both:
        working.join(100)
        assert working.exitcode == 0
    lines = [line.split() for line in (study.folder / "finished.txt").read_text().splitlines()]
    assert sorted(name for name, _ in lines) == sorted(run.name for run in study.runs), "each run once"
    assert len({pid for _, pid in lines}) == 2, "both worked"
    assert tables(study) == tables(undisturbed)


def test_what_is_done_is_not_repeated_and_more_may_be_asked(dataset: Path, undisturbed: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(undisturbed.folder, folder)
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "results").iterdir()}
    wider = small_study(dataset, folder, seeds="3", algorithms="sl")
    assert finished(wider) == RunCounts(6, 0, 0)
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "results").iterdir()}
    assert {name: after[name] for name in before} == before
    with pytest.raises(InputError, match=r"has runs of small.sl.gru with training.epochs = 2, not 3; choose another"):
        small_study(dataset, folder, settings=[*FAST, "training.epochs=3"], algorithms="sl")


def test_a_failed_run_is_recorded_and_the_rest_goes_on(dataset: Path, tmp_path: Path) -> None:
    settings = [*FAST, "sr:training.learning_rate=1e30"]
    study = small_study(dataset, tmp_path / "study", settings=settings, seeds="1")
    assert finished(study) == RunCounts(2, 1, 0)
    (path,) = study.path("failed").iterdir()
    reason = json.loads(path.read_text())["reason"]
    assert reason.startswith("The loss"), reason
    assert "training.learning_rate" in reason
    assert finished(study) == RunCounts(2, 1, 0), "what failed is not tried again by itself"
    assert [failure.reason for failure in build_report([study.folder]).reading.failures] == [reason]
    assert finished(study, retry_failed=True) == RunCounts(2, 1, 0)


def test_seeds_train_together(dataset: Path, undisturbed: Study, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    assert finished(study, concurrent_seeds=2) == RunCounts(5, 0, 0)
    found = json.loads(study.path("results", "small.sr.gru.1.json").read_text())
    assert found["concurrent_seeds"] == 2
    assert tables(study) == tables(undisturbed), "each is the run it would be alone"


def test_one_of_several_that_fails_does_not_take_the_others_along(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("no room for both")

    monkeypatch.setattr("offrec.studies.worker.train_many", broken)
    study = small_study(dataset, tmp_path / "study", algorithms="sl")
    assert finished(study, concurrent_seeds=2) == RunCounts(3, 0, 0), "each was tried alone"


def test_half_a_run_is_not_repeated(
    dataset: Path, undisturbed: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sr", baselines="none", seeds="1")
    close, closed = Trainer._close_epoch, []

    def counted(trainer: Trainer) -> None:
        close(trainer)
        closed.append(trainer.place.epoch)
        if len(closed) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_close_epoch", counted)
    with pytest.raises(
        Interrupted, match=r"0 of 1 runs are done and kept, small.sr.gru.0 goes on where its training was"
    ):
        finished(study)
    assert finished(study) == RunCounts(1, 0, 0)
    assert closed == [1, 2], "the second epoch followed the first"
    facts, whole = (json.loads(s.path("results", "small.sr.gru.0.json").read_text()) for s in (study, undisturbed))
    assert facts["resumed"]
    assert not whole["resumed"]
    assert facts["learning_curve"] == whole["learning_curve"]


def test_a_stop_before_anything_is_saved(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sl", seeds="1")
    judge = results.measure_policy

    def stopping(study: Study, policy: Policy, *arguments: Any) -> results.Measurements:
        if study.is_done(study.runs[0]):
            raise Interrupted("Stopped while fitting values; nothing of it is kept.")
        return judge(study, policy, *arguments)

    monkeypatch.setattr(results, "measure_policy", stopping)
    with pytest.raises(Interrupted, match=r"1 of 2 runs is done and kept, small.sl.gru.0 goes on where its training"):
        finished(study)
    assert "small.recent.0 starts again: the same command goes on." in str(worker.interruption(study, study.runs[:1]))


def test_learners_come_first_where_values_take_long(dataset: Path, tmp_path: Path) -> None:
    plain = small_study(dataset, tmp_path / "plain", seeds="1")
    assert [run.group for run in worker.queue(plain)] == ["small.recent", "small.sl.gru", "small.sr.gru"]
    valued = small_study(dataset, tmp_path / "valued", seeds="1", value=True)
    assert [run.group for run in worker.queue(valued)] == ["small.sl.gru", "small.sr.gru", "small.recent"]


def test_moved_with_its_dataset(dataset: Path, undisturbed: Study, tmp_path: Path) -> None:
    """The folders go elsewhere together, half done, and the old ones are gone."""
    here = tmp_path / "here"
    moved = small_dataset(here / "data")
    study = small_study(moved, here / "studies" / "study", algorithms="sl")
    assert finished(study, time_limit=0.0).waiting == 3
    here.rename(tmp_path / "there")
    again = read_study(tmp_path / "there/studies/study")
    assert finished(again) == RunCounts(3, 0, 0)
    (tmp_path / "there/data").rename(tmp_path / "elsewhere")
    lost = read_study(tmp_path / "there/studies/study")
    with pytest.raises(InputError, match="say where it is: --data FOLDER"):
        open_dataset(lost, "small")
    found = locate_datasets(lost, [tmp_path / "elsewhere/small"])
    assert open_dataset(found, "small").fingerprint == found.datasets[0].fingerprint


def test_another_dataset_under_the_same_name(tmp_path: Path) -> None:
    study = small_study(small_dataset(tmp_path / "data"), tmp_path / "study")
    shutil.rmtree(tmp_path / "data")
    small_dataset(tmp_path / "data", score_first=False)
    with pytest.raises(InputError, match=r"has the fingerprint .*, the study .* asks for"):
        finished(study)
    assert RunCounts.of(study).failed == 0, "no run is to blame"


def test_processes_side_by_side(dataset: Path, undisturbed: Study, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    assert finished(study, jobs=2) == RunCounts(5, 0, 0)
    assert tables(study) == tables(undisturbed)


@pytest.mark.all
def test_a_stop_request_reaches_every_process(dataset: Path, tmp_path: Path) -> None:
    study = small_study(
        dataset, tmp_path / "study", settings=[*FAST, "training.epochs=100000", "training.patience=9999999"]
    )
    command = [sys.executable, "-m", "offrec.studies", str(study.folder), "--jobs", "2", "--device", "cpu"]
    working = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(list(study.path("runs").glob("*/last.safetensors"))) < 2:
        assert working.poll() is None
        time.sleep(0.1)
    working.terminate()
    _, said = working.communicate(timeout=60)
    assert working.returncode == 130, said
    assert "done and kept, what is in hand goes on where its training was last saved, or starts again" in said
    for run in study.runs:
        with Claim(study, [run], 1) as claim:
            assert claim.runs or study.is_done(run), "nobody is left who holds it"


def test_a_device_that_is_lost_ends_the_process(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some failures nothing more can be computed: the rest is left to a fresh process, not failed as well."""
    study = small_study(dataset, tmp_path / "study", algorithms="sl", baselines="none")

    def lost(*arguments: object, **options: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr("offrec.studies.worker.train", lost)
    monkeypatch.setattr("offrec.studies.worker.torch.zeros", lost)
    monkeypatch.setattr("offrec.studies.worker.pick_device", torch.device)
    with pytest.raises(RunError, match=r"failed \(RuntimeError: an illegal memory.* and left cpu unusable"):
        finished(study)
    assert RunCounts.of(study) == RunCounts(0, 1, 1)


BARE = """
import importlib.machinery, sys

ABSENT = ("polars", "rich", "scipy", "matplotlib", "tyro", "optuna")
finder = importlib.machinery.PathFinder
find = finder.find_spec
finder.find_spec = lambda name, *more: None if name.split(".")[0] in ABSENT else find(name, *more)
from offrec.studies.__main__ import main
sys.exit(main([sys.argv[1], "--device", "cpu", "--json"]))
"""


def test_a_machine_with_torch_alone(dataset: Path, tmp_path: Path) -> None:
    """Learners are trained and judged there; baselines, which need scipy, are left to another."""
    study = small_study(dataset, tmp_path / "study", seeds="1")
    done = subprocess.run([sys.executable, "-c", BARE, str(study.folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"done": 2, "failed": 0, "waiting": 1}
    assert finished(study) == RunCounts(3, 0, 0)
