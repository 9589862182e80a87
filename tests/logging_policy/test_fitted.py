"""π̂_b is fitted once, kept whole, found again; and no session's own events shape its values."""

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
from offrec.errors import InputError, Interrupted
from offrec.logging_policy import LoggingPolicy, cache, fitting, load_or_fit
from offrec.logging_policy.cache import FitSpec
from offrec.models.network import NetworkOptions
from offrec.training.loop import Trainer, TrainingOptions
from offrec.training.update import Update

CPU = torch.device("cpu")
NETWORK = NetworkOptions(width=8, history=6, repeat="off", dropout=0.2)
TRAINING = TrainingOptions(epochs=2, batch_size=40, learning_rate=0.01, patience=99)


class Listener(Console):
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
    found: Dataset = make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20)
    return found


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """Every trainer that is made."""
    made: list[Trainer] = []

    class Counted(Trainer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(fitting, "Trainer", Counted)
    return made


def fit(dataset: Dataset, need: Any = "both", **changes: Any) -> LoggingPolicy:
    given = {"network": NETWORK, "training": TRAINING, "seed": 0, "device": CPU, "console": Listener(), **changes}
    return load_or_fit(dataset, **given, need=need)


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


def left(dataset: Dataset) -> list[str]:
    """What lies in the folder for all to see, besides names of locks."""
    return sorted(path.name for path in (dataset.path / "logging").glob("[!.]*") if path.suffix != ".lock")


def test_fitted_once(dataset: Dataset, trainers: list[Trainer]) -> None:
    state = torch.get_rng_state()
    first = fit(dataset)
    assert len(trainers) == 3  # all sessions, and all but either half
    second = fit(dataset)
    assert len(trainers) == 3
    assert_same(first, second)
    assert torch.equal(state, torch.get_rng_state())
    assert len(left(dataset)) == 2


def test_what_is_there_is_not_fitted_again_for_the_sake_of_the_rest(dataset: Dataset, trainers: list[Trainer]) -> None:
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


def test_the_same_seed_gives_the_same(dataset: Dataset, tmp_path: Path, make_dataset: Any) -> None:
    twin = make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20)
    first = fit(dataset)
    torch.manual_seed(99)
    assert_same(first, fit(twin))
    other = fit(dataset, "log_b", seed=1)
    assert other.log_b is not None
    assert not torch.equal(other.log_b[:30], fit(dataset, "log_b").log_b[:30])  # type: ignore[index]


def test_it_comes_held_fixed_and_on_train_events_only(dataset: Dataset) -> None:
    found = fit(dataset)
    assert found.network is not None
    assert found.log_b is not None
    assert not found.network.training
    assert not any(parameter.requires_grad for parameter in found.network.parameters())
    assert found.network.options == NETWORK
    train = dataset.split("train")
    inside = torch.zeros(len(dataset.sessions.items), dtype=torch.bool)
    inside[int(train.offsets[0]) : int(train.offsets[-1])] = True
    assert found.log_b.dtype == torch.float32
    assert torch.equal(found.log_b.isfinite(), inside)
    assert torch.equal(found.log_b.isnan(), ~inside)
    assert (found.log_b[inside] < 0).all()
    assert found.calibration["log_b.events"] == inside.sum()
    assert found.calibration["log_b.log_likelihood"] == pytest.approx(float(found.log_b[inside].mean()), rel=1e-5)


def test_the_epoch_is_chosen_by_likelihood(dataset: Dataset) -> None:
    """The network kept is the one whose validation likelihood stands highest in its figures, and it has it."""
    found = fit(dataset, "network", training=replace(TRAINING, epochs=25, learning_rate=0.1))
    (folder,) = (dataset.path / "logging").glob("*/")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = [row["validation"]["log-likelihood"] for row in rows]
    assert int(np.argmax(figures)) < 24  # or choosing would be no choice
    assert found.calibration["network.log_likelihood"] == pytest.approx(max(figures), rel=1e-5)


def test_patience_runs_out(dataset: Dataset) -> None:
    """A margin is a share of the best figure. Of a log-likelihood, below 0, it would let the worse pass for better."""
    fit(dataset, "network", training=replace(TRAINING, epochs=30, warmup=0, patience=2, margin=9.0))
    (folder,) = (dataset.path / "logging").glob("*/")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


# --- whose events shape what ------------------------------------------------------------------------------------------


def test_no_session_shapes_its_own_values(tmp_path: Path, make_dataset: Any) -> None:
    """A session like no other: likely to the network that saw it, unlikely to those that did not."""
    unique = [20, 21, 22, 23, 24, 25]
    common = [[0, 1, 2, 3]] * 30 + [[4, 5, 6, 7]] * 30
    dataset = make_dataset(tmp_path, [*common, unique, unique, [0, 1], [0, 1]], splits=(61, 2, 1), items=100)
    training = TrainingOptions(epochs=60, batch_size=64, learning_rate=0.02, patience=99, warmup=0, decay=1.0)
    found = fit(dataset, network=replace(NETWORK, width=16, dropout=0.0), training=training)
    assert found.network is not None
    assert found.log_b is not None
    start = 60 * 4
    (batch,) = fitting._replay(dataset, dataset.split("train"), 6, "exact", CPU).batches(10_000)
    seen = torch.zeros(len(found.log_b))
    seen[batch.event] = log_prob(found.network(batch), batch.action[:, None])[:, 0]
    own = slice(start + 1, start + 6)  # not its first item: nothing tells it from any other's
    assert (seen[own].exp() > 0.5).all()
    assert (found.log_b[own].exp() < 0.03).all()  # about chance
    assert (found.log_b[1:4].exp() > 0.5).all()  # a common one is known to every network


