"""Measure estimators for parts of lists and their doubly robust forms in a world with lists of two, solved exactly.

    python benchmarks/estimators_tiny_lists.py                400 logs of 2,000 sessions, about ten minutes on one core
    python benchmarks/estimators_tiny_lists.py --logs 20      a quick check

The world is `tiny` with lists of two items and visitors who may pick nothing (utility 1). A state is the visitor's
memory, and an action is one of 30 ordered lists, so the value of every policy follows from a linear system. All
policies sample two items without replacement: the logging policy from the shop's own probabilities, the others from the
soft optimum of `tiny` at falling temperatures.

Estimators get the exact propensities and the library's ratios, with its approximate inclusion probabilities. The
clusters are the three categories. Q is the mean of two items, fitted by least squares to another log of the same size
(`fitted`), or the items' mean immediate reward (`poor`).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from estimators_tiny import Table, summary
from offrec.estimation.control_variates import with_values
from offrec.estimation.list_ratios import with_mean_1
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import Assessment, assess
from tiny_lists_world import ITEMS, LISTS, K, Lists, ListWorld, Log, exact_inclusion, mean_rewards

TEMPERATURES = {"near": 1.0, "farther": 0.5, "far": 0.2}
PLAIN = ("self_normalised", "order_free", "cascade", "pick", "marginal", "marginal_pick")
ROBUST = ("weighted", "order_free", "cascade", "pick", "marginal", "marginal_pick")
OUT = Path(__file__).parent.parent / "results" / "estimates-tiny-lists.json"


def collect(world: ListWorld, log: Log, policy: Lists) -> tuple[Trajectories, dict[str, Table]]:
    """Return the trajectories with all ratios, and the log ratios of each place."""
    b, at = world.logging(), (log.state, log.shown)
    rows, items = np.arange(len(log.state)), LISTS[log.shown]
    picked, place = log.place < K, log.place.clip(max=K - 1)
    (pi_clusters, pi_expected), (b_clusters, b_expected) = (one.clusters(world.cluster) for one in (policy, b))
    places = {
        "prefixes": (policy.places - b.places)[at].cumsum(1),
        "picks": (np.log(policy.included) - np.log(b.included))[log.state[:, None], items],
        "pick_clusters": (pi_expected - b_expected)[at],
    }
    ratios = {
        "prefixes": np.where(picked, places["prefixes"][rows, place], places["prefixes"][:, -1]),
        "sets": (policy.sets - b.sets)[at],
        "clusters": (pi_clusters - b_clusters)[at],
        **{name: with_mean_1(np.where(picked, places[name][rows, place], 0.0)) for name in ("picks", "pick_clusters")},
    }
    log_pi, log_b = (np.log(one.probability)[at] for one in (policy, b))
    steps = Trajectories(log.offsets, log.reward, log_pi, log_b, rare_mass=np.zeros(len(rows)), log_ratios=ratios)
    return steps, places


def estimates(
    world: ListWorld, policy: Lists, log: Log, other: Log, gamma: float, seed: int, resamples: int
) -> Iterator[tuple[str, str, Assessment]]:
    """Yield the model, the estimator and its assessment."""
    steps, places = collect(world, log, policy)
    items = LISTS[log.shown]
    for name in PLAIN:
        yield "none", name, assess(name, steps, gamma=gamma, seed=seed, resamples=resamples, breakdown=False)
    immediate = np.broadcast_to(mean_rewards(other)[1], (len(world.chance), ITEMS))
    models = {"fitted": world.fitted(other, policy, gamma)}
    models["poor"] = immediate, (exact_inclusion(policy) / K * immediate).sum(1)
    for model, (q, v) in models.items():
        item_q = q[log.state[:, None], items]
        robust = with_values(steps, item_q.mean(1), v[log.state], item_q, places)
        for name in ROBUST:
            full = f"{name}_doubly_robust"
            yield model, full, assess(full, robust, gamma=gamma, seed=seed, resamples=resamples, breakdown=False)


def measured(world: ListWorld, sessions: int, logs: int, gamma: float, resamples: int) -> dict[str, Any]:
    rows: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
    verdicts: dict[tuple[str, str, str], list[str]] = {}
    widths: dict[tuple[str, str, str], list[float]] = {}
    for number in range(logs):
        log, other = (world.log(sessions, 2 * number + one) for one in (0, 1))
        for target, temperature in TEMPERATURES.items():
            if target == "far" and number >= logs // 2:
                continue
            policy = world.policy(temperature)
            truth = world.value(policy, gamma)
            for model, name, one in estimates(world, policy, log, other, gamma, number, resamples):
                key, ends = (target, model, name), one.interval
                covered = ends.low <= truth <= ends.high
                numbers = (ends.estimate - truth, covered, ends.standard_error, one.support.effective_sessions or 0.0)
                rows.setdefault(key, []).append(numbers)
                verdicts.setdefault(key, []).append(one.verdict)
                widths.setdefault(key, []).append((ends.high - ends.low) / 2)
    summaries = []
    for key in rows:
        row = summary(key, np.array(rows[key], float), np.array(verdicts[key]))
        row["model"] = row.pop("propensities")
        summaries.append({**row, "half_width": float(np.median(widths[key]))})
    return {
        "logs": logs,
        "sessions": sessions,
        "gamma": gamma,
        "resamples": resamples,
        "truth": {name: world.value(world.policy(heat), gamma) for name, heat in TEMPERATURES.items()},
        "logging": world.value(world.logging(), gamma),
        "rows": summaries,
    }


def table(result: dict[str, Any]) -> str:
    lines = ["| policy | Q | estimator | bias | sd | coverage | half width | trust / caution / not |", "|---" * 8 + "|"]
    for row in result["rows"]:
        given = " / ".join(str(row["verdicts"].get(one, 0)) for one in ("trust", "caution", "do not trust"))
        numbers = f"{row['bias']:+.3f} ± {row['bias_error']:.3f} | {row['deviation']:.3f} | {row['coverage']:.3f}"
        names = f"{row['policy']} | {row['model']} | {row['estimator']}"
        lines.append(f"| {names} | {numbers} | {row['half_width']:.3f} | {given} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    from evidence import script_arguments, write_results

    result = measured(ListWorld.open(), options.sessions, options.logs, options.gamma, options.resamples)
    write_results(options.out, result, {"script": script_arguments(options)})
    print(table(result))


if __name__ == "__main__":
    main()
