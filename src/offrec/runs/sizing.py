"""What a run needs before any log exists: memory per rank, bytes between ranks and time per update.

Memory is exact: the networks are built without allocating anything. The bytes of messages follow a formula that matches
counted messages. Times are interpolated between measured times of one GPU.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from offrec.algorithms.user_model import UserModel
from offrec.catalogue.shard import Shard
from offrec.data.list_log import MOST_LISTS
from offrec.data.replay import automatic_batch_size
from offrec.errors import InputError
from offrec.models.agent import Agent, LogFacts
from offrec.models.log_shape import LogShape
from offrec.models.network import Network, item_tables, sharded_rows
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.runs.options import RunOptions
from offrec.runs.user_model import update_bytes
from offrec.training import memory
from offrec.training.optimiser import state_bytes
from offrec.types import Size

FLOAT = 4  # bytes
LARGE_LOG = 1 << 30  # events
MEASURED_WIDTH, MEASURED_ROWS = 64, 1024
# Milliseconds per update of SL on an NVIDIA H200 by number of items: results/ledger-gpu.json, section "scale".
MEASURED_MS = {10_000: 0.6994, 100_000: 1.1744, 1_000_000: 6.0927, 10_000_000: 55.3879}


@dataclass(frozen=True)
class Ranks:
    """The processes of a run.

    Attributes:
        catalogue: C, the processes that together store the catalogue.
        data: D, the groups of processes that read different sessions.
    """

    catalogue: int = 1
    data: int = 1


@dataclass(frozen=True)
class RunSize:
    """What one rank needs. All sizes are bytes.

    Attributes:
        algorithm: The learner.
        items: Items in the catalogue.
        width: Width of the network.
        catalogue_ranks: Ranks that together store the catalogue.
        data_ranks: Groups of ranks that read different sessions.
        item_tables: Trained weights with one row per item.
        networks: All other trained weights.
        frozen: Target networks, π̂_b and neighbours of items: weights that are not trained, item tables included.
        gradients: Gradients of the trained weights.
        optimiser: State of the optimiser.
        update: Activations and temporary memory of an update; estimated.
        trained_per_item: Trained weights per item.
        frozen_per_item: Frozen weights per item.
        sent_in_catalogue_group: Payload of a rank's messages per update within its catalogue group.
        sent_in_data_group: Payload of a rank's messages per update within its data group: the gradients.
        milliseconds: Expected time per update on one H200, without messages; None for the user model.
        is_measured: Whether the time is interpolated between measured runs of SL. Otherwise it is extrapolated from
            them by the number of item tables.
    """

    algorithm: str
    items: int
    width: int
    catalogue_ranks: int
    data_ranks: int
    item_tables: int
    networks: int
    frozen: int
    gradients: int
    optimiser: int
    update: int
    trained_per_item: int
    frozen_per_item: int
    sent_in_catalogue_group: int
    sent_in_data_group: int
    milliseconds: float | None
    is_measured: bool

    @property
    def total(self) -> int:
        """All memory of a rank, without the log."""
        return self.item_tables + self.networks + self.frozen + self.gradients + self.optimiser + self.update

    def as_json(self) -> dict[str, Any]:
        """Return all figures by name."""
        return asdict(self) | {"total": self.total}


def size_of_run(
    options: RunOptions, items: int, ranks: Ranks, session_length: int = 5, list_length: int = 10
) -> RunSize:
    """Return what a rank of a run needs.

    Args:
        options: The options of the run.
        items: Items in the catalogue.
        ranks: The processes of the run.
        session_length: Events per session, about.
        list_length: Items per list, of which only the user model needs to know.

    Raises:
        InputError: If a number is impossible.
    """
    for name, value in (("--items", items), ("--catalogue-ranks", ranks.catalogue), ("--data-ranks", ranks.data)):
        if value < 1:
            raise InputError(f"{name} must be at least 1; got {value}.")
    if session_length < 1:
        raise InputError(f"--session-length must be at least 1; got {session_length}.")
    if list_length < 1:
        raise InputError(f"--list-length must be at least 1; got {list_length}.")
    if isinstance(options.learner, UserModel):
        return _size_of_user_model(options, options.learner, items, ranks, list_length)
    rows = max(1, batch_size_of(options) // ranks.data)
    length = min(session_length, options.network.history)
    batch = Size(segments=-(-rows // session_length), rows=rows, length=length)
    agent = _build(options, items, ranks.catalogue)
    weights = _count(agent)
    larger = _count(_build(options, items + ranks.catalogue, ranks.catalogue))  # each rank has one more item
    per_item = {kind: count - weights[kind] for kind, count in larger.items()}
    tables = item_tables(agent, items)
    plan = memory.plan(
        agent,
        tables,
        table_state=options.training.table_state,
        sizes=[batch],
        width=options.network.width,
        layers=options.network.layers,
        history=options.network.history,
        log=0,
        captured=False,
        half=options.training.precision == "bf16",
        dense=options.catalogue == "reference",
    )
    networks = sum(isinstance(one, Network) for one in agent.modules())
    milliseconds, is_measured = _time(items / ranks.catalogue, options, rows, len(tables))
    return RunSize(
        algorithm=options.algorithm,
        items=items,
        width=options.network.width,
        catalogue_ranks=ranks.catalogue,
        data_ranks=ranks.data,
        item_tables=FLOAT * weights["trained rows"],
        networks=FLOAT * weights["trained"],
        frozen=FLOAT * (weights["frozen rows"] + weights["frozen"]),
        gradients=FLOAT * (weights["trained rows"] + weights["trained"]),
        optimiser=state_bytes(agent, tables, options.training.table_state),
        update=plan.batch,
        trained_per_item=per_item["trained rows"],
        frozen_per_item=per_item["frozen rows"],
        sent_in_catalogue_group=message_bytes(batch, options.network.width, networks) if ranks.catalogue > 1 else 0,
        sent_in_data_group=plan.gradients if ranks.data > 1 else 0,
        milliseconds=milliseconds,
        is_measured=is_measured,
    )


def _size_of_user_model(options: RunOptions, learner: UserModel, items: int, ranks: Ranks, list_length: int) -> RunSize:
    """Return what a rank of a user model needs, for a log with two behaviours."""
    lists = max(1, (options.training.batch_size or MOST_LISTS) // ranks.data)

    def build(count: int) -> UserModelAgent:
        shard, shape = Shard(count, ranks.catalogue - 1, ranks.catalogue), LogShape(2, list_length)
        with torch.device("meta"):
            return build_user_agent(count, learner, options.network, shape, shard=shard)

    agent = build(items)
    weights, larger = _count(agent), _count(build(items + ranks.catalogue))
    trained = FLOAT * (weights["trained rows"] + weights["trained"])
    sent = user_model_message_bytes(lists, lists, list_length, learner, agent.leave_effect.shape[1])
    return RunSize(
        algorithm=options.algorithm,
        items=items,
        width=learner.width,
        catalogue_ranks=ranks.catalogue,
        data_ranks=ranks.data,
        item_tables=FLOAT * weights["trained rows"],
        networks=FLOAT * weights["trained"],
        frozen=FLOAT * (weights["frozen rows"] + weights["frozen"]),
        gradients=trained,
        optimiser=state_bytes(agent, [agent.x], options.training.table_state),
        update=update_bytes(agent, lists, list_length),
        trained_per_item=larger["trained rows"] - weights["trained rows"],
        frozen_per_item=larger["frozen rows"] - weights["frozen rows"],
        sent_in_catalogue_group=sent if ranks.catalogue > 1 else 0,
        sent_in_data_group=trained if ranks.data > 1 else 0,
        milliseconds=None,
        is_measured=False,
    )


def user_model_message_bytes(lists: int, picks: int, length: int, learner: UserModel, leave_models: int) -> int:
    """Return the payload of a rank's messages per update of a user model within its catalogue group.

    4 · D · (2 m d + 2 k d + 3 k + m G): each of D lists looks up the vectors of its k items and m last picks twice,
    three numbers per item, and the effects of the picks on G models of leaving. 4 · P · (m d + d + 2): the estimates of
    the priors read P picks again. 4 · K (d + 1): the types' gradient and logsumexp. Numbers that do not depend on D, P
    or K are left out.
    """
    d, m = learner.width, learner.memory
    per_list = 2 * m * d + 2 * length * d + 3 * length + m * leave_models
    return FLOAT * (lists * per_list + picks * (m * d + d + 2) + learner.types * (d + 1))


def batch_size_of(options: RunOptions) -> int:
    """Return the rows of a batch; without a log, the automatic size is that of a large log."""
    if isinstance(options.learner, UserModel):
        return options.training.batch_size or MOST_LISTS
    return options.training.batch_size or automatic_batch_size(LARGE_LOG)


def message_bytes(batch: Size, width: int, networks: int) -> int:
    """Return the payload of a rank's messages per update within its catalogue group.

    4 · N (L + 1) · d · (networks + 2): each network looks up the items of N sessions of length L, and two gradients of
    that size are summed. 16 · B · networks: four numbers per row of each network. Counted: 901,120 bytes for SL and
    1,839,360 for DC with N = 128, L = 8, B = 1,024 and d = 64; the formula gives 901,120 and 1,835,008.
    """
    encoded = FLOAT * batch.segments * (batch.length + 1) * width * (networks + 2)
    return encoded + 4 * FLOAT * batch.rows * networks


def _build(options: RunOptions, items: int, catalogue_ranks: int) -> Agent:
    """Build the agent of the last rank, which has the most items, without memory."""
    shard = Shard(items, catalogue_ranks - 1, catalogue_ranks)
    with torch.device("meta"):
        facts = LogFacts(log_b=torch.empty(1))
        return Agent(items, options.learner, options.network, options.critic, facts, restored=True, shard=shard)


def _count(agent: Agent | UserModelAgent) -> Mapping[str, int]:
    """Count the weights: trained or frozen, with one row per item or not."""
    counts = {"trained": 0, "trained rows": 0, "frozen": 0, "frozen rows": 0}
    rows = sharded_rows(agent)
    for name, tensor in (*agent.named_parameters(), *agent.named_buffers()):
        kind = "trained" if tensor.requires_grad else "frozen"
        counts[f"{kind} rows" if name in rows else kind] += tensor.numel() * tensor.itemsize // FLOAT
    return counts


def _time(items: float, options: RunOptions, rows: int, tables: int) -> tuple[float, bool]:
    """Return the milliseconds of an update with this many items on a rank, and whether SL of this size was measured."""
    known = np.array(list(MEASURED_MS)), np.array(list(MEASURED_MS.values()))
    fixed = known[1][0]
    slope = (known[1][-1] - known[1][-2]) / (known[0][-1] - known[0][-2])
    inside = items <= known[0][-1]
    by_items = float(np.interp(items, *known)) if inside else float(known[1][-1] + slope * (items - known[0][-1]))
    is_like = (options.algorithm, options.network.width, rows) == ("sl", MEASURED_WIDTH, MEASURED_ROWS)
    scale = tables * options.network.width / MEASURED_WIDTH * rows / MEASURED_ROWS
    return fixed + (by_items - fixed) * scale, bool(is_like and inside and options.network.tied)
