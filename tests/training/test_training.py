"""Exact resume, clean stops and refusals. After a resume every tensor is equal, not just close."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.console import Console
from offrec.errors import InputError, Interrupted, RunError
from offrec.runs.loading import load, open_dataset
from offrec.runs.train import train
from offrec.training import checkpoint
from offrec.training.update import Update

QUIET = Console(quiet=True)
SMALL = {
    "network.width": 16,
    "network.history": 6,
    "network.dropout": 0.4,
    "training.batch_size": 40,
    "training.epochs": 3,
    "training.patience": 9,
    "training.learning_rate": 0.01,
}


def log(seed: int = 0, sessions: int = 120) -> list[list[int]]:
    random = np.random.default_rng(seed)
    starts = random.integers(0, 20, sessions)
    return [[(int(start) + step * 3) % 20 for step in range(random.integers(2, 12))] for start in starts]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, log(), splits=(90, 15, 15))


def trained(dataset: Any, out: Path, backbone: str = "gru", **options: Any) -> Any:
    settings = {**SMALL, **options.pop("settings", {})}
    more = {"backbone": backbone, "device": "cpu", "settings": settings, "console": QUIET}  # bit for bit: on a CPU
    return train(dataset, out, **more, **options)


def tensors(run: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return checkpoint.load(run / f"{name}.safetensors")[0]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Send Ctrl-C during update number `steps`."""
    real, done = Update.__call__, 0

    def update(self: Update, size: Any) -> None:
        nonlocal done
        done += 1
        if done == steps:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, size)

    monkeypatch.setattr(Update, "__call__", update)


@pytest.mark.parametrize("stop", [1, 7, 13, 20, 27])
def test_resume_is_exact(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    trained(dataset, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Interrupted):
            trained(dataset, tmp_path / "halves")
    trained(dataset, tmp_path / "halves", resume=True)
    assert_same(tensors(tmp_path / "whole"), tensors(tmp_path / "halves"))
    assert_same(tensors(tmp_path / "whole", "best"), tensors(tmp_path / "halves", "best"))
    lines = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", "halves")]
    assert lines[0] == lines[1]


def test_resume_after_a_crash_repeats_from_the_last_checkpoint(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(dataset, tmp_path / "whole")
    real, done = Update.__call__, 0

    def crash(self: Update, size: Any) -> None:
        nonlocal done
        done += 1
        if done == 17:
            raise MemoryError("as if killed")
        real(self, size)

    with monkeypatch.context() as patch:
        patch.setattr(Update, "__call__", crash)
        with pytest.raises(MemoryError):
            trained(dataset, tmp_path / "crashed")
    with (tmp_path / "crashed" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "half": ')  # a line the crash cut off
    trained(dataset, tmp_path / "crashed", resume=True)
    assert_same(tensors(tmp_path / "whole"), tensors(tmp_path / "crashed"))
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "crashed/metrics.jsonl").read_text()


def test_resume_is_not_trivially_equal(dataset: Any, tmp_path: Path) -> None:
    """Another seed gives other weights, so the equality above is meaningful."""
    for seed in (0, 1):
        trained(dataset, tmp_path / str(seed), seed=seed)
    one, other = (tensors(tmp_path / str(seed))["module.actor.items_in"] for seed in (0, 1))
    assert not torch.equal(one, other)


def test_the_same_seed_gives_the_same_run_and_leaves_the_global_generator_alone(dataset: Any, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    trained(dataset, tmp_path / "one")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(123)
    trained(dataset, tmp_path / "two")
    assert_same(tensors(tmp_path / "one"), tensors(tmp_path / "two"))


def test_best_is_the_best_epoch_and_early_stopping_stops(dataset: Any, tmp_path: Path) -> None:
    settings = {"training.epochs": 40, "training.patience": 2, "training.warmup": 0, "training.learning_rate": 0.05}
    policy = trained(dataset, tmp_path / "run", settings=settings)
    epochs = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    figures = [epoch["validation"]["NDCG@10"] for epoch in epochs]
    assert len(epochs) < 40
    assert [epoch.get("stopped_early") for epoch in epochs] == [*[None] * (len(epochs) - 1), True]
    assert epochs[-1]["best_epoch"] == int(np.argmax(figures)) + 1
    assert checkpoint.load(tmp_path / "run/best.safetensors")[1]["progress"]["best_epoch"] == int(np.argmax(figures))
    from offrec.evaluation import ranks

    assert ranks(policy, dataset, "validation").metrics((10,))["NDCG@10"] == pytest.approx(max(figures))
    rates = [epoch["learning_rate"] for epoch in epochs]
    assert rates[0] == 0.05
    assert rates[-1] < 0.05


def test_margin_and_warmup(dataset: Any, tmp_path: Path) -> None:
    """With a margin that no epoch exceeds, training stops after `patience` epochs, but not before the warm-up ends."""
    epochs = {}
    for warmup in (0, 70):
        settings = {"training.epochs": 30, "training.patience": 2, "training.margin": 9.0, "training.warmup": warmup}
        trained(dataset, tmp_path / str(warmup), settings=settings)
        lines = (tmp_path / str(warmup) / "metrics.jsonl").read_text().splitlines()
        epochs[warmup] = [json.loads(line) for line in lines]
    assert len(epochs[0]) == 3, "the first epoch is always better than none"
    updates = checkpoint.load(tmp_path / "70/last.safetensors")[1]["progress"]["updates"]
    an_epoch = updates / len(epochs[70])
    assert len(epochs[70]) == 70 // an_epoch + 2
    figures = [epoch["validation"]["NDCG@10"] for epoch in epochs[0]]
    assert figures[2] > figures[0], "it did get better, by less than the margin"
    assert [epoch["learning_rate"] for epoch in epochs[0]] == pytest.approx([0.01, 0.01, 0.003])


def test_a_linear_schedule_ends_at_zero(dataset: Any, tmp_path: Path) -> None:
    """The rate of each epoch does not depend on validation."""
    settings = {"training.epochs": 4, "training.schedule": "linear", "training.patience": 99}
    trained(dataset, tmp_path / "run", settings=settings)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["learning_rate"] for line in lines] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])


