"""`offrec size`: its figures equal those of agents that are built, counted messages and measured times."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from offrec.algorithms import LEARNERS
from offrec.algorithms.user_model import UserModel
from offrec.catalogue.shard import Shard
from offrec.commands.size import Size as SizeCommand
from offrec.data.list_log import ListBatch
from offrec.errors import InputError
from offrec.models.agent import Agent, LogFacts
from offrec.models.log_shape import LogShape
from offrec.models.network import Network, NetworkOptions
from offrec.models.user_agent import build_user_agent
from offrec.runs.options import RunOptions, resolve_options
from offrec.runs.sizing import MEASURED_MS, Ranks, message_bytes, size_of_run, user_model_message_bytes
from offrec.training.optimiser import Optimiser
from offrec.types import Size

RESULTS = Path(__file__).parents[2] / "results"


def options(algorithm: str = "sl", **settings: object) -> RunOptions:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve_options({"algorithm.name": algorithm, "network.width": 8, **given}, "events")


def build(chosen: RunOptions, items: int, shard: Shard | None = None) -> Agent:
    """Build an agent with memory, as a run does."""
    prior = Network(items, chosen.network, shard=shard)
    facts = LogFacts(0.5, log_b=torch.zeros(1), counts=torch.ones(items))
    return Agent(items, chosen.learner, chosen.network, chosen.critic, facts, prior, restored=True, shard=shard)


@pytest.mark.parametrize("algorithm", [name for name in LEARNERS if name != "user-model"])
@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_sizes_equal_those_of_a_built_agent(algorithm: str, preset: str) -> None:
    items = 50
    chosen = options(algorithm, preset=preset)
    predicted, agent = size_of_run(chosen, items, Ranks()), build(chosen, items, Shard(items, 0, 1))
    trained = sum(one.nbytes for one in agent.parameters() if one.requires_grad)
    frozen = sum(one.nbytes for one in agent.parameters() if not one.requires_grad)
    buffers = sum(one.nbytes for one in agent.buffers())
    log = sum(one.nbytes for name, one in agent.named_buffers() if name == "cumulative")  # depends on the log
    assert predicted.item_tables + predicted.networks == trained == predicted.gradients
    assert predicted.frozen == frozen + buffers - log
    assert predicted.total > trained


@pytest.mark.parametrize("state", ["full", "rowwise"])
def test_the_optimiser_has_the_predicted_state(state: str) -> None:
    chosen = options("dc", training__table_state=state)
    agent = build(chosen, 40, Shard(40, 0, 1))
    optimiser = Optimiser(
        agent, 0.1, [one for one in agent.parameters() if one.ndim == 2 and len(one) in (40, 41)], state
    )  # type: ignore[arg-type]
    for one in agent.parameters():
        one.grad = torch.zeros_like(one) if one.requires_grad else None
    optimiser.step()
    stored = sum(tensor.nbytes for name, tensor in optimiser.tensors().items() if not name.endswith(("step", "steps")))
    assert size_of_run(chosen, 40, Ranks()).optimiser == pytest.approx(stored, abs=64)


@pytest.mark.parametrize("algorithm", ["sl", "dc", "sl+dqn"])
def test_ranks_divide_the_rows_of_items_only(algorithm: str) -> None:
    chosen, items = options(algorithm), 100
    whole, third = (size_of_run(chosen, items, Ranks(count)) for count in (1, 3))
    assert third.networks == whole.networks
    # 100 items over 3 ranks: the last rank has 34 and the start row, which the single rank has too.
    rows = whole.item_tables - 4 * 66 * whole.trained_per_item
    assert third.item_tables == rows
    assert third.frozen == whole.frozen - 4 * 66 * whole.frozen_per_item


def test_the_formula_of_memory_is_linear_in_items() -> None:
    chosen = options("dc")
    small, large = (size_of_run(chosen, items, Ranks(4)) for items in (1_000_000, 100_000_000))
    more = 99_000_000 // 4
    assert large.item_tables - small.item_tables == 4 * more * small.trained_per_item
    assert large.frozen - small.frozen == 4 * more * small.frozen_per_item
    assert large.gradients - small.gradients == 4 * more * small.trained_per_item


@pytest.mark.parametrize(("networks", "counted"), [(1, 901_120), (4, 1_839_360)])
def test_messages_have_about_the_counted_size(networks: int, counted: int) -> None:
    """The counts are those of benchmarks/sharded.py for SL and DC."""
    assert message_bytes(Size(segments=128, rows=1024, length=8), 64, networks) == pytest.approx(counted, rel=0.01)


def test_single_ranks_send_nothing() -> None:
    alone, both = size_of_run(options(), 100, Ranks()), size_of_run(options(), 100, Ranks(2, 2))
    assert (alone.sent_in_catalogue_group, alone.sent_in_data_group) == (0, 0)
    assert both.sent_in_data_group == both.gradients
    assert both.sent_in_catalogue_group > 0


def test_times_are_those_that_were_measured() -> None:
    ledger = json.loads((RESULTS / "ledger-gpu.json").read_text())["sections"]["scale"]
    measured = {row["items"]: row["ms_per_update"] for row in ledger if not row["settings"]}
    assert pytest.approx(measured, rel=1e-4) == MEASURED_MS
    chosen = options(network__width=64, training__batch_size=1024)
    for items, milliseconds in MEASURED_MS.items():
        predicted = size_of_run(chosen, items, Ranks())
        assert predicted.is_measured
        assert predicted.milliseconds == pytest.approx(milliseconds)
    assert not size_of_run(chosen, 20_000_000, Ranks()).is_measured
    assert not size_of_run(options("dc", training__batch_size=1024), 1000, Ranks()).is_measured


def test_impossible_numbers_are_refused() -> None:
    for ranks, items, message in (
        (Ranks(), 0, "--items"),
        (Ranks(0), 5, "--catalogue-ranks"),
        (Ranks(1, 0), 5, "--data"),
    ):
        with pytest.raises(InputError, match=f"{message}.* must be at least 1; got 0."):
            size_of_run(options(), items, ranks)
    with pytest.raises(InputError, match="--list-length must be at least 1; got 0"):
        size_of_run(resolve_options({"algorithm.name": "user-model"}, "events"), 5, Ranks(), list_length=0)


def test_a_command_without_learners_is_refused() -> None:
    with pytest.raises(InputError, match="--algorithms names no learner"):
        SizeCommand(items=5, algorithms=" ,").run()


def test_user_models_store_39_weights_per_item() -> None:
    """x has 16 weights, a, ε and e one each, and ε′ one for each of 20 models of leaving.

    Rewards of two behaviours, the share of what was shown and four sums of the priors are not trained.
    """
    options = resolve_options({"algorithm.name": "user-model"}, "events")
    one, four = (size_of_run(options, 1000, Ranks(ranks), list_length=5) for ranks in (1, 4))
    assert (one.trained_per_item, one.frozen_per_item) == (16 + 3 + 20, 2 + 1 + 4)
    assert one.item_tables == 4 * 39 * 1000 == 4 * four.item_tables
    assert one.optimiser == 2 * one.gradients
    assert (one.sent_in_catalogue_group, four.milliseconds) == (0, None)


def test_the_messages_of_a_user_model_follow_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def reduce(tensor: Tensor, *more: object, **options: object) -> None:
        sent.append(tensor.nbytes)

    def gather(parts: list[Tensor], tensor: Tensor, **options: object) -> None:
        reduce(tensor)
        parts[0].copy_(tensor)

    monkeypatch.setattr("torch.distributed.all_reduce", reduce)
    monkeypatch.setattr("torch.distributed.all_gather", gather)
    learner, items, lists, k = UserModel(types=6, width=4, memory=3), 20, 64, 5
    agent = build_user_agent(items, learner, NetworkOptions(), LogShape(2, k), shard=Shard(items, 0, 1))
    index = torch.arange(lists)
    offered = (index[:, None] + torch.arange(k)) % items
    batch = ListBatch(
        offered, index % k, index % 2, offered[:, :3], index % 4, index % 2 == 1, index // 2, torch.ones(lists // 2)
    )
    torch.stack([term.sum() for term in agent.loss(batch).values()]).sum().backward()
    picks = int((batch.place > 0).sum())
    expected = user_model_message_bytes(lists, picks, k, learner, agent.leave_effect.shape[1])
    assert expected <= sum(sent) < expected + 4 * 200  # means, penalties, and gradients of slopes
