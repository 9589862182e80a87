"""`train --force`: the old run stays until the training of the new one has finished."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import FAST, QUIET, trained

from offrec.data.dataset import Dataset
from offrec.errors import InputError, RunError
from offrec.runs import replacement
from offrec.runs.loading import load
from offrec.runs.replacement import MARK, replacement_folder
from offrec.runs.train import train_many
from offrec.training.loop import Trainer


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and "tensorboard" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the next trainings fail after their first epoch, until the returned function is called."""
    end_epoch = Trainer._end_epoch

    def fail(self: Trainer) -> None:
        if self.progress.epoch == 1:
            raise RunError("the loss became NaN")
        end_epoch(self)

    monkeypatch.setattr(Trainer, "_end_epoch", fail)
    return lambda: monkeypatch.setattr(Trainer, "_end_epoch", end_epoch)


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)], splits=(30, 5, 5))


SETTINGS = {"training.epochs": 3}


def test_a_failed_training_leaves_the_old_run_and_can_be_resumed(
    dataset: Dataset, tmp_path: Path, failing: Callable[[], None]
) -> None:
    out = tmp_path / "run"
    trained(dataset, out)
    before = content(out)
    with pytest.raises(RunError):
        trained(dataset, out, seed=1, settings=SETTINGS, force=True)
    assert content(out) == before
    assert load(out, "cpu").recommend([], 3).items
    with pytest.raises(InputError, match=r"was started with seed = 1, not 2"):
        trained(dataset, out, seed=2, settings=SETTINGS, resume=True)
    failing()
    trained(dataset, out, seed=1, settings=SETTINGS, resume=True)
    trained(dataset, tmp_path / "alone", seed=1, settings=SETTINGS)
    weights = content(tmp_path / "alone")["best.safetensors"]
    assert content(out)["best.safetensors"] == weights != before["best.safetensors"]
    assert not replacement_folder(out).exists()
    assert not (out / MARK).exists()


def test_another_force_discards_an_unfinished_replacement(
    dataset: Dataset, tmp_path: Path, failing: Callable[[], None]
) -> None:
    out = tmp_path / "run"
    trained(dataset, out)
    with pytest.raises(RunError):
        trained(dataset, out, seed=1, settings=SETTINGS, force=True)
    failing()
    trained(dataset, out, seed=2, force=True)
    trained(dataset, out, seed=2, resume=True)  # the finished run, not the replacement of seed 1
    assert not replacement_folder(out).exists()


def test_a_replacement_of_a_removed_run_is_not_resumed_later(
    dataset: Dataset, tmp_path: Path, failing: Callable[[], None]
) -> None:
    out = tmp_path / "run"
    trained(dataset, out)
    with pytest.raises(RunError):
        trained(dataset, out, seed=1, settings=SETTINGS, force=True)
    failing()
    out.rename(tmp_path / "moved")
    trained(dataset, out, seed=2)
    trained(dataset, out, seed=2, resume=True)


@pytest.mark.parametrize("step", ["exchange_folders", "shutil.rmtree"])
def test_a_kill_during_the_exchange_leaves_one_whole_run(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    out = tmp_path / "run"
    trained(dataset, out)

    def kill(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"{replacement.__name__}.{step}", kill)
        with pytest.raises(KeyboardInterrupt):
            trained(dataset, out, seed=1, force=True)
    assert load(out, "cpu").recommend([], 3).items
    trained(dataset, out, seed=1, resume=True)
    assert not replacement_folder(out).exists()
    assert not (out / MARK).exists()
    assert load(out, "cpu").recommend([], 3).items


def test_each_of_several_runs_is_replaced_when_it_has_finished(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {f"seed-{seed}": {**FAST, "device": "cpu", "seed": seed} for seed in (0, 1)}
    train_many(dataset, runs, tmp_path, console=QUIET)
    before = {name: content(tmp_path / name) for name in runs}
    end_epoch = Trainer._end_epoch

    def fail(self: Trainer) -> None:
        if self.folder == replacement_folder(tmp_path / "seed-1"):
            raise RunError("the loss became NaN")
        end_epoch(self)

    monkeypatch.setattr(Trainer, "_end_epoch", fail)
    slower = {name: {**settings, "training.learning_rate": 0.001} for name, settings in runs.items()}
    assert list(train_many(dataset, slower, tmp_path, force=True, console=QUIET)) == ["seed-0"]
    assert content(tmp_path / "seed-0") != before["seed-0"]
    assert content(tmp_path / "seed-1") == before["seed-1"]
