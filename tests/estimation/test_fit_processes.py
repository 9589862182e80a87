"""Fits in several processes: the estimate of one process bit for bit, also if a process fails."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixed_policies import Fixed

from offrec.baselines import baseline
from offrec.catalogue import top_k
from offrec.commands.estimate import Estimate
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError, Interrupted
from offrec.estimation import fit_processes, passes
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.fit_tasks import ShownLists
from offrec.estimation.fitted_q import collect_top_lists
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.models.network import NetworkOptions
from offrec.training.loop import TrainingOptions
from small_datasets import write_dataset

OPTIONS = EstimateOptions(
    play="topk",
    k=2,
    refits=2,
    values=ValueOptions(updates=3),
    network=NetworkOptions(width=4),
    training=TrainingOptions(epochs=1),
)


class Lines(Console):
    """Collects the lines that are printed."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 6, random.integers(1, 5)).tolist() for _ in range(30)]
    return write_dataset(tmp_path, sessions, splits=(20, 4, 6), items=6)


def copy_of(dataset: Dataset, path: Path) -> Dataset:
    """Return a copy of a dataset without caches."""
    shutil.copytree(dataset.path, path)
    return Dataset.open(path)


def figures(dataset: Dataset, jobs: int, console: Console | None = None) -> dict[str, Any]:
    policies = {name: baseline(name, dataset, device=torch.device("cpu")) for name in ("popular", "recent")}
    found = estimate(policies, dataset, replace(OPTIONS, jobs=jobs), console).as_json()
    return {key: value for key, value in found.items() if key != "source"}


def refuse(*arguments: Any) -> None:
    pytest.fail("this must not run")


def test_two_processes_give_the_estimate_of_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = figures(copy_of(dataset, tmp_path / "copy"), 1)
    monkeypatch.setattr(passes, "fit_number", refuse)  # every fit runs in another process
    console = Lines()
    assert figures(dataset, 2, console) == expected
    assert not any("failed" in line or "Fitting" in line for line in console.lines)
    monkeypatch.setattr(fit_processes, "_run", refuse)  # the second estimate starts no process
    assert figures(dataset, 2) == expected


def test_fits_of_a_process_that_fails_run_in_this_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = figures(copy_of(dataset, tmp_path / "copy"), 1)
    monkeypatch.setattr(fit_processes.sys, "executable", shutil.which("false"))
    console = Lines()
    assert figures(dataset, 2, console) == expected
    assert console.lines[0] == "8 of 8 fits failed in other processes; fitting them in this process"


def test_a_stopped_estimate_ends_its_processes(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    original = fit_processes._serve

    def serve(process: Any, *arguments: Any) -> None:
        started.append(process.pid)
        original(process, *arguments)

    @contextmanager
    def stopped() -> Iterator[threading.Event]:
        stop = threading.Event()
        stop.set()
        yield stop

    monkeypatch.setattr(fit_processes, "_serve", serve)
    monkeypatch.setattr(fit_processes, "stop_requests", stopped)
    with pytest.raises(Interrupted, match="fits that had finished are cached"):
        figures(dataset, 2)
    assert len(started) == 2
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_shown_lists_by_hand(dataset: Dataset) -> None:
    """Decision 3 shows the items 4 and 1, decision 4 the items 0 and 5; other parts start elsewhere."""
    parts = {3: np.array([[4, 1], [0, 5]]), 9: np.array([[2, 3]])}
    policy = ShownLists(dataset, 5, parts)
    decisions = LoggedDecisions.load(dataset, "train")
    replay = decisions.replay(decisions.transitions(None, 0.0), 5, "exact", policy.device)
    batch = next(iter(replay.batches(3))).with_columns(event=torch.tensor([4, 9, 3]))
    assert top_k(policy.head(batch), 2)[1].tolist() == [[0, 5], [2, 3], [4, 1]]


@pytest.mark.parametrize("split", ["train", "test"])
def test_shown_lists_are_those_of_the_policy(dataset: Dataset, split: Any) -> None:
    policy = baseline("recent", dataset, device=torch.device("cpu"))
    decisions = LoggedDecisions.load(dataset, split)
    lists = collect_top_lists(ListPolicy(policy, "topk", 3), decisions)
    shown = ListPolicy(ShownLists(dataset, policy.history, {decisions.first: lists.numpy()}), "topk", 3)
    assert torch.equal(collect_top_lists(shown, decisions), lists)


def test_jobs_are_positive() -> None:
    with pytest.raises(InputError, match="--jobs must be at least 1; got 0"):
        EstimateOptions(jobs=0)
    with pytest.raises(InputError, match="--jobs has no effect with --engine ray"):
        Estimate(engine="ray", jobs=2).run()


def test_jobs_without_an_effect_are_refused(dataset: Dataset) -> None:
    """No fit of Q, sampled lists and a GPU each have their own sentence. The default is silent."""
    policy = Fixed(dataset, [0.0] * 6)
    sampled = replace(OPTIONS, play="sample", k=None, refits=0, value_at_5=False)
    with pytest.raises(InputError, match=r"--jobs has no effect on policies that sample their lists; omit it or use"):
        estimate(policy, dataset, replace(sampled, jobs=2))
    with pytest.raises(InputError, match=r"--jobs has no effect, because this estimate fits no Q; omit it\."):
        estimate(policy, dataset, replace(sampled, estimators=("self_normalised",), jobs=2))
    lists = {"shown": ListPolicy(Fixed(dataset, [0.0] * 6), "topk", 2)}
    lists["shown"].policy.device = torch.device("meta")
    with pytest.raises(InputError, match=r"--jobs has no effect on a GPU; omit it or use --device cpu\."):
        fit_processes.check_jobs(lists, LoggedDecisions.load(dataset, "test"), replace(OPTIONS, jobs=2))
    assert estimate(policy, dataset, sampled).policies
    assert estimate(policy, dataset, replace(sampled, jobs=1)).policies


def test_processes_need_a_folder_to_exchange_fits(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_processes.os, "access", lambda path, mode: False)
    policy = Fixed(dataset, [0.0] * 6)
    with pytest.raises(InputError, match=r"--jobs 2 needs a dataset that can be written to.* is read-only\. Omit"):
        estimate(policy, dataset, replace(OPTIONS, jobs=2))
    assert estimate(policy, dataset, OPTIONS).policies


def test_the_longest_fits_start_first(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(fit_processes, "_run", lambda tasks, *_: started.extend(task.kind for task in tasks))
    figures(dataset, 2)
    assert started == ["logging", *["q"] * 6, "value@5"]