def test_values_do_not_know_what_is_left_out_with_them(tmp_path: Path, make_dataset: Any) -> None:
    """Change a session: bit for bit nothing moves among the others of its fold, and much elsewhere."""
    sessions = log()
    sessions[0] = [1, 4, 7, 10]
    changed = [[5, 5, 5, 5], *sessions[1:]]
    one, other = (make_dataset(tmp_path, each, splits=(45, 10, 5), items=20) for each in (sessions, changed))
    before, after = (fit(each, "log_b", folds=3).log_b for each in (one, other))
    assert before is not None
    assert after is not None
    fold = fitting._folds(45, 3, 0)
    of = np.repeat(fold, np.diff(one.split("train").offsets))
    mine, theirs = np.flatnonzero(of == fold[0])[4:], np.flatnonzero(of != fold[0])
    assert (fold == fold[0]).sum() == 15
    assert torch.equal(before[mine], after[mine])
    assert (before[theirs] != after[theirs]).float().mean() > 0.9


@pytest.mark.parametrize("encode", ["sessions", "windows"])
def test_folds_cut_between_sessions(dataset: Dataset, encode: Any) -> None:
    train = dataset.split("train")
    replay = fitting._replay(dataset, train, 3, encode, CPU)
    fold = fitting._folds(len(train), 2, 0)
    of = fold[fitting._session(train, replay.segments.begin)]
    parts = [fitting._part(replay, np.flatnonzero(of == k)) for k in range(2)]
    events = [torch.cat([batch.event for batch in part.batches(16)]).numpy() for part in parts]
    by_event = np.repeat(fold, np.diff(train.offsets))
    for k in range(2):
        assert sorted(events[k]) == np.flatnonzero(by_event == k).tolist()


# --- the key ----------------------------------------------------------------------------------------------------------


def keys(dataset: Dataset, network: Any = NETWORK, training: Any = TRAINING, seed: int = 0, folds: int = 2) -> set[str]:
    spec = FitSpec(dataset, network, training, seed, folds)
    return {spec.folder(Path(), part).name for part in ("network", "log_b")}


def test_the_key_is_what_matters(dataset: Dataset) -> None:
    base = keys(dataset)
    assert len(base) == 2
    matter = [
        {"seed": 1},
        {"network": replace(NETWORK, width=16)},
        {"network": replace(NETWORK, backbone="sasrec")},
        *({"training": replace(TRAINING, **change)} for change in (
            {"epochs": 3}, {"batch_size": None}, {"encode": "windows"}, {"learning_rate": 0.1}, {"precision": "bf16"},
        )),
    ]  # fmt: skip
    for change in matter:
        assert not base & keys(dataset, **change), change
    free = [
        {"training": replace(TRAINING, capture="off")},
        {"training": replace(TRAINING, memory_check=False)},
        {"network": replace(NETWORK, heads=4)},  # of attention: a GRU has none
        {"network": replace(NETWORK, window=3)},
        {"network": replace(NETWORK, repeat_state=False)},  # there is no repeat term
    ]
    for change in free:
        assert base == keys(dataset, **change), change
    assert base == keys(dataset.with_protocol(score_first=False))
    assert len(base & keys(dataset, folds=3)) == 1  # the network is the same
    assert not base & keys(replace(dataset, meta={**dataset.meta, "data_hash": "another"}))


def test_about_says_what_it_is(dataset: Dataset) -> None:
    fit(dataset)
    spec = FitSpec(dataset, NETWORK, TRAINING, 0, 2)
    for part in ("network", "log_b"):
        about = json.loads((spec.folder(dataset.path / "logging", part) / "about.json").read_text())  # type: ignore[arg-type]
        assert about.pop("calibration")["events"] > 0
        assert about == json.loads(json.dumps(spec.describe(part)))  # type: ignore[arg-type]


# --- whole or not there -----------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import torch
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.logging_policy import load_or_fit
from offrec.models.network import NetworkOptions
from offrec.training.loop import TrainingOptions
from offrec.training.update import Update

real, left = Update.__call__, [int(sys.argv[2])]

def update(self, size):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, size)