def test_a_loss_that_is_not_finite_says_where(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = Update.__call__, 0

    def poison(self: Update, size: Any) -> None:
        nonlocal done
        done += 1
        real(self, size)
        if done == 5:
            with torch.no_grad():
                next(self.task.module.parameters()).fill_(float("nan"))

    monkeypatch.setattr(Update, "__call__", poison)
    with pytest.raises(RunError, match=r"'cross_entropy' became nan in epoch 1, step 6; lower training.learning_rate"):
        trained(dataset, tmp_path / "run")


def test_another_dataset_or_other_options_are_refused(dataset: Any, tmp_path: Path, make_dataset: Any) -> None:
    trained(dataset, tmp_path / "run")
    other = make_dataset(tmp_path, log(1), splits=(90, 15, 15))
    other.meta["data_hash"] = "another"
    with pytest.raises(InputError, match="trained on a different dataset"):
        trained(other, tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"started with network.width = 16, not 32"):
        trained(dataset, tmp_path / "run", resume=True, settings={"network.width": 32})
    with pytest.raises(InputError, match="exists; choose another --out, --resume to continue it"):
        trained(dataset, tmp_path / "run")


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "gone"])
def test_a_damaged_checkpoint_is_refused(dataset: Any, tmp_path: Path, damage: str) -> None:
    trained(dataset, tmp_path / "run", settings={"training.epochs": 1})
    path = tmp_path / "run/best.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "flip":
        content[-5] ^= 64
        path.write_bytes(content)
    elif damage == "text":
        path.write_text("not a checkpoint")
    else:
        path.unlink()
    with pytest.raises(InputError, match=r"best\.safetensors (is damaged|does not exist)"):
        load(tmp_path / "run")


