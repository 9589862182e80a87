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

from offrec.data.dataset import Dataset
from offrec.errors import InputError, Interrupted, RunError
from offrec.reports.report import build_report
from offrec.reports.text_formats import csv
from offrec.runs.options import resolve_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.studies import results, worker
from offrec.studies.claims import Claim
from offrec.studies.folder import locate_datasets, open_dataset, read_study
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts
from offrec.training import memory
from offrec.training.loop import Trainer
from small_studies import FAST, finished, process, small_dataset, small_study, started_processes

KILLS = 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def uninterrupted(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = small_study(dataset, tmp_path_factory.mktemp("uninterrupted") / "study")
    assert finished(study) == RunCounts(5, 0, 0)
    return study


def tables(study: Study) -> str:
    return csv(build_report([study.folder])).replace(study.folder.name, "study")


def test_a_study_killed_at_random_times_has_the_same_results(
    dataset: Path, uninterrupted: Study, tmp_path: Path
) -> None:
    """Kills happen before the first checkpoint, between epochs and during the evaluation."""
    study, kills, delays = small_study(dataset, tmp_path / "study"), 0, random.Random(7)
    for attempt in range(1, 30):
        working = process(study)
        working.start()
        while working.is_alive() and len(started_processes(study)) < attempt:
            time.sleep(0.002)
        if attempt <= KILLS:
            working.join(delays.uniform(0.0, 0.3))
            kills += working.is_alive()
            working.kill()
        working.join()
        if RunCounts.of(study).waiting == 0:
            break
    assert RunCounts.of(study) == RunCounts(5, 0, 0)
    assert kills >= 3, "the study finished too early"
    assert tables(study) == tables(uninterrupted)


def test_two_processes_share_a_queue(dataset: Path, uninterrupted: Study, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    both = [process(study), process(study)]
    for working in both:
        working.start()
    for working in both:
        working.join(100)
        assert working.exitcode == 0
    lines = [line.split() for line in (study.folder / "finished.txt").read_text().splitlines()]
    assert sorted(name for name, _ in lines) == sorted(run.name for run in study.runs), "each run once"
    assert len({pid for _, pid in lines}) == 2, "both executed runs"
    assert tables(study) == tables(uninterrupted)


def test_finished_runs_are_not_repeated_when_a_study_is_extended(
    dataset: Path, uninterrupted: Study, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(uninterrupted.folder, folder)
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "results").iterdir()}
    wider = small_study(dataset, folder, seeds="3", algorithms="sl")
    assert finished(wider) == RunCounts(6, 0, 0)
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "results").iterdir()}
    assert {name: after[name] for name in before} == before
    with pytest.raises(
        InputError, match=r"contains runs of small.sl.gru with training.epochs = 2, not 3; choose another"
    ):
        small_study(dataset, folder, settings=[*FAST, "training.epochs=3"], algorithms="sl")


def test_a_failed_run_is_recorded_and_does_not_stop_the_study(dataset: Path, tmp_path: Path) -> None:
    settings = [*FAST, "sr:training.learning_rate=1e30"]
    study = small_study(dataset, tmp_path / "study", settings=settings, seeds="1")
    assert finished(study) == RunCounts(2, 1, 0)
    (path,) = study.path("failed").iterdir()
    reason = json.loads(path.read_text())["reason"]
    assert reason.startswith("The loss"), reason
    assert "training.learning_rate" in reason
    assert finished(study) == RunCounts(2, 1, 0), "failed runs are not repeated"
    assert [failure.reason for failure in build_report([study.folder]).results.failures] == [reason]
    assert finished(study, retry_failed=True) == RunCounts(2, 1, 0)


