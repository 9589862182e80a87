"""The exact fit of leaving: its optimiser, its gradients, and what it finds."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from offrec.algorithms.user_model import UserModel, leaving_log_likelihood
from offrec.data.list_log import ListLog, read_lists
from offrec.data.prepare import prepare
from offrec.models.leaving_fit import RIDGE, LeavingFit, fit_leaving, minimise
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.shop import Shop, write_log
from offrec.shop.worlds import get_world

ITEMS = 9
CPU = torch.device("cpu")


def dot(one: Any, other: Any) -> float:
    return float(sum((a * b).sum() for a, b in zip(one, other, strict=True)))


def test_minimise_finds_the_minimum_of_a_quadratic() -> None:
    torch.manual_seed(0)
    root = torch.randn(6, 6, dtype=torch.double)
    matrix, target = root @ root.T + 0.1 * torch.eye(6, dtype=torch.double), torch.randn(6, dtype=torch.double)

    def evaluate(x: Any) -> tuple[float, list[Tensor]]:
        joined = torch.cat(list(x))
        gradient = matrix @ (joined - target)
        return 1e4 * float((joined - target) @ gradient) / 2, [1e4 * part for part in gradient.split([4, 2])]

    start = [torch.zeros(4, dtype=torch.double), torch.zeros(2, dtype=torch.double)]
    found = torch.cat(minimise(start, evaluate, dot, 200))
    torch.testing.assert_close(found, target, rtol=0.0, atol=1e-2)
    assert torch.cat(minimise(start, evaluate, dot, 0)).equal(torch.zeros(6, dtype=torch.double))


def test_minimise_never_increases_the_loss_and_agrees_with_pytorch() -> None:
    """Rosenbrock's function, scaled so that the tolerance is reached late."""

    def function(x: Tensor) -> Tensor:
        return 1e4 * ((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)

    losses = []

    def evaluate(x: Any) -> tuple[float, list[Tensor]]:
        value = x[0].detach().requires_grad_(True)
        loss = function(value)
        (gradient,) = torch.autograd.grad(loss, value)
        losses.append(float(loss.detach()))
        return losses[-1], [gradient]

    start = torch.tensor([-1.2, 1.0], dtype=torch.double)
    (found,) = minimise([start], evaluate, dot, 200)
    other = start.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([other], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = function(other)
        loss.backward()
        return loss

    optimiser.step(closure)  # type: ignore[arg-type]
    assert losses[-1] == min(losses)
    torch.testing.assert_close(found, other.detach(), rtol=0.0, atol=1e-2)


@pytest.fixture
def log(tmp_path: Path, make_dataset: Any) -> ListLog:
    """Visitors see lists of two items until they leave. Those who pick item 0 leave later."""
    generator = torch.Generator().manual_seed(0)
    sessions, lists = [], []
    for _ in range(400):
        picks: list[int] = []
        shown: list[Any] = []
        while not shown or (
            len(shown) < 12 and torch.rand((), generator=generator) > (0.15 if 0 in picks[-1:] else 0.5)
        ):
            pair = torch.randperm(ITEMS, generator=generator)[:2].tolist()
            picked = bool(torch.rand((), generator=generator) < 0.7)
            shown.append((len(picks), pair, 0.5, len(picks) if picked else None))
            picks += pair[:1] if picked else []
        sessions.append(picks)
        lists.append(shown)
    dataset = make_dataset(tmp_path, sessions, splits=(360, 20, 20), items=ITEMS, decisions=lists)
    return read_lists(dataset, "train", 3, 5, CPU)


def agent(memory: int = 3) -> UserModelAgent:
    torch.manual_seed(0)
    made = build_user_agent(ITEMS, UserModel(types=2, width=3, memory=memory), NetworkOptions(), LogShape(2, 2))
    for name, parameter in made.named_parameters():
        if not name.startswith("leave"):
            parameter.data.normal_(0.0, 0.3)
    return made


def penalised(model: UserModelAgent, log: ListLog, candidate: int) -> Tensor:
    """The loss of a candidate, by the equations of training."""
    batch = log.batch(torch.arange(log.sessions))
    outcome = leaving_log_likelihood(
        model.leave_logits_after(batch), model.impatience(), model.log_share, batch.leaves, batch.session
    )
    shared = [getattr(model, name)[..., candidate] for name in model.leaving_parameters[1:-1]]
    prior = model.grid_precision[candidate] * model.leave_effect[:, candidate].square().sum()
    prior = prior + RIDGE * torch.stack([one.square().sum() for one in shared]).sum()
    return -outcome[:, candidate].sum() + (prior + model.log_impatience[candidate].square()) / 2


def test_the_loss_and_its_gradients_are_those_of_training(log: ListLog) -> None:
    model, candidate = agent(), 6
    fit = LeavingFit(model, log)
    parameters = [getattr(model, name).detach()[..., candidate].double() for name in model.leaving_parameters]
    loss, gradients = fit.evaluate(candidate, parameters)
    expected = penalised(model, log, candidate)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, gradient in zip(model.leaving_parameters, gradients, strict=True):
        whole = getattr(model, name).grad
        torch.testing.assert_close(gradient.float(), whole[..., candidate], rtol=1e-3, atol=1e-3, msg=name)


def test_chunks_do_not_change_the_loss(log: ListLog, monkeypatch: pytest.MonkeyPatch) -> None:
    model = agent()
    parameters = [getattr(model, name).detach()[..., 0].double() for name in model.leaving_parameters]
    whole = LeavingFit(model, log).evaluate(0, parameters)
    monkeypatch.setattr("offrec.models.leaving_fit.CHUNK", 100)
    parts = LeavingFit(model, log)
    assert len(parts.parts) > 3
    loss, gradients = parts.evaluate(0, parameters)
    assert loss == pytest.approx(whole[0])
    for one, other in zip(gradients, whole[1], strict=True):
        torch.testing.assert_close(one, other)


class LargestTensor(TorchDispatchMode):
    """Records the largest size of a tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for one in chain([results], results if isinstance(results, tuple | list) else ()):
            self.size = max(self.size, one.numel() if isinstance(one, Tensor) else 0)
        return results


def test_pairs_of_picks_are_not_in_memory_at_once(log: ListLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest memory is 64, where 32,768 lists have 134,000,000 pairs of picks."""
    length = 16
    memory = torch.nn.functional.pad(log.rows.memory, (0, length - 3), value=ITEMS)
    memory[::5, 3:] = torch.arange(length - 3) % ITEMS
    log, model = replace(log, rows=replace(log.rows, memory=memory)), agent(length)
    whole = LeavingFit(model, log)
    score, information = whole.evidence(0)
    monkeypatch.setattr("offrec.models.leaving_fit.PAIRS", 20 * length**2)
    with LargestTensor() as largest:
        parts = LeavingFit(model, log)
        assert parts.evidence(0)[1].equal(information)
    assert parts.parts[0].similarity.equal(whole.parts[0].similarity)
    assert parts.evidence(0)[0].equal(score)
    assert largest.size < 4 * len(log.rows) * length
    is_same = (whole.parts[0].memory[:, :, None] == whole.parts[0].memory[:, None, :]).double()
    assert is_same[:, :5, 5:].any(), "some items are in memory several times"


def test_the_fit_finds_the_item_that_keeps_visitors(log: ListLog) -> None:
    model = agent()
    before = [float(penalised(model, log, candidate).detach()) for candidate in range(len(model.leave_base))]
    fit_leaving(model, log, lambda: torch.arange(float(len(model.leave_base))))
    after = [float(penalised(model, log, candidate).detach()) for candidate in range(len(model.leave_base))]
    assert all(new < old for new, old in zip(after, before, strict=True))
    with torch.no_grad():
        assert model.worth()[:, -1].argmax() == 0


def test_items_of_an_earlier_run_that_the_log_lacks_keep_their_effects(log: ListLog) -> None:
    model = agent()
    frozen = torch.zeros(ITEMS, dtype=torch.bool)
    frozen[0] = True
    model.freeze_items(frozen)
    effects = model.leave_effect.detach().clone()
    fit_leaving(model, log, None)  # without validation sessions: the default candidate alone
    best = int(model.best)
    assert model.leave_effect[0].equal(effects[0])
    assert not model.leave_effect[1:, best].equal(effects[1:, best])
    others = [number for number in range(len(model.leave_base)) if number != best]
    assert model.leave_effect[:, others].equal(effects[:, others])


def test_sessions_that_the_shop_ended_do_not_count_as_left(tmp_path: Path) -> None:
    shop = Shop(replace(get_world("demo", k=2), items=40, categories=4), seed=0, max_steps=2)
    write_log(shop, 60, tmp_path / "log")
    dataset = prepare(tmp_path / "log/full.parquet", format="decisions", out=tmp_path / "data")
    rows = read_lists(dataset, "train", 3, 5, CPU)
    lengths = (rows.first[1:] - rows.first[:-1]).tolist()
    left = rows.rows.leaves[rows.first[1:] - 1].tolist()
    assert {1, 2} == set(lengths)
    assert left == [length == 1 for length in lengths]
    assert int(rows.rows.leaves.sum()) == sum(left)
