"""Captured updates on a GPU: they never wait, and equal uncaptured updates."""

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.algorithms import LEARNERS
from offrec.console import Console
from offrec.errors import Interrupted
from offrec.models.network import Network
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import load
from offrec.runs.options import build_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent, build_task, train, train_many
from offrec.training import checkpoint
from offrec.training import loop as training
from offrec.training.loop import Trainer

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="captures CUDA graphs: needs a GPU"),
    pytest.mark.usefixtures("quick_logging_policy"),
]

QUIET = Console(quiet=True)
SMALL = {
    "network.width": 32,
    "network.history": 10,
    "network.dropout": 0.0,
    "training.batch_size": 64,
    "training.epochs": 3,
    "training.patience": 9,
    "training.learning_rate": 0.01,
    "device": "cuda",
    "diagnostics": "some",
}
BACKBONES = ["gru", "cfn", "caser", "nextitnet", "sasrec"]
TABLES = [*((backbone, "full") for backbone in BACKBONES), ("gru", "rowwise")]
LEARNERS: dict[str, dict[str, Any]] = {name: {"algorithm.name": name} for name in LEARNERS}
LEARNERS |= {
    "sr adaptive": {"algorithm.name": "sr", "algorithm.adaptive": True, "algorithm.epsilon": 0.0},
    "dc gumbel": {"algorithm.name": "dc", "algorithm.expectation": "gumbel", "critic.ground_draw": "logging"},
    "dqn periodic": {"algorithm.name": "dqn", "critic.target": "periodic", "critic.target_every": 7},
    "re popular": {"algorithm.name": "re", "critic.ground_draw": "popular", "critic.backbone": "sasrec"},
    "dc bf16": {"algorithm.name": "dc", "training.precision": "bf16"},
}
# Whatever moves besides the optimiser: a multiplier, soft and periodic targets, noise, draws from π̂_b.
MOVING = ("sr adaptive", "dc gumbel", "dqn periodic")


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    random = np.random.default_rng(0)
    sessions = [[(int(s) + 3 * t) % 500 for t in range(random.integers(2, 20))] for s in random.integers(0, 500, 800)]
    return make_dataset(tmp_path, sessions, splits=(700, 50, 50), items=500)


@pytest.fixture
def even(tmp_path: Path, make_dataset: Any) -> Any:
    """Sessions of equal length, so that all batches have one size, which is soon captured."""
    sessions = [[(start + 3 * step) % 500 for step in range(8)] for start in range(500)]
    return make_dataset(tmp_path, sessions, splits=(400, 50, 50), items=500)


def made(dataset: Any, folder: Path, **more: Any) -> Trainer:
    options = build_options({**SMALL, **more})
    device = torch.device("cuda")
    plan = plan_run(SharedData(dataset), options, device)
    torch.manual_seed(0)  # the same π̂_b in every call
    prior = Network(dataset.n_items, options.network).to(device) if plan.logging else None
    log_b = torch.full((dataset.sessions.events,), -3.0, device=device)
    whole = build_task(plan, NetworkPolicy("run", build_agent(plan, prior, log_b), dataset.vocabulary, device))
    folder.mkdir()
    return Trainer(whole, options.training, folder, {}, options.seed, QUIET)


@contextmanager
def no_waiting() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("backbone", "table_state"), TABLES)
@pytest.mark.parametrize("capture", ["on", "off"])
def test_no_update_waits_for_the_host(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str, table_state: str, capture: str
) -> None:
    monkeypatch.setattr(training, "READ_EVERY", 10**9)
    more = {"network.backbone": backbone, "training.table_state": table_state, "training.capture": capture}
    trainer = made(dataset, tmp_path / "run", **more, **{"network.dropout": 0.3})
    with trainer.active():
        for _ in trainer.epoch(threading.Event()):  # libraries set themselves up; some sizes are captured
            pass
        trainer.progress.epoch, trainer.progress.step, trainer.progress.sums = 1, 0, {}
        sizes = trainer.task.batches.begin(1)
        steps = trainer.epoch(threading.Event())
        with no_waiting():
            for _ in range(len(sizes) - 1):  # the last one is followed by a look
                next(steps)
        sums, fault = trainer.update.read()
    assert fault is None
    assert all(np.isfinite(total) for total in sums.values())
    assert bool(trainer.update.graphs) == (capture == "on")


