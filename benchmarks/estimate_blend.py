"""Measure when an estimate can be trusted: trained policies blended with the logging policy in a simulated shop.

    python benchmarks/estimate_blend.py SERVED RUN... --out FILE [--blends 0.05,0.1,0.2,0.5,1] [--sessions 2000]

SERVED is a prepared log of lists of one, with propensities and the runs' catalogue (`offrec shop -k 1`, then `offrec
prepare --format decisions --catalogue`). No run was trained on its sessions, so all of them are evaluated, as logs of
`--sessions` each. A blend of 0.2 lets the policy make each decision with probability 0.2, and the logging policy
otherwise. Ground truth comes from new visitors. The output lists, by estimator, blend and verdict, how often the 95 %
interval covers the ground truth. One run takes about a minute on one core.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offrec
from evidence import protocol, read_results, script_arguments, trained, write_results
from offrec.console import Console
from offrec.data.rewards import event_rewards
from offrec.estimation.collect import collect_trajectories, load_logging_model
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.trajectories import Trajectories, blended
from offrec.estimation.verdict import VERDICTS, Assessment, assess
from offrec.models.network import NetworkOptions
from offrec.runs.folder import read_run
from offrec.shop.players import Logging, Player, PolicyPlayer
from offrec.shop.randomness import Purpose, generator
from offrec.shop.rollout import paired_difference
from offrec.shop.store import Shop
from offrec.training.loop import TrainingOptions

VISITORS_SEED, LOGGING_VISITORS = 1_000_000, 200_000
ESTIMATORS = ("importance", "self_normalised")
NORMAL = 1.959964


class Blended(Player):
    """Follows a policy with some probability, and the logging policy otherwise."""

    play = "sample"

    def __init__(self, policy: PolicyPlayer, blend: float) -> None:
        super().__init__(policy.dynamics)
        self.policy, self.blend, self.name = policy, blend, f"{blend:g} {policy.name}"
        self.logging = Logging(policy.dynamics)

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        self.policy.begin(sessions, seed)
        self.logging.begin(sessions, seed)
        self.coins = generator(seed, Purpose.CLOCK)

    def offer(self, visitors: Any, rows: Any, step: int) -> Any:
        lists = self.logging.offer(visitors, rows, step)
        chosen = (torch.rand(len(rows), generator=self.coins) < self.blend).nonzero()[:, 0]
        if len(chosen):
            lists[chosen] = self.policy.offer(visitors[chosen], rows[chosen], step)
        return lists

    def observe(self, rows: Any, item: Any) -> None:
        self.policy.observe(rows, item)


def ground_truth(shop: Shop, policy: Any, blends: list[float], visitors: int) -> dict[float, tuple[float, float]]:
    """Return blend → mean reward per session and its standard error."""
    logging = shop.rollout("logging", LOGGING_VISITORS, seed=VISITORS_SEED + 1).reward
    reference = shop.rollout("logging", visitors, seed=VISITORS_SEED)
    result = {}
    for blend in blends:
        player = Blended(PolicyPlayer(shop.dynamics, policy, "sample"), blend)
        more = paired_difference(shop.rollout(player, visitors, seed=VISITORS_SEED), reference)
        error = np.hypot(more.high - more.mean, logging.high - logging.mean) / NORMAL
        result[blend] = (logging.mean + more.mean, float(error))
    return result


def collect_splits(policy: Any, dataset: Any) -> list[Trajectories]:
    """Return the trajectories of each split for the policy alone."""
    rewards = event_rewards(dataset, {})
    network = NetworkOptions(history=policy.history)
    logging = load_logging_model(dataset, network, TrainingOptions(), policy.device, Console(quiet=True))
    splits = [split for split in ("train", "validation", "test") if len(LoggedDecisions.load(dataset, split).sessions)]
    return [
        collect_trajectories(ListPolicy(policy), LoggedDecisions.load(dataset, split), rewards, logging)
        for split in splits
    ]


def logs_of(parts: list[Trajectories], sessions: int) -> list[Any]:
    result = []
    for steps in parts:
        starts = range(0, len(steps) - sessions + 1, sessions)
        result += [steps.select(np.arange(start, start + sessions)) for start in starts]
    return result


def evaluate_run(
    run: Path, dataset: Any, known: list[dict[str, Any]], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Evaluate one run; `known` are rows of other logs with the same ground truth."""
    policy, blends = offrec.load(run, "cpu"), [float(blend) for blend in arguments.blends.split(",")]
    logs = logs_of(collect_splits(policy, dataset), arguments.sessions)
    true = {row["blend"]: (row["truth"], row["truth_error"]) for row in known if row["run"] == run.name}
    true = true or ground_truth(Shop.from_meta(dataset.meta["shop"]), policy, blends, arguments.visitors)
    rows = []
    for blend in blends:
        truth, error = true[blend]
        part = {name: [] for name in ESTIMATORS}
        for log in logs:
            steps = blended(log, blend)
            for name in ESTIMATORS:
                part[name].append(summarise_assessment(assess(name, steps, breakdown=False, resamples=400)))
        about = {"served": arguments.served.name, "run": run.name, "blend": blend, "truth": truth, "truth_error": error}
        rows += [{**about, "estimator": name, "logs": result} for name, result in part.items()]
    return rows


def summarise_assessment(one: Assessment) -> list[Any]:
    """Return the estimate, its interval, the effective number of sessions and the verdict."""
    around = one.interval
    figures = (around.estimate, around.low, around.high, one.support.effective_sessions or 0.0)
    return [*(round(figure, 4) for figure in figures), one.verdict]


def table(rows: list[dict[str, Any]]) -> str:
    """Count, by estimator, blend and verdict, the estimates and the intervals that cover the ground truth."""
    lines = []
    for name in ESTIMATORS:
        for blend in (*sorted({row["blend"] for row in rows}), None):
            selected = [row for row in rows if row["estimator"] == name and blend in (None, row["blend"])]
            logs = [(row["truth"], *log) for row in selected for log in row["logs"]]
            cells = []
            for verdict in VERDICTS:
                covers = [low <= truth <= high for truth, _, low, high, _, result in logs if result == verdict]
                cells.append(f"{verdict}: {sum(covers)} of {len(covers)}")
            off = np.mean([log[1] / log[0] - 1 for log in logs])
            what = "all" if blend is None else f"{blend:g}"
            effective = np.median([log[4] for log in logs])
            lines.append(f"{name:16s} {what:5s} off by {off:+.1%}, effective {effective:6.0f}  {'  '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("served", type=Path)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--blends", default="0.05,0.1,0.2,0.5,1")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--visitors", type=int, default=20_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = offrec.Dataset.open(arguments.served)
    rows = read_results(arguments.out) if arguments.out.exists() else []
    made_with = {"script": script_arguments(arguments), "protocol": protocol(**dataset.protocol.as_json())}
    for run in arguments.runs:
        if any((row["served"], row["run"]) == (arguments.served.name, run.name) for row in rows):
            continue
        started = time.time()
        rows += evaluate_run(run, dataset, rows, arguments)
        made_with[run.name] = trained(read_run(run)["options"], dataset.protocol.format)
        write_results(arguments.out, rows, made_with)
        print(f"{run.name}: {time.time() - started:.0f} s", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