Update.__call__ = update
network = NetworkOptions(width=8, history=6, repeat="off", dropout=0.2)
training = TrainingOptions(epochs=2, batch_size=40, learning_rate=0.01, patience=99)
found = load_or_fit(Dataset.open(sys.argv[1]), network, training, 0, torch.device("cpu"), Console(), need="both")
print(float(found.network.items_in.sum()), float(found.log_b.nansum()))
"""


def process(dataset: Dataset, killed_at: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, str(dataset.path), str(killed_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_fit_once(dataset: Dataset) -> None:
    """Both are held at the door until both wait there."""
    root = cache.writable_root(dataset.path / "logging", Listener())
    folders = sorted(FitSpec(dataset, NETWORK, TRAINING, 0, 2).folder(root, part) for part in ("network", "log_b"))
    said: list[str] = []
    with cache.fit_lock(folders[0], Listener()):
        both = [process(dataset), process(dataset)]
        for each in both:
            assert each.stderr is not None
            said.append(each.stderr.readline())
        assert all("another process is fitting" in line for line in said)
        assert not any(cache.is_complete(folder) for folder in folders)
    ends = [each.communicate(timeout=60) for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert ends[0][0] == ends[1][0] != ""
    assert sorted("fitting π̂_b" in err for _, err in ends) == [False, True]
    here = fit(dataset)
    assert here.network is not None
    assert float(ends[0][0].split()[0]) == pytest.approx(float(here.network.items_in.sum()))


def test_killed_half_way(dataset: Dataset, tmp_path: Path, make_dataset: Any, trainers: list[Trainer]) -> None:
    dead = process(dataset, killed_at=30)  # in the second network of three
    dead.communicate(timeout=60)
    assert dead.returncode == -signal.SIGKILL
    partial = list((dataset.path / "logging").glob(".*.partial"))
    assert len(partial) == 2
    (partial[0] / "half of something").write_text("")
    assert left(dataset) == []
    started = time.monotonic()
    found = fit(dataset)
    assert time.monotonic() - started < 30  # nobody waits for a lock of the dead
    assert len(trainers) == 3
    assert list((dataset.path / "logging").glob(".*")) == []
    assert list((dataset.path / "logging").glob("*/half*")) == []
    assert_same(found, fit(make_dataset(tmp_path, log(), splits=(45, 10, 5), items=20)))


@pytest.mark.parametrize("stop", [1, 25])
def test_an_interrupt_goes_through_and_leaves_nothing(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
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
    assert left(dataset) == []
    assert list((dataset.path / "logging").glob(".*")) == []
    assert fit(dataset).network is not None


def test_a_failure_goes_through_and_leaves_nothing(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("as if")

    with monkeypatch.context() as patch:
        patch.setattr(fitting.calibration, "event_probabilities", broken)
        with pytest.raises(MemoryError):
            fit(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", broken)
        with pytest.raises(MemoryError):
            fit(dataset)
    assert left(dataset) == []
    assert list((dataset.path / "logging").glob(".*")) == []


def test_a_folder_that_cannot_be_written(
    dataset: Dataset, tmp_path: Path, make_dataset: Any, trainers: list[Trainer]
) -> None:
    """A file in its place stands in the way of root, too."""
    (dataset.path / "logging").write_text("")
    console = Listener()
    found = fit(dataset, console=console)
    assert sum("cannot be written" in line for line in console.lines) == 1
    assert len(trainers) == 3
    assert_same(found, fit(dataset))
    assert len(trainers) == 3  # within the process it is found again
    assert sorted(path.name for path in dataset.path.iterdir() if path.is_dir()) == []


def test_a_read_only_dataset(dataset: Dataset) -> None:
    dataset.path.chmod(0o555)
    try:
        if os.access(dataset.path, os.W_OK):
            pytest.skip("root writes anywhere")
        console = Listener()
        assert fit(dataset, console=console).network is not None
        assert sum("cannot be written" in line for line in console.lines) == 1
    finally:
        dataset.path.chmod(0o755)


def test_a_read_only_dataset_with_one_is_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fit(dataset)
    monkeypatch.setattr(cache, "writable_root", None)  # calling it fails
    assert_same(first, fit(dataset))


@pytest.mark.parametrize("name", ["network.safetensors", "log_b.npy", "about.json"])
def test_a_damaged_one_is_refused(dataset: Dataset, name: str) -> None:
    fit(dataset)
    for path in (dataset.path / "logging").glob(f"*/{name}"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="remove that folder"):
        fit(dataset)


def test_folds_must_be_possible(dataset: Dataset) -> None:
    for folds in (1, 46):
        with pytest.raises(InputError, match="45 training sessions"):
            fit(dataset, "log_b", folds=folds)
    assert fit(dataset, "network", folds=1).network is not None


def test_what_a_person_sees(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    fit(dataset, console=Console())
    said = capsys.readouterr().err.splitlines()
    assert "not there yet" in said[0]
    assert str(dataset.path / "logging") in said[0]
    assert sum(line.startswith("π̂_b without fold 2  epoch") for line in said) == 2
    assert sum("temperature" in line for line in said) == 2
    fit(dataset, console=Console())
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(dataset: Dataset, tmp_path: Path, make_dataset: Any, trainers: list[Trainer]) -> None:
    """All at once, captured; what it leaves is read on a CPU."""
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