def losses_of(trainer: Trainer, updates: int) -> list[dict[str, float]]:
    """Losses of the first updates, one by one. None of them waits once libraries are initialised."""
    found, before = [], dict[str, float]()
    with trainer.active():
        sizes = trainer.task.batches.begin(0)[:updates]
        assert len(set(sizes)) == 1
        trainer.task.module.train()
        trainer.update.begin(0, {})
        for number, size in enumerate(sizes):
            with no_waiting() if number > 3 else nullcontext():
                trainer.update(size)
            sums, fault = trainer.update.read()
            assert fault is None
            found.append({name: total - before.get(name, 0.0) for name, total in sums.items()})
            before = sums
    return found


@pytest.mark.parametrize("name", LEARNERS)
def test_captured_updates_of_every_learner_are_the_uncaptured_ones(even: Any, tmp_path: Path, name: str) -> None:
    """The same batches and random numbers: two uncaptured updates, one captured, then its replays."""
    found = {}
    for captured in (True, False):
        more = {**LEARNERS[name], "training.capture": "on", "training.learning_rate": 0.001}
        trainer = made(even, tmp_path / str(captured), **more)
        trainer.update.capture = captured
        found[captured] = losses_of(trainer, 12)
        assert len(trainer.update.graphs) == captured
    for one, other in zip(found[True], found[False], strict=True):
        assert one == pytest.approx(other, rel=5e-3, abs=1e-3)
    assert found[True][0] != found[True][-1]


