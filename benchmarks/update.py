"""Compare one whole update of DC (actor, critic, target, π̂_b) with a plain dense eager version.

    python benchmarks/update.py [DATASET] [--width 64 128] [--updates 120] [--json FILE]
    python benchmarks/update.py --epochs DATASET [--set network.width=64 …] [--json FILE]

Without a dataset the log is random: 36,453 items and sessions of 4, so that a batch has 1,024 rows. Both versions have
the same networks, weights, batches and sampled unlogged items. Dropout is off, so that their losses can be compared.
The plain version receives prepared batches, while offrec gathers them. Times are medians, by CUDA events on a GPU;
memory is the peak beyond earlier allocations. π̂_b has random weights: time does not depend on them.

--epochs times an epoch of each learner with its preset, without validation, and reports its peak memory.
"""

import argparse
import gc
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import scale
from catalogue import device_rates
from evidence import learner as learner_options
from evidence import script_arguments, write_results
from offrec.algorithms import LEARNERS
from offrec.backbones.gru import GRU
from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.models.agent import Agent
from offrec.models.critic import sample_unlogged
from offrec.models.network import Network
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import pick_device
from offrec.runs.option_text import parse_settings
from offrec.runs.options import resolve_options
from offrec.runs.plan import RunPlan, plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent, build_task
from offrec.training.loop import Trainer
from offrec.types import Batch, Size

ITEMS, ROWS = 36_453, 1024
EPOCHS = [name for name in LEARNERS if name != "user-model"]  # which learns from lists
TERMS = ("critic", "actor")
Row = dict[str, Any]


def dense(head: Head) -> Tensor:
    """Materialise the logits [B, A], including corrections."""
    z = head.state @ head.table.T
    z = z if head.bias is None else z + head.bias
    if head.items is None or head.values is None:
        return z
    padded = functional.pad(z, (0, 1))  # corrections at n_items are padding
    padded = padded.scatter(1, head.items, 0.0) if head.replaces_base else padded
    return padded.scatter_add(1, head.items, head.values)[:, :-1]


class PlainUpdate:
    """DC in the straightforward way: every function over the catalogue is a matrix [B, A]."""

    def __init__(self, agent: Agent, rate: float) -> None:
        assert agent.actor is not None
        assert agent.critic is not None
        assert agent.target is not None
        assert agent.prior is not None
        self.actor, self.critic = deepcopy(agent.actor), deepcopy(agent.critic)
        self.target, self.prior = deepcopy(agent.target.network), deepcopy(agent.prior)
        for network in (self.actor, self.critic, self.target, self.prior):
            if isinstance(network.backbone, GRU):
                network.backbone.cells.flatten_parameters()  # copied weights are not contiguous, which slows cuDNN down
        self.alpha, self.facts, self.options = agent.learner.alpha, agent.facts, agent.critic_options  # type: ignore[attr-defined]
        trained = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(trained, lr=rate, foreach=True)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Run one update and return its losses."""
        losses = self.losses(batch)
        self.optimiser.zero_grad(set_to_none=True)
        (losses["critic"] + losses["actor"]).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        with torch.no_grad():
            for own, online in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                own.lerp_(online, self.options.target_rate)
        return {name: loss.detach() for name, loss in losses.items()}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        alpha, facts, n = self.alpha, self.facts, self.options.ground
        actions = torch.cat([batch.action[:, None], sample_unlogged(batch.action, n, self.actor.n_items)], 1)
        z, next_z = self._logits(self.actor, batch)
        log_pi = z.log_softmax(1)
        with torch.no_grad():
            next_log_pi, stay_log_pi = next_z.log_softmax(1), log_pi.detach()
            target_q, next_q = self._logits(self.target, batch)
            log_b, next_log_b = (part.log_softmax(1) for part in self._logits(self.prior, batch))
            next_value = (next_log_pi.exp() * (next_q - alpha * (next_log_pi - next_log_b))).sum(1)
            value_if_ignored = (stay_log_pi.exp() * (target_q - alpha * (stay_log_pi - log_b))).sum(1)
            ignored = (self.options.ground_reward + facts.shift) / facts.unit
            logged = batch.reward / facts.unit + batch.discount * next_value
            others = (ignored + facts.discount_if_ignored * value_if_ignored)[:, None].expand(-1, n)
        q = dense(self.critic(batch))
        errors = (q.gather(1, actions) - torch.cat([logged[:, None], others], 1)).square()
        critic = 0.5 * (errors[:, 0] + self.options.ground_weight * errors[:, 1:].mean(1))
        actor = (log_pi.exp() * (log_pi - log_b - q.detach() / alpha)).sum(1)
        return {"critic": (batch.weight * critic).sum(), "actor": (batch.weight * actor).sum()}

    def _logits(self, network: Network, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits at s and at s′, [B, A] each."""
        states, next_states = network.states_and_next(batch)
        return dense(network.head(states, batch.recent)), dense(network.head(next_states, batch.next_recent))


