"""π̂_b is fitted once and then loaded from the cache, and `log_b` of a session does not depend on that session."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.catalogue import log_prob
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.json_files import format_json
from offrec.errors import InputError, Interrupted
from offrec.logging_policy import LoggingPolicy, cache, fitting, load_or_fit
from offrec.logging_policy.cache import FitSpec
from offrec.models.network import NetworkOptions
from offrec.training.loop import Trainer, TrainingOptions
from offrec.training.update import Update

CPU = torch.device("cpu")
NETWORK = NetworkOptions(width=8, history=6, repeat="off", dropout=0.2)
TRAINING = TrainingOptions(epochs=2, batch_size=40, learning_rate=0.01, patience=99)


class RecordingConsole(Console):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def log(sessions: int = 60) -> list[list[int]]:
    random = np.random.default_rng(0)
    starts = random.integers(0, 20, sessions)
    return [[(int(start) + step * 3) % 20 for step in range(random.integers(1, 12))] for start in starts]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Dataset:
    made: Dataset = make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20)
    return made


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """Every trainer that is built."""
    made: list[Trainer] = []

    class RecordedTrainer(Trainer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(fitting, "Trainer", RecordedTrainer)
    return made


def fit(dataset: Dataset, need: Any = "both", **changes: Any) -> LoggingPolicy:
    arguments = {
        "network": NETWORK,
        "training": TRAINING,
        "seed": 0,
        "device": CPU,
        "console": RecordingConsole(),
        **changes,
    }
    return load_or_fit(dataset, **arguments, need=need)


def assert_same(one: LoggingPolicy, other: LoggingPolicy) -> None:
    assert one.network is not None
    assert other.network is not None
    assert one.log_b is not None
    assert other.log_b is not None
    mine, theirs = one.network.state_dict(), other.network.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert torch.equal(one.log_b.nan_to_num(7.0), other.log_b.nan_to_num(7.0))
    assert one.calibration == other.calibration


def published(dataset: Dataset) -> list[str]:
    """The published folders."""
    return sorted(path.name for path in (dataset.path / "logging").glob("[!.]*") if path.suffix != ".lock")


def test_the_second_call_loads_from_the_cache(dataset: Dataset, trainers: list[Trainer]) -> None:
    state = torch.get_rng_state()
    first = fit(dataset)
    assert len(trainers) == 3  # all sessions, and all but each half
    second = fit(dataset)
    assert len(trainers) == 3
    assert_same(first, second)
    assert torch.equal(state, torch.get_rng_state())
    assert len(published(dataset)) == 2


def test_only_missing_parts_are_fitted(dataset: Dataset, trainers: list[Trainer]) -> None:
    alone = fit(dataset, "network")
    assert (len(trainers), alone.log_b) == (1, None)
    assert {name.split(".")[0] for name in alone.calibration} == {"network"}
    both = fit(dataset, "both", folds=3)
    assert len(trainers) == 4
    assert fit(dataset, "log_b", folds=3).network is None
    assert len(trainers) == 4
    assert alone.network is not None
    assert both.network is not None
    assert torch.equal(alone.network.items_in, both.network.items_in)


def test_the_same_seed_gives_the_same_result(dataset: Dataset, tmp_path: Path, make_dataset: Any) -> None:
    twin = make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20)
    first = fit(dataset)
    torch.manual_seed(99)
    assert_same(first, fit(twin))
    other = fit(dataset, "log_b", seed=1)
    assert other.log_b is not None
    assert not torch.equal(other.log_b[:30], fit(dataset, "log_b").log_b[:30])  # type: ignore[index]


def test_the_network_has_no_gradients_and_log_b_covers_the_training_events(dataset: Dataset) -> None:
    fitted = fit(dataset)
    assert fitted.network is not None
    assert fitted.log_b is not None
    assert not fitted.network.training
    assert not any(parameter.requires_grad for parameter in fitted.network.parameters())
    assert fitted.network.options == NETWORK
    train = dataset.split("train")
    inside = torch.zeros(len(dataset.sessions.items), dtype=torch.bool)
    inside[int(train.offsets[0]) : int(train.offsets[-1])] = True
    assert fitted.log_b.dtype == torch.float32
    assert torch.equal(fitted.log_b.isfinite(), inside)
    assert torch.equal(fitted.log_b.isnan(), ~inside)
    assert (fitted.log_b[inside] < 0).all()
    assert fitted.calibration["log_b.events"] == inside.sum()
    assert fitted.calibration["log_b.log_likelihood"] == pytest.approx(float(fitted.log_b[inside].mean()), rel=1e-5)


def test_the_epoch_with_the_best_validation_likelihood_is_selected(dataset: Dataset) -> None:
    fitted = fit(dataset, "network", training=replace(TRAINING, epochs=25, learning_rate=0.1))
    (folder,) = (dataset.path / "logging").glob("*/")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    likelihoods = [row["validation"]["log-likelihood"] for row in rows]
    assert int(np.argmax(likelihoods)) < 24  # the last epoch is not the best
    assert fitted.calibration["network.log_likelihood"] == pytest.approx(max(likelihoods), rel=1e-5)


def test_early_stopping_works_with_a_negative_log_likelihood(dataset: Dataset) -> None:
    """The margin is relative. Relative to a negative number it would accept worse epochs as better."""
    fit(dataset, "network", training=replace(TRAINING, epochs=30, warmup=0, patience=2, margin=9.0))
    (folder,) = (dataset.path / "logging").glob("*/")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


# --- which events have an influence -----------------------------------------------------------------------------------


def test_log_b_of_a_session_comes_from_a_network_that_did_not_see_it(tmp_path: Path, make_dataset: Any) -> None:
    """A unique session is likely for the network that saw it and unlikely for the others."""
    unique = [20, 21, 22, 23, 24, 25]
    common = [[0, 1, 2, 3]] * 30 + [[4, 5, 6, 7]] * 30
    dataset = make_dataset(tmp_path, [*common, unique, unique, [0, 1], [0, 1]], splits=(61, 2, 1), items=100)
    training = TrainingOptions(epochs=60, batch_size=64, learning_rate=0.02, patience=99, warmup=0, decay=1.0)
    fitted = fit(dataset, network=replace(NETWORK, width=16, dropout=0.0), training=training)
    assert fitted.network is not None
    assert fitted.log_b is not None
    start = 60 * 4
    (batch,) = fitting.make_replay(dataset, dataset.split("train"), 6, "exact", CPU).batches(10_000)
    seen = torch.zeros(len(fitted.log_b))
    seen[batch.event] = log_prob(fitted.network(batch), batch.action[:, None])[:, 0]
    own = slice(start + 1, start + 6)  # the first item has no history
    assert (seen[own].exp() > 0.5).all()
    assert (fitted.log_b[own].exp() < 0.03).all()  # about as likely as by chance
    assert (fitted.log_b[1:4].exp() > 0.5).all()  # every network has seen the common sessions


def test_a_session_has_no_influence_on_log_b_of_its_fold(tmp_path: Path, make_dataset: Any) -> None:
    """Changing a session changes no bit of the other sessions in its fold, and most of the rest."""
    sessions = log()
    sessions[0] = [1, 4, 7, 10]
    changed = [[5, 5, 5, 5], *sessions[1:]]
    one, other = (make_dataset(tmp_path, each, splits=(45, 10, 5), items=20) for each in (sessions, changed))
    before, after = (fit(each, "log_b", folds=3).log_b for each in (one, other))
    assert before is not None
    assert after is not None
    fold = fitting.assign_folds(45, 3, 0)
    event_fold = np.repeat(fold, np.diff(one.split("train").offsets))
    mine, theirs = np.flatnonzero(event_fold == fold[0])[4:], np.flatnonzero(event_fold != fold[0])
    assert (fold == fold[0]).sum() == 15
    assert torch.equal(before[mine], after[mine])
    assert (before[theirs] != after[theirs]).float().mean() > 0.9


def test_test_sessions_have_no_influence_and_validation_sessions_select_the_epoch(
    tmp_path: Path, make_dataset: Any
) -> None:
    """Early stopping, the selected epoch and the calibration use validation sessions, never test sessions.

    The validation sessions continue the pattern of the training sessions or contradict it. Contradicting ones select an
    earlier epoch. Other test sessions change no bit of the result.
    """
    train, alike = log(45), log(10)
    opposite = [[(19 - 3 * step) % 20 for step in range(len(session))] for session in alike]
    training = replace(TRAINING, epochs=12, learning_rate=0.05, patience=2, warmup=0)
    splits = {
        "alike": make_dataset(tmp_path, [*train, *alike, *alike], splits=(45, 10, 10), items=20),
        "other test": make_dataset(tmp_path, [*train, *alike, *opposite], splits=(45, 10, 10), items=20),
        "other validation": make_dataset(tmp_path, [*train, *opposite, *alike], splits=(45, 10, 10), items=20),
    }
    fitted = {name: fit(dataset, training=training) for name, dataset in splits.items()}
    epochs = {
        name: [len(path.read_text().splitlines()) for path in sorted(dataset.path.glob("logging/*/metrics.jsonl"))]
        for name, dataset in splits.items()
    }
    assert_same(fitted["alike"], fitted["other test"])
    assert epochs["alike"] == epochs["other test"]
    assert epochs["alike"] > epochs["other validation"], "contradicting validation sessions stop the fit early"
    likelihood = {name: one.calibration["network.log_likelihood"] for name, one in fitted.items()}
    assert likelihood["alike"] > likelihood["other validation"] + 0.5


@pytest.mark.parametrize("encode", ["sessions", "windows"])
def test_a_fold_consists_of_whole_sessions(dataset: Dataset, encode: Any) -> None:
    train = dataset.split("train")
    replay = fitting.make_replay(dataset, train, 3, encode, CPU)
    fold = fitting.assign_folds(len(train), 2, 0)
    segment_fold = fold[fitting.session_of(train, replay.segments.begin)]
    parts = [replay.subset(np.flatnonzero(segment_fold == k)) for k in range(2)]
    events = [torch.cat([batch.event for batch in part.batches(16)]).numpy() for part in parts]
    by_event = np.repeat(fold, np.diff(train.offsets))
    for k in range(2):
        assert sorted(events[k]) == np.flatnonzero(by_event == k).tolist()


# --- the key ----------------------------------------------------------------------------------------------------------


def keys(dataset: Dataset, network: Any = NETWORK, training: Any = TRAINING, seed: int = 0, folds: int = 2) -> set[str]:
    spec = FitSpec(dataset, network, training, seed, folds)
    return {spec.folder(Path(), part).name for part in ("network", "log_b")}


def test_the_key_depends_on_everything_that_changes_the_result(dataset: Dataset) -> None:
    base = keys(dataset)
    assert len(base) == 2
    relevant = [
        {"seed": 1},
        {"network": replace(NETWORK, width=16)},
        {"network": replace(NETWORK, backbone="sasrec")},
        *({"training": replace(TRAINING, **change)} for change in (
            {"epochs": 3}, {"batch_size": None}, {"encode": "windows"}, {"learning_rate": 0.1}, {"precision": "bf16"},
        )),
    ]  # fmt: skip
    for change in relevant:
        assert not base & keys(dataset, **change), change
    irrelevant = [
        {"training": replace(TRAINING, capture="off")},
        {"training": replace(TRAINING, memory_check=False)},
        {"network": replace(NETWORK, heads=4)},  # a GRU has no attention heads
        {"network": replace(NETWORK, window=3)},
        {"network": replace(NETWORK, repeat_state=False)},  # without a repeat term
    ]
    for change in irrelevant:
        assert base == keys(dataset, **change), change
    assert base == keys(dataset.with_protocol(score_first=False))
    assert len(base & keys(dataset, folds=3)) == 1  # the network is the same
    assert not base & keys(replace(dataset, meta={**dataset.meta, "data_hash": "another"}))


def test_about_json_describes_the_fit(dataset: Dataset) -> None:
    fit(dataset)
    spec = FitSpec(dataset, NETWORK, TRAINING, 0, 2)
    for part in ("network", "log_b"):
        about = json.loads((spec.folder(dataset.path / "logging", part) / "about.json").read_text())  # type: ignore[arg-type]
        assert about.pop("calibration")["events"] > 0
        expected = json.loads(json.dumps(spec.describe(part)))  # type: ignore[arg-type]
        assert {key: about[key] for key in expected} == expected
        assert set(about) - set(expected) == {"arrays", "sha256"}


# --- complete or absent -----------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import torch
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.logging_policy import load_or_fit
from offrec.models.network import NetworkOptions
from offrec.training.loop import TrainingOptions
from offrec.training.update import Update

real, remaining = Update.__call__, [int(sys.argv[2])]

def update(self, size):
    remaining[0] -= 1
    if remaining[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, size)

Update.__call__ = update
network = NetworkOptions(width=8, history=6, repeat="off", dropout=0.2)
training = TrainingOptions(epochs=2, batch_size=40, learning_rate=0.01, patience=99)
fitted = load_or_fit(Dataset.open(sys.argv[1]), network, training, 0, torch.device("cpu"), Console(), need="both")
print(float(fitted.network.items_in.sum()), float(fitted.log_b.nansum()))
"""


