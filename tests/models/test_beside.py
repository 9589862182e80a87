"""What a backward pass does beside the rest: who waits for whom, and that it finds the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_agents import OPTIONS, agent, batch, total
from test_agent import VARIANTS

from offrec.catalogue import Head, use_backend
from offrec.catalogue.streams import stream_scope
from offrec.models.critic import CriticOptions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", ["sl", "dc"])
def test_the_history_does_not_wait_for_the_table(name: str, narrow: bool) -> None:
    """Where kernels make the table's gradient beside the rest, what waits for it comes last in the backward pass."""
    pytest.importorskip("triton", reason="the kernels need triton")
    made, order = agent(name).to(DEVICE), list[str]()
    made.bfloat16_products = narrow
    with use_backend("kernels"):
        x = made.symbols(batch(device=DEVICE))
        read = x.pi if x.pi.full_precision is None else x.pi.full_precision
        todo = [x.pi.state.grad_fn]
        while (node := todo.pop()).name() != "EmbeddingBackward0":
            todo += [before for before, _ in node.next_functions if before is not None]
        node.register_prehook(lambda _: order.append("history"))
        read.table.grad_fn.register_prehook(lambda _: order.append("table"))
        read.bias.grad_fn.register_prehook(lambda _: order.append("bias"))
        sum(term.sum() for term in made.learner.loss(x).values()).backward()
    assert order[0] == "history"
    assert sorted(order) == ["bias", "history", "table"]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_heads_read_no_parameter_itself(name: str, options: dict[str, Any], tied: bool) -> None:
    """Its gradients may be made on several streams, and it would wait for each of them at once."""
    x = agent(name, replace(OPTIONS, tied=tied), **options).symbols(batch())
    heads = [part for part in vars(x).values() if isinstance(part, Head)]
    learned = [part for head in heads for part in (head.table, head.bias) if part is not None and part.requires_grad]
    assert learned
    assert not any(part.is_leaf for part in learned)


@pytest.mark.parametrize("draw", ["uniform", "popular", "logging"])
@pytest.mark.parametrize("name", ["sl", "dqn", "dc"])
def test_who_reads_another_is_on_its_stream(monkeypatch: pytest.MonkeyPatch, name: str, draw: Any) -> None:
    """Items drawn from π̂_b come after it; all else hangs on nothing of each other, and each has a stream of its own."""
    now: list[int | str] = ["main"]
    ran: dict[str, int | str] = {}

    class Numbered:
        def __init__(self, device: torch.device) -> None: ...

        @contextmanager
        def __call__(self, number: int) -> Iterator[None]:
            now.append(number)
            yield
            now.pop()

        def join(self, keep: object) -> None:
            ran["join"] = now[-1]

    monkeypatch.setattr("offrec.models.agent.SideStreams", Numbered)
    made = agent(name, critic=CriticOptions(ground=3, ground_draw=draw))
    parts = ["_actor_heads", "_prior_heads", "_columns", *(["_critic_heads", "_target_heads"] if made.target else [])]

    def noted(part: str, real: Any) -> Any:
        return lambda *given: (ran.update({part: now[-1]}), real(*given))[1]

    for part in parts:
        monkeypatch.setattr(made, part, noted(part, getattr(made, part)))
    made.symbols(batch())
    drawn = draw == "logging" and name != "sl"
    assert (ran["_columns"] == ran["_prior_heads"]) == drawn
    assert list(ran) == [*parts, "join"]
    assert ran["_actor_heads"] == ran["join"] == "main"
    assert len({ran[part] for part in parts}) == len(parts) - drawn


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Also those that PyTorch gives once: of a parameter whose gradient comes from another stream than its own."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a CPU has no streams")
@pytest.mark.usefixtures("every_warning")
@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("sl", {"repeat": "bonus", "tied": False}, {}),
        ("dc", {"repeat": "off"}, {}),
        ("dc", {"repeat": "bonus"}, {"expectation": "gumbel", "straight_through": True}),
        ("pg", {"repeat": "bonus"}, {"logging": "own"}),
    ],
)
def test_beside_or_not_gradients_are_the_same(name: str, shape: dict[str, Any], options: dict[str, Any]) -> None:
    """Tables read by kernels that are beside the others and by some that are not."""
    found = []
    for _ in range(2):
        made = agent(name, replace(OPTIONS, **shape), **options).to(DEVICE)
        rows = batch(device=DEVICE)
        torch.manual_seed(5)
        if not found:
            total(made, rows).backward()
        else:
            with stream_scope(DEVICE):
                total(made, rows).backward()
        found.append({name: part.grad for name, part in made.named_parameters() if part.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        rounding = 1e-6 + 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=rounding)
