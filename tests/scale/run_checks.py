"""Train runs by 1 to 4 processes, interrupt them, resume them by other worlds, and print the results as JSON."""

import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "scale"), str(TESTS)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from offrec.console import Console  # noqa: E402
from offrec.data.dataset import Dataset  # noqa: E402
from offrec.errors import InputError, Interrupted  # noqa: E402
from offrec.models import leaving_fit, planner  # noqa: E402
from offrec.models.network import sharded_rows  # noqa: E402
from offrec.runs.launch import is_lost  # noqa: E402
from offrec.runs.loading import load  # noqa: E402
from offrec.runs.sharded import train_sharded  # noqa: E402
from offrec.runs.train import train  # noqa: E402
from offrec.training import checkpoint  # noqa: E402
from offrec.training.loop import Trainer  # noqa: E402
from offrec.training.ranks import Ranks  # noqa: E402
from offrec.training.sharded import ShardedTrainer  # noqa: E402
from small_datasets import write_dataset  # noqa: E402
from worlds import run_ranks  # noqa: E402

QUIET = Console(quiet=True)
USER_ITEMS = 11
ITEMS, STOP_AT = 61, 10  # updates; between two checkpoints, so that an interruption writes one
SETTINGS = {"network.width": 8, "training.batch_size": 64, "training.epochs": 2, "device": "cpu"}


USER_SETTINGS = {
    "algorithm.name": "user-model",
    "algorithm.types": 3,
    "algorithm.width": 4,
    "algorithm.candidates_per_type": 2,
    "training.batch_size": 20,
    "training.epochs": 2,
    "device": "cpu",
}


def make_dataset(folder: Path) -> Dataset:
    random = np.random.default_rng(0)
    sessions = [[int(item) for item in random.integers(0, ITEMS, random.integers(2, 9))] for _ in range(110)]
    behaviours = [[("view", "cart")[int(random.integers(0, 4) == 0)] for _ in session] for session in sessions]
    return write_dataset(folder, sessions, behaviours, splits=(90, 10, 10), items=ITEMS)


def make_lists(folder: Path) -> Dataset:
    """Return a dataset of served lists with a reward column. Some sessions have no pick."""
    random = np.random.default_rng(1)
    sessions, behaviours, decisions = [], [], []
    for number in range(70):
        lists, picks = [], []
        for _ in range(int(random.integers(1, 5))):
            shown = [int(item) for item in random.permutation(USER_ITEMS)[:3]]
            is_picked = random.random() < 0.6 and number % 10 != 3
            lists.append((len(picks), shown, 0.1, len(picks) if is_picked else None))
            picks += [shown[int(random.integers(0, 3))]] if is_picked else []
        sessions.append(picks)
        behaviours.append([("view", "cart")[int(random.integers(0, 3) == 0)] for _ in picks])
        decisions.append(lists)
    rewards = [[round(float(one), 2) for one in random.random(len(session))] for session in sessions]
    folder.mkdir()
    return write_dataset(
        folder, sessions, behaviours, splits=(50, 10, 10), items=USER_ITEMS, decisions=decisions, rewards=rewards
    )


def by_one(dataset: Dataset, out: Path, **more: Any) -> None:
    """Train by one process, forked like the others, so that no run changes the state of the next."""
    resume, settings = more.pop("resume", False), more.pop("settings", SETTINGS) | more
    run_ranks(1, lambda rank: bool(train(dataset, out, settings=settings, resume=resume, console=QUIET)))


def by_ranks(dataset: Dataset, out: Path, world: int, catalogue_ranks: int | None = None, **more: Any) -> list[Any]:
    """Train by several processes; return a digest of the replicated tensors of each, and what it raised."""
    resume, settings = more.pop("resume", False), more.pop("settings", SETTINGS) | more

    def work(rank: int) -> Any:
        ranks = Ranks.create(catalogue_ranks)
        try:
            policy = train_sharded(dataset, out, ranks, settings=settings, resume=resume, console=QUIET)
        except (Interrupted, InputError) as error:
            return type(error).__name__, str(error)
        except RuntimeError as error:
            if is_lost(error):  # another rank has raised
                return "lost", ""
            raise
        rows, state = sharded_rows(policy.agent), policy.agent.state_dict()
        own = {name: one for name, one in state.items() if name not in rows}
        return "", checkpoint._checksum(own, "")

    return run_ranks(world, work)


def interrupted(run: Callable[[], Any]) -> Any:
    """Run with trainers that stop after some updates, as after Ctrl-C."""
    kept = Trainer._should_stop, ShardedTrainer._should_stop
    Trainer._should_stop = ShardedTrainer._should_stop = lambda self, stop: self.progress.updates == STOP_AT
    try:
        return run()
    finally:
        Trainer._should_stop, ShardedTrainer._should_stop = kept


