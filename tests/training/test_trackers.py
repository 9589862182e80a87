"""Trackers, with fakes of their packages: what they receive, how runs resume, and that failures stop no training."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from offrec.commands.verify import verify
from offrec.console import Console
from offrec.errors import InputError
from offrec.runs.train import train, train_many
from offrec.training import trackers
from offrec.training.trackers import choose_trackers, flatten

FAST = {"network.width": 8, "network.history": 5, "training.epochs": 2, "training.patience": 9}


class Lines(Console):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.lines if line.startswith("Warning: the run is not tracked")]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)], splits=(30, 5, 5))


def trained(dataset: Any, out: Path, *track: str, epochs: int = 2, **options: Any) -> Lines:
    console = Lines()
    settings = {**FAST, "training.epochs": epochs}
    train(dataset, out, device="cpu", settings=settings, track=track, console=console, **options)
    return console


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    fake = ModuleType(name)
    for key, value in content.items():
        setattr(fake, key, value)
    monkeypatch.setitem(sys.modules, name, fake)


class FakeWriter:
    """SummaryWriter of TensorBoard."""

    calls: list[tuple[Any, ...]]

    def __init__(self, log_dir: str, purge_step: int | None = None) -> None:
        self.calls.append(("open", log_dir, purge_step))
        torch.rand(3)  # must not change the run

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.calls.append((tag, step, value))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    FakeWriter.calls = []
    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=FakeWriter)
    monkeypatch.setattr(trackers, "is_installed", lambda package: package == "tensorboard")
    return FakeWriter.calls


def test_tensorboard_is_used_by_default_where_it_is_installed(
    dataset: Any, tmp_path: Path, tensorboard: list[tuple[Any, ...]]
) -> None:
    out = tmp_path / "run"
    assert trained(dataset, out).warnings == []
    assert tensorboard[0] == ("open", str(out / "tensorboard"), None)
    assert tensorboard[-1] == ("close",)
    sent = {(tag, step): value for tag, step, value in tensorboard[1:-1]}
    for record in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        assert sent["validation/NDCG@10", record["epoch"]] == record["validation"]["NDCG@10"]
        assert sent["loss/cross_entropy", record["epoch"]] == record["loss"]["cross_entropy"]
        assert sent["learning_rate", record["epoch"]] == record["learning_rate"]


def test_a_tracked_run_equals_an_untracked_one(dataset: Any, tmp_path: Path, tensorboard: list[Any]) -> None:
    trained(dataset, tmp_path / "tracked")
    count = len(tensorboard)
    trained(dataset, tmp_path / "plain", "none")
    assert len(tensorboard) == count
    texts = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("tracked", "plain")]
    assert texts[0] == texts[1]


def test_tensorboard_is_not_imported_where_it_is_absent(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "is_installed", lambda package: False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # importing it would fail
    assert trained(dataset, tmp_path / "run").warnings == []
    console = trained(dataset, tmp_path / "asked", "tensorboard")
    assert len(console.warnings) == 1
    assert (tmp_path / "asked/best.safetensors").exists()


def test_a_resumed_run_continues_in_tensorboard(
    dataset: Any, tmp_path: Path, tensorboard: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_before_epoch(patch, 1)
        with pytest.raises(MemoryError):
            trained(dataset, tmp_path / "run")
    trained(dataset, tmp_path / "run", resume=True)
    opened = [call for call in tensorboard if call[0] == "open"]
    assert [purge for _, _, purge in opened] == [None, 2]
    assert [step for tag, step, *_ in filter(lambda call: call[0] == "learning_rate", tensorboard)] == [1, 2]


def stop_before_epoch(patch: pytest.MonkeyPatch, number: int) -> None:
    from offrec.training.loop import Trainer

    real = Trainer._begin_epoch

    def begin(self: Trainer) -> Any:
        if self.progress.epoch == number:
            raise MemoryError("as if killed")
        return real(self)

    patch.setattr(Trainer, "_begin_epoch", begin)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def init(**options: Any) -> Any:
        calls.append(("init", options))
        return SimpleNamespace(
            id=options["id"] or f"id{len(calls)}",
            log=lambda figures, step: calls.append(("log", step, figures)),
            finish=lambda exit_code: calls.append(("finish", exit_code)),
        )

    module(monkeypatch, "wandb", init=init)
    return calls


def test_wandb_receives_options_and_figures_and_resumes(
    dataset: Any, tmp_path: Path, wandb: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_before_epoch(patch, 1)
        with pytest.raises(MemoryError):
            trained(dataset, out, "wandb")
    trained(dataset, out, "wandb", resume=True)
    kinds = [call[0] for call in wandb]
    assert kinds == ["init", "log", "finish", "init", "log", "finish"]
    first, second = (call[1] for call in wandb if call[0] == "init")
    assert (first["project"], first["name"], first["id"], first["dir"]) == ("offrec", "run", None, str(out))
    assert first["config"]["network.width"] == 8
    assert second["id"] == "id1"  # the same run of W&B
    assert [call[1] for call in wandb if call[0] == "log"] == [1, 2]
    assert [call[1] for call in wandb if call[0] == "finish"] == [1, 0]
    assert verify(out).problems == []
    (out / "trackers.json").write_text((out / "trackers.json").read_text().replace("id1", "id2"))
    assert "trackers.json is damaged: its checksum does not match" in verify(out).problems[0]


class FakeClient:
    """MlflowClient."""

    calls: list[tuple[Any, ...]]

    def get_experiment_by_name(self, name: str) -> Any:
        return None if name == "offrec" else SimpleNamespace(experiment_id="7")

    def create_experiment(self, name: str) -> str:
        self.calls.append(("experiment", name))
        return "1"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.calls.append(("run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=f"r{len(self.calls)}"))

    def update_run(self, run: str, status: str) -> None:
        self.calls.append(("update", run, status))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.calls += [("param", *param) for param in params] + [("metric", *metric) for metric in metrics]

    def set_terminated(self, run: str, status: str) -> None:
        self.calls.append(("end", run, status))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    FakeClient.calls = []
    module(monkeypatch, "mlflow", MlflowClient=FakeClient)
    entities = {"Param": lambda key, value: (key, value), "Metric": lambda *parts: parts}
    module(monkeypatch, "mlflow.entities", **entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return FakeClient.calls


def test_mlflow_receives_options_and_figures(dataset: Any, tmp_path: Path, mlflow: list[tuple[Any, ...]]) -> None:
    trained(dataset, tmp_path / "run", "mlflow")
    assert mlflow[:2] == [("experiment", "offrec"), ("run", "1", "run")]
    assert ("param", "network.width", "8") in mlflow
    metrics = {(name, step): value for kind, name, value, _, step in filter(lambda c: c[0] == "metric", mlflow)}
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["validation/NDCG_at_10", 2] == last["validation"]["NDCG@10"]
    assert mlflow[-1] == ("end", "r2", "FINISHED")


def test_seeds_are_tracked_as_runs_of_their_own(
    dataset: Any, tmp_path: Path, mlflow: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "shop")
    runs = {f"seed-{seed}": {**FAST, "seed": seed, "device": "cpu"} for seed in (0, 1)}
    train_many(dataset, runs, tmp_path, track=["mlflow"], console=Console(quiet=True))
    assert [call[1:] for call in mlflow if call[0] == "run"] == [("7", "seed-0"), ("7", "seed-1")]
    assert [call[2] for call in mlflow if call[0] == "end"] == ["FINISHED", "FINISHED"]


@pytest.mark.parametrize("failure", ["absent", "init", "log", "finish"])
def test_a_tracker_that_fails_stops_no_training_and_warns_once(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no network\nand more")

    run = SimpleNamespace(id="one", log=lambda figures, step: None, finish=lambda exit_code: None)
    setattr(run, failure, fail)
    module(monkeypatch, "wandb", init=fail if failure == "init" else lambda **options: run)
    if failure == "absent":
        monkeypatch.setitem(sys.modules, "wandb", None)
    console = trained(dataset, tmp_path / "run", "wandb")
    reason = "wandb is not installed" if failure == "absent" else "no network"
    (warning,) = console.warnings
    assert warning.startswith(
        f"Warning: the run is not tracked by wandb ({reason}); metrics.jsonl contains all figures"
    )
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2


def test_unknown_trackers_are_refused_before_training(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be one of auto, tensorboard, wandb, mlflow, none; got 'neptune'"):
        trained(dataset, tmp_path / "run", "neptune")
    with pytest.raises(InputError, match="--track none cannot be combined"):
        choose_trackers(["none", "wandb"])
    assert not (tmp_path / "run").exists()


def test_only_numbers_are_sent() -> None:
    record = {"epoch": 3, "loss": {"sl": 1}, "warnings": {"rare": "text"}, "best_epoch": 2, "stopped_early": True}
    assert flatten(record) == {"loss/sl": 1.0, "best_epoch": 2.0}
