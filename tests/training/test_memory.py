"""The memory plan compared with the memory in use, and its refusal."""

from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.console import Console
from offrec.errors import InputError
from offrec.models.network import Network
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.options import build_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent, build_task, train, train_many
from offrec.training import memory
from offrec.training.loop import Trainer

CPU = torch.device("cpu")
QUIET = Console(quiet=True)


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)], splits=(30, 5, 5), items=5000)


@pytest.mark.parametrize("state", ["full", "rowwise"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_plan_counts_the_memory_in_use(dataset: Any, tmp_path: Path, state: str, tied: bool) -> None:
    flat = {"network.width": 32, "network.history": 3, "network.tied": tied, "training.table_state": state}
    options, shared = build_options(flat), SharedData(dataset)
    made = plan_run(shared, options, CPU)
    network = build_agent(made)
    trainer = Trainer(
        build_task(made, NetworkPolicy("sl", network, dataset.vocabulary, CPU)),
        options.training,
        tmp_path,
        {},
        0,
        QUIET,
    )
    sizes = made.epochs.begin(0)
    trainer.update.begin(0, {})
    trainer.update(sizes[0])
    held = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    gradients = sum(p.grad.nbytes for p in network.parameters() if p.grad is not None)
    state_ = trainer.optimiser.tensors()
    moments = sum(tensor.nbytes for name, tensor in state_.items() if not name.endswith(("step", "count")))
    plan = made.memory
    assert (plan.parameters, plan.gradients, plan.optimiser) == (held, gradients, moments)
    replay, scored = made.epochs.replay, made.scored_events
    tensors = [replay.items, replay.bounds, *replay.mdp, scored.replay.items, scored.replay.bounds, *scored.replay.mdp]
    kept = sum(batch.nbytes for batch in scored.cached or [])
    assert scored.cached
    assert sum(t.nbytes for t in tensors) + kept <= shared.bytes(CPU) <= sum(t.nbytes for t in tensors) + 3 * kept
    assert plan.spare == 0
    assert plan.peak == plan.parameters + plan.gradients + plan.optimiser + plan.batch


def test_frozen_weights_have_no_gradient_and_no_state() -> None:
    network = Network(50, build_options({"network.width": 8}).network)
    tables = [network.items_in]
    more = {"table_state": "full", "sizes": [memory.Size(2, 3, 4)], "width": 8, "layers": 1, "history": 50, "log": 0}
    before = memory.plan(network, tables, captured=False, **more)  # type: ignore[arg-type]
    network.items_in.requires_grad_(False)
    after = memory.plan(network, tables, captured=False, **more)  # type: ignore[arg-type]
    assert after.parameters == before.parameters
    assert before.gradients - after.gradients == 51 * 8 * 4
    assert before.optimiser - after.optimiser == 2 * 51 * 8 * 4
    captured = memory.plan(network, tables, captured=True, **more)  # type: ignore[arg-type]
    assert captured.peak == after.peak + after.gradients + after.batch + 3 * 2**25, "and a workspace on three streams"
    four = memory.plan(network, tables, captured=True, others=[(8, 1)], **more)  # type: ignore[arg-type]
    assert four.libraries == 4 * 2**25


def test_a_run_that_does_not_fit_is_refused(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"network.width": 32, "training.epochs": 1, "device": "cpu"}
    monkeypatch.setattr(memory, "free", lambda device: 40_000_000)
    with pytest.raises(InputError, match=r"\d+ MB on cpu.*40 MB.*training.table_state=rowwise"):
        train(dataset, tmp_path / "run", settings=settings, console=QUIET)
    assert not (tmp_path / "run").exists()
    whole = plan_run(SharedData(dataset), build_options(settings), CPU).memory.peak
    monkeypatch.setattr(memory, "free", lambda device: int(2.5 * whole))
    train(dataset, tmp_path / "run", settings=settings, console=QUIET)
    with pytest.raises(InputError, match="train fewer runs at once"):
        train_many(dataset, {str(n): settings for n in range(3)}, tmp_path / "many", console=QUIET)
    monkeypatch.setattr(memory, "free", lambda device: 1)
    train(dataset, tmp_path / "anyway", settings={**settings, "training.memory_check": False}, console=QUIET)


def test_free_memory_is_a_sensible_number() -> None:
    assert 10_000_000 < memory.free(CPU) < 1 << 60


def test_sizes_are_readable() -> None:
    assert [memory.size(n) for n in (12, 1_500, 64_000_000, 2_560_000_000)] == ["12 B", "2 kB", "64 MB", "2.56 GB"]


def test_capture_needs_a_gpu(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training.capture is on, but cpu has no CUDA graphs"):
        train(dataset, tmp_path / "run", device="cpu", settings={"training.capture": "on"}, console=QUIET)