def lines(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def difference(one: Path, other: Path, name: str = "last") -> float:
    """Return the largest difference of all tensors of two checkpoints, relative to 1 + their size."""
    loaded = (checkpoint.load(run / f"{name}.safetensors")[0] for run in (one, other))
    first, second = ({key: one for key, one in part.items() if not key.startswith("random")} for part in loaded)
    assert set(first) == set(second), set(first) ^ set(second)
    worst = 0.0
    for key, tensor in first.items():
        if tensor.is_floating_point() and tensor.numel():
            a, b = tensor.double(), second[key].double()
            worst = max(worst, float(((a - b).abs() / (1.0 + b.abs())).max()))
        elif not bool((tensor == second[key]).all()):
            worst = float("inf")
    return worst


def figures(one: Path, other: Path) -> float:
    """Return the largest difference of losses and validation figures of two runs."""
    worst = 0.0
    for a, b in zip(lines(one), lines(other), strict=True):
        for part in ("loss", "validation", "diagnostics"):
            both = [(value, b[part][name]) for name, value in a.get(part, {}).items()]
            worst = max([worst, *(abs(x - y) / (1.0 + abs(y)) for x, y in both)])
    return worst


def user_model(folder: Path) -> dict[str, Any]:
    """Train a user model by one process, by two ranks, by groups that read different sessions, and resume it."""
    planner.SIMULATED_LISTS = 1  # each list takes about 20 messages
    # Where L-BFGS stops depends on rounding, but its limit does not.
    leaving_fit.FIRST, leaving_fit.FINAL, leaving_fit.FINALISTS, leaving_fit.TOLERANCE = 0, 150, 3, 1e-11
    results: dict[str, Any] = {}
    dataset = make_lists(folder)
    one, groups, stopped = folder / "one", folder / "groups", folder / "stopped"
    by_one(dataset, one, settings=USER_SETTINGS)
    digests = by_ranks(dataset, groups, 4, 2, settings=USER_SETTINGS)
    results["user model in groups"] = difference(groups, one), figures(groups, one)
    results["user model replicated"] = len({digest for _, digest in digests}) == 1
    raised = interrupted(lambda: by_ranks(dataset, stopped, 3, settings=USER_SETTINGS))
    results["user model raised"] = [kind for kind, _ in raised]
    by_ranks(dataset, stopped, 2, resume=True, settings=USER_SETTINGS)
    results["user model resumed"] = difference(stopped, one), figures(stopped, one)
    lists = [load(run, "cpu").recommend([105, 107], 3) for run in (one, groups)]
    results["user model recommended"] = lists[0].items == lists[1].items
    return results


def main() -> None:
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    with torch.device("meta"):
        torch.randn(2) * 2.0  # imports torch's compiler once, before forks, instead of once per run
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = make_dataset(folder)
        one, three = folder / "one", folder / "three"
        by_one(dataset, one)
        digests = by_ranks(dataset, three, 3)
        results["replicated equal"] = len({digest for _, digest in digests}) == 1
        results["three"] = difference(three, one), figures(three, one)

        stopped = folder / "stopped"
        results["raised"] = [kind for kind, _ in interrupted(lambda: by_ranks(dataset, stopped, 3))]
        for world in (1, 2, 3, 4):
            out = folder / f"resumed-{world}"
            shutil.copytree(stopped, out)
            resume = by_one if world == 1 else by_ranks
            resume(dataset, out, *([] if world == 1 else [world]), resume=True)
            results[f"resumed {world}"] = difference(out, three), figures(out, three)
            results[f"files {world}"] = sorted(path.name.split("-")[0] for path in out.glob("last*"))
        stopped_one = folder / "stopped-one"
        try:
            interrupted(lambda: by_one(dataset, stopped_one))
        except RuntimeError as error:
            results["stopped one"] = "Interrupted" in str(error)
        by_ranks(dataset, stopped_one, 2, resume=True)
        results["one file resumed by 2"] = difference(stopped_one, one), figures(stopped_one, one)

        plain, groups = folder / "plain", folder / "groups"
        no_dropout = {"network.dropout": 0.0}
        by_one(dataset, plain, **no_dropout)
        digests = by_ranks(dataset, groups, 4, 2, **no_dropout)
        results["two groups"] = difference(groups, plain), figures(groups, plain)
        results["replicated equal in groups"] = len({digest for _, digest in digests}) == 1

        dc = {"algorithm.name": "dc", "training.epochs": 1}
        by_one(dataset, folder / "dc-one", **dc)
        shutil.rmtree(dataset.path / "logging")  # each fits its own logging policy
        by_ranks(dataset, folder / "dc-two", 2, **dc)
        results["dc"] = difference(folder / "dc-two", folder / "dc-one"), figures(folder / "dc-two", folder / "dc-one")
        lists = [load(folder / run, "cpu").recommend([105, 107], 5) for run in ("dc-one", "dc-two")]
        results["recommended"] = lists[0].items == lists[1].items

        damaged = next(path for path in three.glob("last-*-1-of-3.safetensors"))
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(bytes(content))
        results["damaged"] = by_ranks(dataset, three, 3, resume=True)
        results["refused"] = by_ranks(dataset, folder / "refused", 2, select="value")
        results |= user_model(folder / "user")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
