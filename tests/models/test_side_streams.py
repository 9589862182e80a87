"""Concurrent parts of an update: which part waits for which, and equal gradients with and without side streams."""

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
from offrec.models.network import Network

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("name", ["sl", "dc"])
def test_the_backward_pass_of_the_history_does_not_wait_for_the_table(name: str, bfloat16: bool) -> None:
    """Kernels compute the gradient of the table concurrently; operations that need it come last."""
    pytest.importorskip("triton", reason="the kernels need triton")
    made, order = agent(name).to(DEVICE), list[str]()
    made.bfloat16_products = bfloat16
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
def test_heads_read_views_and_not_parameters(name: str, options: dict[str, Any], tied: bool) -> None:
    """Gradients may come from several streams; a parameter would wait for each of them at once."""
    x = agent(name, replace(OPTIONS, tied=tied), **options).symbols(batch())
    heads = [part for part in vars(x).values() if isinstance(part, Head)]
    learned = [part for head in heads for part in (head.table, head.bias) if part is not None and part.requires_grad]
    assert learned
    assert not any(part.is_leaf for part in learned)


@pytest.mark.parametrize(
    ("name", "draw"), [("sl", "uniform"), ("dqn", "uniform"), ("dc", "popular"), ("dc", "logging")]
)
def test_networks_run_on_different_streams_and_are_joined(
    monkeypatch: pytest.MonkeyPatch, name: str, draw: Any
) -> None:
    """Record on which stream each network runs, and which symbols exist before the streams are joined."""
    current: list[int | str] = ["main"]
    streams: dict[Network, set[int | str]] = {}
    joins = 0

    class RecordingStreams:
        def __init__(self, device: torch.device) -> None: ...

        @contextmanager
        def __call__(self, number: int) -> Iterator[None]:
            current.append(number)
            yield
            current.pop()

        def join(self, retain: object = None) -> None:
            nonlocal joins
            joins += 1
            assert current == ["main"]

    def record(network: Network) -> None:
        hook = network.backbone.register_forward_pre_hook
        hook(lambda *_: streams.setdefault(network, set()).add(current[-1]))  # type: ignore[no-untyped-call]

    monkeypatch.setattr("offrec.models.agent.SideStreams", RecordingStreams)
    made = agent(name, critic=CriticOptions(ground=3, ground_draw=draw))
    target = None if made.target is None else made.target.network
    networks = [network for network in (made.actor, made.critic, made.prior, target) if network is not None]
    for network in networks:
        record(network)
    made.symbols(batch())
    used = [streams[network] for network in networks]
    assert all(len(numbers) == 1 for numbers in used), "a network runs on one stream"
    assert len(set.union(*used)) == len(networks), "each network has its own stream"
    assert joins == 1


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Repeat the warning that PyTorch gives once, about a gradient from another stream than its parameter's."""
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
def test_side_streams_do_not_change_gradients(name: str, shape: dict[str, Any], options: dict[str, Any]) -> None:
    """Some kernels that read the tables run on side streams, and some do not."""
    gradients: list[dict[str, Any]] = []
    for _ in range(2):
        made = agent(name, replace(OPTIONS, **shape), **options).to(DEVICE)
        rows = batch(device=DEVICE)
        torch.manual_seed(5)
        if not gradients:
            total(made, rows).backward()
        else:
            with stream_scope(DEVICE):
                total(made, rows).backward()
        gradients.append({name: part.grad for name, part in made.named_parameters() if part.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        rounding = 1e-6 + 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=rounding)