def process(dataset: Dataset, killed_at: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, str(dataset.path), str(killed_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_fit_only_once(dataset: Dataset) -> None:
    """The test holds the lock until both processes wait for it."""
    root = cache.writable_root(dataset.path / "logging", RecordingConsole())
    folders = sorted(FitSpec(dataset, NETWORK, TRAINING, 0, 2).folder(root, part) for part in ("network", "log_b"))
    messages: list[str] = []
    with cache.fit_lock(folders[0], RecordingConsole()):
        both = [process(dataset), process(dataset)]
        for each in both:
            assert each.stderr is not None
            messages.append(each.stderr.readline())
        assert all("Waiting for another process" in line for line in messages)
        assert not any(cache.is_complete(folder) for folder in folders)
    ends = [each.communicate(timeout=60) for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert ends[0][0] == ends[1][0] != ""
    assert sorted("Fitting the logging policy" in err for _, err in ends) == [False, True]
    here = fit(dataset)
    assert here.network is not None
    assert float(ends[0][0].split()[0]) == pytest.approx(float(here.network.items_in.sum()))


def test_a_killed_process_leaves_nothing_that_is_loaded(
    dataset: Dataset, tmp_path: Path, make_dataset: Any, trainers: list[Trainer]
) -> None:
    dead = process(dataset, killed_at=30)  # in the second network of three
    dead.communicate(timeout=60)
    assert dead.returncode == -signal.SIGKILL
    partial = list((dataset.path / "logging").glob(".*.partial"))
    assert len(partial) == 2
    (partial[0] / "half a file").write_text("")
    assert published(dataset) == []
    started = time.monotonic()
    fitted = fit(dataset)
    assert time.monotonic() - started < 30  # the lock of the killed process is free
    assert len(trainers) == 3
    assert list((dataset.path / "logging").glob(".*")) == []
    assert list((dataset.path / "logging").glob("*/half*")) == []
    assert_same(fitted, fit(make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20)))


@pytest.mark.parametrize("stop", [1, 25])
def test_an_interrupted_fit_leaves_nothing(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    real, done = Update.__call__, 0

    def update(self: Update, size: Any) -> None:
        nonlocal done
        done += 1
        if done == stop:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, size)

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", update)
        with pytest.raises(Interrupted, match="logging policy") as caught:
            fit(dataset)
    assert "--resume" not in str(caught.value)
    assert published(dataset) == []
    assert list((dataset.path / "logging").glob(".*")) == []
    assert fit(dataset).network is not None


def test_a_failed_fit_leaves_nothing(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("simulated")

    with monkeypatch.context() as patch:
        patch.setattr(fitting.calibration, "event_probabilities", broken)
        with pytest.raises(MemoryError):
            fit(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", broken)
        with pytest.raises(MemoryError):
            fit(dataset)
    assert published(dataset) == []
    assert list((dataset.path / "logging").glob(".*")) == []


def test_a_folder_that_cannot_be_written_is_replaced_by_a_temporary_one(
    dataset: Dataset, tmp_path: Path, make_dataset: Any, trainers: list[Trainer]
) -> None:
    """A file in place of the folder stops even root."""
    (dataset.path / "logging").write_text("")
    console = RecordingConsole()
    fitted = fit(dataset, console=console)
    assert sum("cannot be written" in line for line in console.lines) == 1
    assert len(trainers) == 3
    assert_same(fitted, fit(dataset))
    assert len(trainers) == 3  # cached for this process
    assert sorted(path.name for path in dataset.path.iterdir() if path.is_dir()) == []


def test_a_read_only_dataset_can_be_used(dataset: Dataset) -> None:
    dataset.path.chmod(0o555)
    try:
        if os.access(dataset.path, os.W_OK):
            pytest.skip("root can write everywhere")
        console = RecordingConsole()
        assert fit(dataset, console=console).network is not None
        assert sum("cannot be written" in line for line in console.lines) == 1
    finally:
        dataset.path.chmod(0o755)


def test_a_cached_policy_of_a_read_only_dataset_is_loaded(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fit(dataset)
    monkeypatch.setattr(cache, "writable_root", None)  # a call would fail
    assert_same(first, fit(dataset))


@pytest.mark.parametrize("name", ["network.safetensors", "log_b.npy", "about.json"])
def test_a_damaged_folder_is_refused(dataset: Dataset, name: str) -> None:
    fit(dataset)
    for path in (dataset.path / "logging").glob(f"*/{name}"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="remove that folder"):
        fit(dataset)


def test_a_folder_that_describes_no_log_probabilities_is_refused(dataset: Dataset) -> None:
    fit(dataset, "log_b")
    (about,) = (dataset.path / "logging").glob("*/about.json")
    about.write_text(format_json({**json.loads(about.read_text()), "arrays": {}}))
    with pytest.raises(InputError, match=r"\(about.json describes no array log_b\); remove that folder"):
        fit(dataset, "log_b")


def test_invalid_numbers_of_folds_are_refused(dataset: Dataset) -> None:
    for folds in (1, 46):
        with pytest.raises(InputError, match="between 2 and the 45 training sessions"):
            fit(dataset, "log_b", folds=folds)
    assert fit(dataset, "network", folds=1).network is not None


def test_the_console_shows_each_fit_once(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    fit(dataset, console=Console())
    lines = capsys.readouterr().err.splitlines()
    assert str(dataset.path / "logging") in lines[0]
    assert sum(line.startswith("π̂_b without fold 2  epoch") for line in lines) == 2
    assert sum("temperature" in line for line in lines) == 2
    fit(dataset, console=Console())
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fits_on_a_gpu_run_concurrently(
    dataset: Dataset, tmp_path: Path, make_dataset: Any, trainers: list[Trainer]
) -> None:
    """The cached result can be loaded on a CPU."""
    there = fit(dataset, device=torch.device("cuda"), network=replace(NETWORK, dropout=0.0))
    assert len(trainers) == 3
    assert there.log_b is not None
    assert there.log_b.is_cuda
    here = fit(dataset, network=replace(NETWORK, dropout=0.0))
    assert len(trainers) == 3
    assert here.log_b is not None
    assert torch.equal(there.log_b.cpu().nan_to_num(), here.log_b.nan_to_num())
    twin = fit(make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20), network=replace(NETWORK, dropout=0.0))
    assert twin.log_b is not None
    torch.testing.assert_close(twin.log_b.nan_to_num(), here.log_b.nan_to_num(), rtol=0.02, atol=0.02)