def test_a_saved_run_is_loaded_unchanged(dataset: Any, tmp_path: Path) -> None:
    policy = trained(dataset, tmp_path / "run")
    loaded = load(tmp_path / "run", "cpu")
    assert policy.recommend([103, 106], 5) == loaded.recommend([103, 106], 5)
    moved = (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert load(moved, "cpu").recommend([103, 106], 5) == policy.recommend([103, 106], 5)


def test_the_dataset_of_a_run(dataset: Any, tmp_path: Path, make_dataset: Any) -> None:
    trained(dataset, tmp_path / "run", settings={"training.epochs": 1})
    assert open_dataset(tmp_path / "run").path == dataset.path.resolve()
    moved = dataset.path.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="--dataset"):
        open_dataset(tmp_path / "run")
    assert open_dataset(tmp_path / "run", moved).path == moved
    other = make_dataset(tmp_path, log(1), splits=(89, 16, 15)).path
    with pytest.raises(InputError, match="was trained on a different dataset"):
        open_dataset(tmp_path / "run", other)


def test_implementations_and_precisions_agree(dataset: Any, tmp_path: Path) -> None:
    """All implementations give the same run; bfloat16 gives nearly the same, with float32 weights."""
    more: dict[str, dict[str, Any]] = {
        "tiled": {"catalogue": "tiled"},
        "reference": {"catalogue": "reference"},
        "bf16": {"training.precision": "bf16"},
    }
    losses = {}
    for name, settings in more.items():
        trained(dataset, tmp_path / name, settings=settings)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses[name] = [json.loads(line)["loss"]["cross_entropy"] for line in lines]
        assert tensors(tmp_path / name)["module.actor.items_in"].dtype == torch.float32
    assert losses["reference"] == pytest.approx(losses["tiled"], rel=1e-4)
    assert losses["bf16"] == pytest.approx(losses["tiled"], rel=0.03)
    assert losses["bf16"] != losses["tiled"]
    with pytest.raises(InputError, match="catalogue must be one of auto, reference, tiled, kernels; got 'magic'"):
        trained(dataset, tmp_path / "magic", settings={"catalogue": "magic"})


@pytest.mark.parametrize("stop", [7, 20])
def test_background_saving_writes_the_same_checkpoint(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """As on a GPU: tensors change while their old values are being written slowly."""
    trained(dataset, tmp_path / "whole")
    real, slow = checkpoint.Saver, checkpoint.save
    monkeypatch.setattr(checkpoint, "Saver", lambda background: real(True))
    monkeypatch.setattr(checkpoint, "save", lambda *given: (time.sleep(0.05), slow(*given)))
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Interrupted):
            trained(dataset, tmp_path / "halves")
    trained(dataset, tmp_path / "halves", resume=True)
    for name in ("last", "best"):
        assert_same(tensors(tmp_path / "whole", name), tensors(tmp_path / "halves", name))


def test_a_full_disk_is_noticed_in_the_background_too(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.Saver

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "Saver", lambda background: real(True))
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(OSError, match="no space left"):
        trained(dataset, tmp_path / "run")


def test_device_and_precision_options_may_change_on_resume(dataset: Any, tmp_path: Path) -> None:
    trained(dataset, tmp_path / "run")
    before = tensors(tmp_path / "run")
    settings = {"catalogue": "reference", "training.memory_check": False, "training.capture": "off"}
    policy = trained(dataset, tmp_path / "run", resume=True, settings=settings)
    assert_same(before, tensors(tmp_path / "run"))
    assert_same(tensors(tmp_path / "run", "best"), {f"module.{k}": v for k, v in policy.agent.state_dict().items()})


def test_an_interrupted_start_leaves_no_partial_run(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("offrec.runs.folder.np.save", fail)
        with pytest.raises(KeyboardInterrupt):
            trained(dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    trained(dataset, tmp_path / "run", settings={"training.epochs": 1})


class Lines(Console):
    """A console that stores its messages."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(("select", "word"), [("ndcg", "at most"), ("last", "about")])
def test_epochs_show_the_time_left(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: str, word: str
) -> None:
    monkeypatch.setattr("offrec.training.loop.SHORT_SECONDS", 1e-9)
    console = Lines()
    train(dataset, tmp_path / "run", device="cpu", settings={**SMALL, "select": select}, console=console)
    epochs = [line for line in console.lines if line.startswith("epoch")]
    assert [f"  {word} " in line and line.endswith(" left") for line in epochs] == [True, True, False]