@pytest.mark.parametrize(("backbone", "table_state"), TABLES)
def test_a_captured_run_equals_an_uncaptured_run(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str, table_state: str
) -> None:
    """In full float32: TF32 rounds differently for padded shapes."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: None)
    losses = {}
    for capture in ("on", "off"):
        flat = {**SMALL, "training.capture": capture, "training.table_state": table_state, "network.backbone": backbone}
        train_many(dataset, {capture: flat}, tmp_path, console=QUIET)
        losses[capture] = read_losses(tmp_path / capture)
    assert losses["on"] == pytest.approx(losses["off"], rel=2e-3)
    assert losses["on"][-1] < losses["on"][0]


def read_losses(folder: Path) -> list[float]:
    import json

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [value for line in lines for value in json.loads(line)["loss"].values()]


def test_every_replay_has_new_dropout(dataset: Any, tmp_path: Path) -> None:
    """With learning rate 0 the weights are constant, so only dropout changes the loss of a batch."""
    trainer = made(dataset, tmp_path / "run", **{"network.dropout": 0.5})
    found = []
    with trainer.active():
        size = trainer.task.batches.begin(0)[0]
        trainer.optimiser.rate = 0.0
        for _ in range(6):
            trainer.update.begin(0, {})
            trainer.update(size)
            found.append(trainer.update.read()[0]["cross_entropy"])
    assert len(trainer.update.graphs) == 1
    assert len(set(found)) == 6


def test_captured_updates_read_the_learning_rate(dataset: Any, tmp_path: Path) -> None:
    trainer = made(dataset, tmp_path / "run")
    weights = trainer.task.module.get_parameter("actor.items_in")
    with trainer.active():
        size = trainer.task.batches.begin(0)[0]

        def update() -> None:
            trainer.update.begin(0, {})  # the batch of this size
            trainer.update(size)

        for _ in range(4):
            update()
        assert trainer.update.graphs
        before = weights.clone()
        trainer.optimiser.rate = 0.0
        update()
        assert torch.equal(before, weights)
        trainer.optimiser.rate = 0.01
        update()
        assert not torch.equal(before, weights)


def close(one: Path, other: Path) -> None:
    first, second = (checkpoint.load(folder / "last.safetensors")[0] for folder in (one, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        if name.startswith("module."):
            torch.testing.assert_close(tensor, second[name], rtol=0.05, atol=0.02)
    assert torch.equal(first["random.cuda"], second["random.cuda"]), "as many numbers were drawn"
    assert read_losses(one) == pytest.approx(read_losses(other), rel=5e-3)


def stopped_and_resumed(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flat: dict[str, Any], after: int
) -> None:
    """Train without interruption, which also fits π̂_b, and then in two halves."""
    train_many(dataset, {"whole": flat}, tmp_path, console=QUIET)
    real, done = Trainer.steps, 0

    def steps(self: Trainer, stop: threading.Event) -> Iterator[None]:
        nonlocal done
        for _ in real(self, stop):
            done += 1
            if done == after:
                stop.set()
            yield

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "steps", steps)
        with pytest.raises(Interrupted):
            train_many(dataset, {"halves": flat}, tmp_path, console=QUIET)
    train_many(dataset, {"halves": flat}, tmp_path, resume=True, console=QUIET)
    close(tmp_path / "whole", tmp_path / "halves")


def test_resume(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = {**SMALL, "network.dropout": 0.3, "training.learning_rate": 0.002}
    stopped_and_resumed(dataset, tmp_path, monkeypatch, flat, after=150)


@pytest.mark.parametrize("name", MOVING)
def test_resume_restores_targets_multipliers_and_noise(
    even: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    flat = {**SMALL, **LEARNERS[name], "training.learning_rate": 0.001, "training.epochs": 2, "select": "last"}
    stopped_and_resumed(even, tmp_path, monkeypatch, flat, after=70)
    stored = checkpoint.load(tmp_path / "halves/last.safetensors")[0]
    moved = {"sr adaptive": "module.multiplier", "dqn periodic": "module.target.updates"}
    assert name not in moved or stored[moved[name]] not in (0, 1)


def test_interleaved_runs_equal_runs_alone(dataset: Any, tmp_path: Path) -> None:
    flat = {**SMALL, "network.dropout": 0.3, "training.learning_rate": 0.002}
    runs = {f"seed-{seed}": {**flat, "seed": seed} for seed in range(3)}
    for name, settings in runs.items():
        train_many(dataset, {name: settings}, tmp_path / "alone", console=QUIET)
    before = torch.cuda.get_rng_state()
    train_many(dataset, runs, tmp_path / "many", console=QUIET)
    assert torch.equal(before, torch.cuda.get_rng_state())
    for name in runs:
        close(tmp_path / "alone" / name, tmp_path / "many" / name)


def test_memory_stays_within_the_plan(dataset: Any, tmp_path: Path) -> None:
    """The peak does not exceed the plan, and the plan does not exceed the peak by much."""
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    trainer = made(dataset, tmp_path / "run", **{"network.width": 128})
    plan = plan_run(SharedData(dataset), build_options({**SMALL, "network.width": 128}), torch.device("cuda")).memory
    trainer.run()
    assert torch.cuda.max_memory_allocated() - base <= plan.peak + 64_000_000  # libraries' workspaces


def test_bf16(dataset: Any, tmp_path: Path) -> None:
    runs = {kind: {**SMALL, "training.precision": kind} for kind in ("float32", "bf16")}
    train_many(dataset, runs, tmp_path, console=QUIET)
    assert read_losses(tmp_path / "bf16") == pytest.approx(read_losses(tmp_path / "float32"), rel=0.03)
    stored = checkpoint.load(tmp_path / "bf16/last.safetensors")[0]
    assert stored["module.actor.items_in"].dtype == torch.float32


def test_a_learner_with_everything_trains_on_a_gpu(dataset: Any, tmp_path: Path) -> None:
    """Fit π̂_b, train, diagnose, save and load."""
    more = {"algorithm.name": "dc", "training.epochs": 2}
    policies = train_many(dataset, {"dc": {**SMALL, **more}}, tmp_path, console=QUIET)
    loaded = load(tmp_path / "dc", "cuda")
    assert loaded.recommend([105, 108], 5).items == policies["dc"].recommend([105, 108], 5).items


def test_runs_in_one_process_return_their_memory(dataset: Any, tmp_path: Path) -> None:
    """Reserved memory is the same after every run."""
    reserved = []
    for number in range(5):
        train_wide(dataset, tmp_path / f"run-{number}")
        gc.collect()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved) <= 1.02 * min(reserved) + (2 << 20), reserved


@pytest.mark.xfail(
    strict=True,
    reason="An update runs on four streams, and memory freed on one stream cannot be used by another: 1.8 to 3.2 times "
    "the peak in use is reserved. Larger size steps and expandable segments did not change it.",
)
def test_a_run_reserves_little_more_than_it_uses(dataset: Any, tmp_path: Path) -> None:
    """During a run at most 1.5 times the peak in use is reserved."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train_wide(dataset, tmp_path / "run")
    assert torch.cuda.max_memory_reserved() <= 1.5 * torch.cuda.max_memory_allocated()


def train_wide(dataset: Any, out: Path) -> None:
    settings = {"network.width": 128, "training.batch_size": 1024, "training.epochs": 4, "diagnostics": "all"}
    train(dataset, out, algorithm="dc", settings={**SMALL, **settings}, console=QUIET)
