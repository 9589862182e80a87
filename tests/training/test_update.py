"""One update calculated by hand, padded batches, diagnostics, and steps after the optimiser."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offrec.console import Console
from offrec.data.replay import Epochs
from offrec.errors import RunError
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.options import build_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent, build_task
from offrec.training.loop import Trainer, TrainingOptions
from offrec.training.optimiser import Optimiser
from offrec.training.update import Fault, TrainingTask, Update
from offrec.types import Batch, Size

CPU = torch.device("cpu")
SIZE = Size(1, 3, 1)


class Given:
    """Batches in which only rewards and weights are read."""

    def __init__(self, rewards: list[list[float]], weight: list[float]) -> None:
        self.rewards, self.weight = torch.tensor(rewards), torch.tensor(weight)

    def begin(self, epoch: int) -> Sequence[Size]:
        return [SIZE] * len(self.rewards)

    def gather(self, step: Tensor, size: Size) -> Batch:
        none, reward = torch.zeros(3, dtype=torch.long), self.rewards[step][0]
        return Batch(none[:, None], none, none, none[:, None], none, none, reward, reward, reward, self.weight)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([1.0]))
        self.frozen = nn.Parameter(torch.tensor([5.0]), requires_grad=False)
        self.register_buffer("trail", torch.zeros(1))


def made(line: Line, rewards: list[list[float]], weight: list[float]) -> tuple[Update, TrainingTask]:
    def loss(batch: Batch) -> dict[str, Tensor]:
        return {"fit": line.slope * batch.reward, "~seen": (line.slope * batch.return_to_go).detach()}

    def after() -> None:
        with torch.no_grad():
            line.trail.copy_(line.slope)

    whole = TrainingTask(line, loss, Given(rewards, weight), lambda: {"figure": 1.0}, "figure", after=after)
    return Update(whole, Optimiser(line, 0.1), CPU, capture=True), whole


def test_an_update_by_hand() -> None:
    line = Line()
    update, _ = made(line, [[2.0, 4.0, 9.0], [1.0, 1.0, 1.0]], [0.25, 0.75, 0.0])
    update.begin(0, {})
    update(SIZE)
    assert line.slope.grad is not None
    assert line.slope.grad.item() == pytest.approx(0.25 * 2 + 0.75 * 4), "the third row has no weight"
    assert line.slope.item() == pytest.approx(0.9), "Adam's first step is the rate"
    assert line.trail.item() == line.slope.item(), "what comes after sees the step"
    assert line.frozen.item() == 5.0
    sums, fault = update.read()
    assert sums == pytest.approx({"fit": 3.5, "~seen": 3.5})
    assert fault is None
    update(SIZE)
    sums, _ = update.read()
    assert sums == pytest.approx({"fit": 3.5 + 0.9, "~seen": 3.5 + 0.9})
    update.begin(1, {"fit": 10.0, "~seen": 20.0})
    update(SIZE)
    assert update.read()[0]["~seen"] == pytest.approx(20.0 + line.trail.item() + 0.1, abs=0.02)


def test_the_first_fault_is_found_and_diagnostics_have_none() -> None:
    line = Line()
    update, _ = made(line, [[1.0, 1.0, 1.0], [1.0, torch.inf, 1.0], [torch.nan] * 3], [0.5, 0.5, 0.0])
    update.begin(0, {})
    for _ in range(3):
        update(SIZE)
    assert update.read()[1] == Fault("fit", torch.inf, 2)
    diagnostics, _ = made(Line(), [[1.0] * 3], [0.5, 0.5, 0.0])
    real = diagnostics.task.loss

    def loss(batch: Batch) -> dict[str, Tensor]:
        return {**real(batch), "~seen": batch.reward * torch.nan}

    object.__setattr__(diagnostics.task, "loss", loss)
    diagnostics.begin(0, {})
    diagnostics(SIZE)
    assert diagnostics.read()[1] is None


def test_a_loss_without_a_gradient_is_refused() -> None:
    """A term without a gradient is accepted next to a term with one."""
    line = Line()
    update, _ = made(line, [[1.0, 1.0, 1.0]] * 2, [0.5, 0.5, 0.0])
    real = update.task.loss
    object.__setattr__(update.task, "loss", lambda batch: {**real(batch), "fixed": batch.reward})
    update.begin(0, {})
    update(SIZE)
    assert line.slope.item() == pytest.approx(0.9)
    line.slope.requires_grad_(False)
    with pytest.raises(RuntimeError, match="no loss term requires a gradient: fit, ~seen, fixed"):
        update(SIZE)
    assert (line.slope.item(), update.step.item()) == (pytest.approx(0.9), 1)


def test_diagnostics_are_logged_and_resumed(tmp_path: Path) -> None:
    line = Line()
    _, whole = made(line, [[1.0, 1.0, 1.0]] * 2, [0.5, 0.5, 0.0])
    trainer = Trainer(whole, TrainingOptions(epochs=1), tmp_path, {}, 0, Console(quiet=True))
    trainer.run()
    assert '"loss": {"fit": ' in (tmp_path / "metrics.jsonl").read_text()
    assert '"~seen": ' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("backbone", ["gru", "caser", "sasrec"])
def test_padding_changes_nothing(tmp_path: Path, make_dataset: Any, backbone: str) -> None:
    """Rounded sizes on a CPU give the same gradients and losses, up to rounding."""
    sessions = [[(7 * n + 3 * t) % 20 for t in range(1 + n % 9)] for n in range(60)]
    dataset = make_dataset(tmp_path, sessions, splits=(50, 5, 5), items=20)
    flat = {"network.backbone": backbone, "network.width": 8, "network.history": 5, "network.dropout": 0}
    options = build_options({**flat, "training.batch_size": 16})
    found = []
    for filled in (False, True):
        plan = plan_run(SharedData(dataset), options, CPU)
        policy = NetworkPolicy("sl", build_agent(plan), dataset.vocabulary, CPU)
        epochs = Epochs(plan.epochs.replay, 16, 0, round_sizes=filled)
        whole = build_task(plan, policy)
        task = TrainingTask(whole.module, whole.loss, epochs, whole.validate, "x")
        update = Update(task, Optimiser(whole.module, 0.0), CPU, capture=False)
        sizes = epochs.begin(1)  # epoch 0 has another order with rounded sizes
        update.begin(0, {})
        for size in sizes[:5]:
            update(size)
        gradients = {name: p.grad.clone() for name, p in whole.module.named_parameters() if p.grad is not None}
        found.append((update.read()[0], gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=1e-4, atol=1e-6)


class Replayed:
    """Replaces a CUDA graph: a captured update is computed when it is replayed."""

    captures = 0

    def __init__(self, update: Update, size: Size) -> None:
        self.update, self.size = update, size
        Replayed.captures += 1

    def replay(self) -> None:
        self.update._update(self.size)


def test_sizes_are_captured_after_their_warm_up_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Update, "_capture_graph", lambda self, size: Replayed(self, size))
    monkeypatch.setattr("offrec.training.update.MOST_GRAPHS", 2)
    rewards = [[float(n), 1.0, 2.0] for n in range(20)]
    found = []
    for capture in (False, True):
        line = Line()
        update, _ = made(line, rewards, [0.5, 0.5, 0.0])
        update.capture, Replayed.captures = capture, 0
        update.begin(0, {})
        for number in range(20):
            update(Size(1 + number % 4, 3, 1))
        found.append((line.slope.item(), update.read()))
    assert found[0] == found[1], "each update is computed once, whether captured or not"
    assert Replayed.captures == 2
    assert list(update.graphs) == [Size(1, 3, 1), Size(2, 3, 1)]


class Refusing:
    def capture_begin(self, **_: Any) -> None:
        pass

    def capture_end(self) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_a_failed_capture_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Refusing)
    update, _ = made(Line(), [[1.0, 1.0, 1.0]], [0.5, 0.5, 0.0])

    def fail(size: Size) -> None:
        raise RuntimeError("a wait inside\nand a long story")

    monkeypatch.setattr(update, "_update", fail)
    with pytest.raises(RunError, match=r"cannot be captured \(a wait inside\); set training.capture=off"):
        update._capture_graph(SIZE)
    assert gc.isenabled()


STORY = "CUDA out of memory. Tried to allocate 402.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which …"


@pytest.mark.parametrize("captured", [False, True])
def test_out_of_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch, captured: bool) -> None:
    """During a capture, ending the capture fails too."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Refusing)
    update, _ = made(Line(), [[1.0, 1.0, 1.0]], [0.5, 0.5, 0.0])
    update.capture, update.counts[SIZE] = captured, 9

    def fail(size: Size) -> None:
        raise torch.OutOfMemoryError(STORY)

    monkeypatch.setattr(update, "_update", fail)
    said = r"^The GPU ran out of memory when an update requested 402.00 MiB more; .*training.batch_size"
    with pytest.raises(RunError, match=said):
        update(SIZE)