def test_concurrent_seeds_have_the_same_results(dataset: Path, uninterrupted: Study, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    assert finished(study, concurrent_seeds=2) == RunCounts(5, 0, 0)
    facts = json.loads(study.path("results", "small.sr.gru.1.json").read_text())
    assert facts["concurrent_seeds"] == 2
    assert tables(study) == tables(uninterrupted), "each equals the run alone"


@pytest.mark.parametrize(("processes", "concurrent"), [(1, [2, 2, 1]), (2, [1, 1, 1])])
def test_as_many_seeds_as_memory_holds_are_trained_concurrently(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, concurrent: list[int]
) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sl", baselines="none", seeds="3")
    opened = Dataset.open(dataset)
    options = resolve_options(study.groups[0].options, opened.protocol.format)
    shared = SharedData(opened)
    peak = plan_run(shared, options, torch.device("cpu")).memory.peak
    monkeypatch.setattr(memory, "free", lambda device: shared.bytes(device) + int(2.9 * peak))
    assert finished(study, concurrent_seeds=3, processes_on_device=processes) == RunCounts(3, 0, 0)
    results = [json.loads(study.path("results", f"{run.name}.json").read_text()) for run in study.runs]
    assert sorted((facts["concurrent_seeds"] for facts in results), reverse=True) == concurrent


def test_concurrent_seeds_that_fail_are_executed_alone(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("offrec.studies.worker.train_many", broken)
    study = small_study(dataset, tmp_path / "study", algorithms="sl")
    assert finished(study, concurrent_seeds=2) == RunCounts(3, 0, 0), "each was executed alone"


def test_an_interrupted_run_continues_from_its_checkpoint(
    dataset: Path, uninterrupted: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sr", baselines="none", seeds="1")
    close, closed = Trainer._end_epoch, []

    def counted(trainer: Trainer) -> None:
        close(trainer)
        closed.append(trainer.progress.epoch)
        if len(closed) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_end_epoch", counted)
    with pytest.raises(Interrupted, match=r"0 of 1 runs done; small.sr.gru.0 will continue from the last checkpoint"):
        finished(study)
    assert finished(study) == RunCounts(1, 0, 0)
    assert closed == [1, 2], "the second epoch followed the first"
    facts, whole = (json.loads(s.path("results", "small.sr.gru.0.json").read_text()) for s in (study, uninterrupted))
    assert facts["resumed"]
    assert facts["selected_epoch"] in (1, 2)
    assert facts["stopped_early"] is False
    assert not whole["resumed"]
    assert facts["learning_curve"] == whole["learning_curve"]


def test_the_message_of_an_interruption_says_how_runs_continue(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(dataset, tmp_path / "study", algorithms="sl", seeds="1")
    judge = results.measure_policy

    def stopping(study: Study, *arguments: Any) -> results.Measurements:
        if study.is_done(study.runs[0]):
            raise Interrupted("Stopped.")
        return judge(study, *arguments)

    monkeypatch.setattr(results, "measure_policy", stopping)
    with pytest.raises(Interrupted, match=r"1 of 2 runs done; small.sl.gru.0 will continue from the last checkpoint"):
        finished(study)
    assert "small.recent.0 will start again; repeat the command to continue." in str(
        worker.interruption(study, study.runs[:1])
    )


def test_learners_come_first_where_values_are_estimated(dataset: Path, tmp_path: Path) -> None:
    plain = small_study(dataset, tmp_path / "plain", seeds="1")
    assert [run.group for run in worker.queue(plain)] == ["small.recent", "small.sl.gru", "small.sr.gru"]
    valued = small_study(dataset, tmp_path / "valued", seeds="1", value=True)
    assert [run.group for run in worker.queue(valued)] == ["small.sl.gru", "small.sr.gru", "small.recent"]


def test_a_study_can_be_moved_with_its_dataset(dataset: Path, uninterrupted: Study, tmp_path: Path) -> None:
    """Move both folders before the study is finished."""
    here = tmp_path / "here"
    moved = small_dataset(here / "data")
    study = small_study(moved, here / "studies" / "study", algorithms="sl")
    assert finished(study, time_limit=0.0).waiting == 3
    here.rename(tmp_path / "there")
    again = read_study(tmp_path / "there/studies/study")
    assert finished(again) == RunCounts(3, 0, 0)
    (tmp_path / "there/data").rename(tmp_path / "elsewhere")
    lost = read_study(tmp_path / "there/studies/study")
    with pytest.raises(InputError, match="give its path: --data FOLDER"):
        open_dataset(lost, "small")
    located = locate_datasets(lost, [tmp_path / "elsewhere/small"])
    assert open_dataset(located, "small").fingerprint == located.datasets[0].fingerprint


def test_a_changed_dataset_is_refused(tmp_path: Path) -> None:
    study = small_study(small_dataset(tmp_path / "data"), tmp_path / "study")
    shutil.rmtree(tmp_path / "data")
    small_dataset(tmp_path / "data", score_first=False)
    with pytest.raises(InputError, match=r"has the fingerprint .*; the study .* was planned for"):
        finished(study)
    assert RunCounts.of(study).failed == 0, "no run failed"


def test_several_jobs_have_the_same_results(dataset: Path, uninterrupted: Study, tmp_path: Path) -> None:
    study = small_study(dataset, tmp_path / "study")
    assert finished(study, jobs=2) == RunCounts(5, 0, 0)
    assert tables(study) == tables(uninterrupted)


@pytest.mark.all
def test_sigterm_stops_every_process(dataset: Path, tmp_path: Path) -> None:
    study = small_study(
        dataset, tmp_path / "study", settings=[*FAST, "training.epochs=100000", "training.patience=9999999"]
    )
    command = [sys.executable, "-m", "offrec.studies", str(study.folder), "--jobs", "2", "--device", "cpu"]
    working = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(list(study.path("runs").glob("*/last.safetensors"))) < 2:
        assert working.poll() is None
        time.sleep(0.1)
    working.terminate()
    _, output = working.communicate(timeout=60)
    assert working.returncode == 130, output
    assert "runs done; the current runs will continue from the last checkpoint or start again" in output
    for run in study.runs:
        with Claim(study, [run], 1) as claim:
            assert claim.runs or study.is_done(run), "every lock is free"


def test_a_lost_device_ends_the_process(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were not started must stay waiting, because a new process can execute them."""
    study = small_study(dataset, tmp_path / "study", algorithms="sl", baselines="none")

    def lost(*arguments: object, **options: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr("offrec.studies.worker.train", lost)
    monkeypatch.setattr("offrec.studies.worker.torch.zeros", lost)
    monkeypatch.setattr("offrec.studies.worker.pick_device", torch.device)
    with pytest.raises(
        RunError, match=r"failed \(RuntimeError: an illegal memory.* and this process cannot use cpu any more"
    ):
        finished(study)
    assert RunCounts.of(study) == RunCounts(0, 1, 1)


WITHOUT_PACKAGES = """
import importlib.machinery, sys

ABSENT = ("polars", "rich", "scipy", "matplotlib", "tyro", "optuna")
finder = importlib.machinery.PathFinder
find = finder.find_spec
finder.find_spec = lambda name, *more: None if name.split(".")[0] in ABSENT else find(name, *more)
from offrec.studies.__main__ import main
sys.exit(main([sys.argv[1], "--device", "cpu", "--json"]))
"""


def test_a_machine_with_torch_only(dataset: Path, tmp_path: Path) -> None:
    """Learners are executed; baselines, which need scipy, stay waiting."""
    study = small_study(dataset, tmp_path / "study", seeds="1")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES, str(study.folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"done": 2, "failed": 0, "waiting": 1}
    assert finished(study) == RunCounts(3, 0, 0)