class Clock:
    """Records the milliseconds of each call."""

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.marks, self.spent = device.type == "cuda", list[tuple[Any, Any]](), list[float]()

    def __call__(self, work: Callable[[], Any]) -> None:
        if self.cuda:
            mark = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            mark[0].record()
            work()
            mark[1].record()
            self.marks.append(mark)
        else:
            start = time.perf_counter()
            work()
            self.spent.append(1e3 * (time.perf_counter() - start))

    def median(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return statistics.median([*self.spent, *(one.elapsed_time(other) for one, other in self.marks)])


@contextmanager
def memory(device: torch.device, row: Row) -> Iterator[None]:
    """Write the peak memory beyond earlier allocations into the row; only on a GPU."""
    gc.collect()
    base = 0
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize()
        row["peak_mb"] = round((torch.cuda.max_memory_allocated() - base) / 2**20, 1)


def make_plan(shared: SharedData, flat: dict[str, Any]) -> RunPlan:
    options = resolve_options(flat, shared.dataset.protocol.format)
    return plan_run(shared, options, pick_device(options.device))


def make_trainer(shared: SharedData, plan: RunPlan, folder: Path) -> tuple[Agent, Trainer]:
    device, dataset = plan.device, shared.dataset
    torch.manual_seed(1)
    prior = Network(dataset.n_items, plan.options.network).to(device) if plan.logging else None
    log_b = torch.full((dataset.sessions.events,), -8.0, device=device)
    learning = build_agent(plan, prior, log_b)
    task = build_task(plan, NetworkPolicy("run", learning, dataset.vocabulary, device))
    return learning, Trainer(task, plan.options.training, folder, {}, plan.options.seed, Console(quiet=True))


def first_losses(trainer: Trainer, sizes: list[Size]) -> list[dict[str, float]]:
    """Return the losses of the first two updates; the second shows whether the gradients were equal, too."""
    figures, before = [], dict.fromkeys(TERMS, 0.0)
    for number, size in enumerate(sizes[:2]):
        torch.manual_seed(number)
        trainer.update(size)
        sums = trainer.update.read()[0]
        figures.append({name: sums[name] - before[name] for name in TERMS})
        before = sums
    return figures


def ours(shared: SharedData, flat: dict[str, Any], updates: int, folder: Path) -> Row:
    row: Row = {}
    plan = make_plan(shared, flat)
    with memory(plan.device, row):
        _, trainer = make_trainer(shared, plan, folder)
        clock = Clock(plan.device)
        with trainer.active():
            sizes = list(trainer.task.batches.begin(0))
            trainer.task.module.train()
            trainer.update.begin(0, {})
            row["first"] = first_losses(trainer, sizes)
            for size in sizes[2:]:  # every batch size occurs often enough to be captured
                trainer.update(size)
            timed = list(trainer.task.batches.begin(1))[:updates]
            trainer.update.begin(0, {})
            for size in timed:
                clock(lambda size=size: trainer.update(size))
            trainer.update.read()
            median = clock.median()
    return row | {"ms": median, "updates": len(timed), "rows": statistics.median(size.rows for size in timed)}


def plain(shared: SharedData, flat: dict[str, Any], updates: int, folder: Path) -> Row:
    row: Row = {}
    plan = make_plan(shared, flat)
    with memory(plan.device, row):
        learning, trainer = make_trainer(shared, plan, folder)
        update, clock = PlainUpdate(learning, plan.options.training.learning_rate), Clock(plan.device)
        sizes = list(trainer.task.batches.begin(0))
        step = torch.zeros(1, dtype=torch.long, device=plan.device)
        batches = [trainer.task.batches.gather(step + number, size) for number, size in enumerate(sizes[: 6 + updates])]
        del learning, trainer
        row["first"] = []
        for number, batch in enumerate(batches[:2]):
            torch.manual_seed(number)
            row["first"].append({name: float(loss) for name, loss in update(batch).items()})
        for batch in batches[2:6]:
            update(batch)
        for batch in batches[6:]:
            clock(lambda batch=batch: update(batch))
        rows = statistics.median(len(batch) for batch in batches[6:])
    return row | {"ms": clock.median(), "updates": len(batches) - 6, "rows": rows}


def difference(one: Row, other: Row) -> list[float]:
    """Return the largest relative difference of a loss term in each of the first updates."""
    return [
        max(abs(mine[name] - its[name]) / max(1e-6, abs(its[name])) for name in TERMS)
        for mine, its in zip(one["first"], other["first"], strict=True)
    ]


def floor_ms(rates: dict[str, float], precision: str, rows: float, items: int, width: int) -> float:
    """Return a lower bound on the time of an update, from measured rates; it ignores the networks' other parts.

    It counts 13 products of rows × items × width, and the bytes of Adam (7 numbers for each of two tables) and of the
    target network (3 numbers).
    """
    kind = "bf16" if precision == "bf16" else "tf32"
    products = 13 * 2 * rows * items * width / rates[f"{kind}_per_second"]
    return 1e3 * (products + 4 * (2 * 7 + 3) * items * width / rates["bytes_per_second"])


def compare(shared: SharedData, flat: dict[str, Any], updates: int, folder: Path) -> list[Row]:
    # The plain version does not use logged returns; they would cost offrec one more addition per row.
    base = {
        "algorithm.name": "dc",
        "network.dropout": 0.0,
        "training.memory_check": False,
        "critic.returns": 0.0,
        **flat,
    }
    rows = [{"what": "plain dense eager PyTorch", **plain(shared, base, updates, folder)}]
    for precision in ("float32", "bf16"):
        figures = ours(shared, {**base, "training.precision": precision}, updates, folder)
        rows.append({"what": f"offrec, {precision}", **figures})
    width, rates = make_plan(shared, base).options.network.width, device_rates() if torch.cuda.is_available() else None
    for row, precision in zip(rows[1:], ("float32", "bf16"), strict=True):
        if rates:
            row["floor_ms"] = floor_ms(rates, precision, row["rows"], shared.dataset.n_items, width)
        row["times_faster"] = round(rows[0]["ms"] / row["ms"], 2)
        row["loss_difference"] = difference(row, rows[0])
    return [{"items": shared.dataset.n_items, "width": width, **row} for row in rows]


def epoch(shared: SharedData, flat: dict[str, Any], folder: Path) -> Row:
    row: Row = {"learner": flat["algorithm.name"]}
    plan = make_plan(shared, flat)
    with memory(plan.device, row):
        _, trainer = make_trainer(shared, plan, folder)
        seconds = []
        with trainer.active():
            for number in range(3):  # in the first epoch, libraries tune themselves and updates are captured
                trainer.progress = replace(trainer.progress, epoch=number, step=0, sums={})
                start = time.perf_counter()
                for _ in trainer.epoch(threading.Event()):
                    pass
                trainer.update.read()
                seconds.append(time.perf_counter() - start)
    return row | {
        "seconds": round(min(seconds[1:]), 4),
        "first_seconds": round(seconds[0], 4),
        "updates": trainer.progress.updates // 3,
        "batch_size": plan.epochs.batch_size,
        "planned_mb": round((plan.memory.peak + shared.bytes(plan.device)) / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?", help="a prepared dataset instead of a random log")
    parser.add_argument("--epochs", type=Path, metavar="DATASET", help="time an epoch of each learner instead")
    parser.add_argument(
        "--learners", nargs="+", choices=EPOCHS, default=EPOCHS, help="the learners of --epochs; all without lists"
    )
    parser.add_argument("--width", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--items", type=int, default=ITEMS, help="items of the random log")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--updates", type=int, default=120, help="number of timed updates; at most one epoch")
    parser.add_argument("--set", action="append", default=[], help="an option of the runs, as in `offrec train`")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    given, rows = parse_settings(arguments.set), list[Row]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.epochs:
            shared = SharedData(Dataset.open(arguments.epochs))
            for learner in arguments.learners:
                rows.append(epoch(shared, {"algorithm.name": learner, **given}, folder))
                print(json.dumps(rows[-1]), flush=True)
        else:
            shared = SharedData(
                Dataset.open(arguments.dataset or scale.random_dataset(folder, arguments.items, length=4))
            )
            for width in arguments.width:
                flat = {"network.width": width, "training.batch_size": arguments.rows, **given}
                rows += compare(shared, flat, arguments.updates, folder)
                print("\n".join(json.dumps(row) for row in rows[-3:]), flush=True)
    if arguments.json:
        names = arguments.learners if arguments.epochs else ["dc"]
        made_with = {name: learner_options({**given, "algorithm.name": name}) for name in names}
        made_with["script"] = script_arguments(arguments)
        write_results(arguments.json, rows, made_with, device="cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
