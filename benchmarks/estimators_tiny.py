"""Measure bias and interval coverage of off-policy estimates in a small world that is solved exactly.

    python benchmarks/estimators_tiny.py                     400 logs of 2,000 sessions, a few minutes on one core
    python benchmarks/estimators_tiny.py --logs 20           a quick check
    python benchmarks/estimators_tiny.py --folds --logs 60   propensities counted across folds, with different shrinkage

Policies: the soft optimum of dynamic programming at falling temperatures, from near the log to far from it. Distant
policies, whose intervals need not cover the exact value, use half of the logs.

Propensities: `true`, as the shop wrote them, and `counted`, the frequency of each item in a state of the same log.

Q: `fitted`, the means of another log of the same size, and `poor`, which contains only immediate rewards.

Marginal weights are over the items' categories; they are also compared with the policy for which they are unbiased.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import Assessment, assess
from offrec.shop import Shop
from offrec.shop.players import Logging
from offrec.shop.recording import ListRecorder
from offrec.shop.rollout import MAX_STEPS, run_sessions
from offrec.shop.solve import TabularMDP, build_mdp, state_index
from offrec.shop.visitors import Step, Visitors
from offrec.shop.worlds import WORLDS

Table = NDArray[np.float64]  # [states, items]
TEMPERATURES = {"near": 1.0, "farther": 0.5, "far": 0.2, "farthest": 0.1}
CLAIMED = ("near", "farther")  # intervals should cover here with 2,000 sessions; elsewhere the verdict must warn
WITHOUT_Q = ("importance", "capped", "self_normalised", "marginal")
ROBUST = ("doubly_robust", "weighted_doubly_robust", "marginal_doubly_robust")
REFITS = 40
FOLDS, SHRUNK = 5, (1.0, 5.0, 20.0, 60.0)
OUT = Path(__file__).parent.parent / "results" / "estimates-tiny.json"


@dataclass(frozen=True)
class Log:
    """Decisions as flat arrays, in the order of sessions and steps."""

    offsets: NDArray[np.int64]
    state: NDArray[np.int64]
    item: NDArray[np.int64]
    reward: NDArray[np.float64]
    propensity: NDArray[np.float64]


@dataclass(frozen=True)
class Tiny:
    shop: Shop
    mdp: TabularMDP
    following: NDArray[np.int64]  # [states, items]
    category: NDArray[np.int64]  # [items]

    @staticmethod
    def open(seed: int = 0) -> "Tiny":
        mdp = build_mdp(WORLDS["tiny"], seed)
        category = mdp.dynamics.items.category[: mdp.shape[1]].numpy()
        return Tiny(Shop(WORLDS["tiny"], seed), mdp, mdp.following.numpy(), category)

    def policy(self, temperature: float) -> Table:
        return self.mdp.soft_optimal(temperature).policy.numpy()

    def value(self, policy: Table, gamma: float = 1.0) -> float:
        return self.mdp.evaluate_policy(torch.as_tensor(policy), gamma).value

    def coarse(self, policy: Table) -> Table:
        """Choose the category as the policy does, and the item within it as the log does."""
        b = self.mdp.logging().numpy()
        return b * self.by_category(policy) / self.by_category(b)

    def by_category(self, policy: Table) -> Table:
        """Return the probability of each item's category: [states, items]."""
        return policy @ (self.category[:, None] == self.category).astype(float)

    def log(self, sessions: int, seed: int) -> Log:
        recorded, states = ListRecorder(), []

        def watch(rows: torch.Tensor, number: int, lists: torch.Tensor, visitors: Visitors, found: Step) -> None:
            states.append(state_index(visitors.memory, self.mdp.shape[1]))
            recorded.watch(rows, number, lists, visitors, found)

        with torch.no_grad():
            run_sessions(self.shop.dynamics, Logging(self.shop.dynamics, recorded), sessions, seed, MAX_STEPS, watch)
        columns = {name: torch.cat(parts).numpy() for name, parts in recorded.columns.items()}
        order = np.lexsort((columns["step"], columns["session"]))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(columns["session"], minlength=sessions))])
        state, item = torch.cat(states).numpy()[order], columns["offered"][order, 0].astype(np.int64)
        reward, chance = columns["reward"][order].astype(float), columns["propensities"][order, 0].astype(float)
        return Log(offsets, state, item, reward, chance)

    def fitted(self, log: Log, counts: NDArray[np.int64], policy: Table, gamma: float = 1.0) -> tuple[Table, Table]:
        """Return Q [states, items] and V [states], estimated from a log in which session i occurs counts[i] times.

        The next state is known; rewards and the probability of staying are estimated by means. Pairs without data use
        the mean of the log.
        """
        often = np.repeat(counts, np.diff(log.offsets)).astype(float)
        stayed = np.ones(len(log.state))
        stayed[log.offsets[1:] - 1] = 0.0
        n, reward, stay = (self.summed(log, often * part) for part in (1.0, log.reward, stayed))
        reward = np.where(n > 0, reward / np.maximum(n, 1), reward.sum() / n.sum())
        stay = np.where(n > 0, stay / np.maximum(n, 1), stay.sum() / n.sum())
        onward = np.zeros((len(n), len(n)))
        np.add.at(onward, (np.arange(len(n))[:, None], self.following), gamma * policy * stay)
        v = np.linalg.solve(np.eye(len(n)) - onward, (policy * reward).sum(1))
        return reward + gamma * stay * v[self.following], v

    def summed(self, log: Log, values: NDArray[np.float64]) -> Table:
        totals = np.zeros(self.following.shape)
        np.add.at(totals, (log.state, log.item), values)
        return totals

    def steps(self, log: Log, policy: Table, b: Table, model: tuple[Table, Table]) -> Trajectories:
        """Collect the values at the logged items; `b` are the logging policy's probabilities, true or counted."""
        at, (q, v) = (log.state, log.item), model
        return Trajectories(
            log.offsets,
            log.reward,
            np.log(policy[at]),
            np.log(b[at]),
            q=q[at],
            v=v[log.state],
            rare_mass=np.zeros(len(log.state)),
            log_ratios={"clusters": np.log(self.by_category(policy)[at] / self.by_category(b)[at])},
            state=log.state,
        )


def propensities(tiny: Tiny, log: Log) -> dict[str, Table]:
    counts = tiny.summed(log, np.ones(len(log.state)))
    true = np.zeros(tiny.following.shape) + tiny.mdp.logging().numpy()
    return {"true": true, "counted": counts / np.maximum(counts.sum(1, keepdims=True), 1)}


def across_folds(tiny: Tiny, log: Log, shrunk: float) -> NDArray[np.float64]:
    """[D] propensities counted in the other folds, shrunk to the overall shares by `shrunk` decisions per state."""
    fold = np.repeat(np.arange(len(log.offsets) - 1) % FOLDS, np.diff(log.offsets))
    propensity = np.zeros(len(fold))
    for one in range(FOLDS):
        counts = tiny.summed(log, (fold != one).astype(float))
        table = (counts + shrunk * counts.sum(0) / counts.sum()) / (counts.sum(1, keepdims=True) + shrunk)
        here = fold == one
        propensity[here] = table[log.state[here], log.item[here]]
    return propensity


def poor(log: Log, policy: Table) -> tuple[Table, Table]:
    """Return a Q that equals an item's mean reward, independent of the state and of later rewards."""
    items = policy.shape[1]
    mean = np.bincount(log.item, log.reward, minlength=items) / np.maximum(np.bincount(log.item, minlength=items), 1)
    return np.broadcast_to(mean, policy.shape), policy @ mean


def estimates(
    tiny: Tiny, policy: Table, log: Log, other: Log, gamma: float, seed: int, resamples: int
) -> Iterator[tuple[str, str, Assessment]]:
    """Run every estimator with true and counted propensities: (propensities, name, estimate)."""
    assess_steps = partial(assess, gamma=gamma, seed=seed, resamples=resamples, breakdown=False)
    once = np.ones(len(other.offsets) - 1, np.int64)
    model, simple = tiny.fitted(other, once, policy, gamma), poor(other, policy)
    for source, b in propensities(tiny, log).items():
        steps, poorly = tiny.steps(log, policy, b, model), tiny.steps(log, policy, b, simple)
        for name in (*WITHOUT_Q, *ROBUST):
            yield source, name, assess_steps(name, steps)
        for name in ROBUST:
            yield source, f"{name}, poor Q", assess_steps(name, poorly)
    random = np.random.default_rng(seed)
    resampled = [np.bincount(random.integers(len(once), size=len(once)), minlength=len(once)) for _ in range(REFITS)]
    again = np.array([tiny.fitted(other, counts, policy, gamma)[1][0] for counts in resampled])
    yield "none", "direct, refitted", assess_steps("direct", steps, refits=again, is_tabular=True)


def folded(tiny: Tiny, sessions: int, logs: int, gamma: float, resamples: int) -> list[dict[str, Any]]:
    """Measure how propensities counted in other sessions change the weights."""
    rows_by_key: dict[tuple[str, float, str], list[tuple[float, ...]]] = {}
    for number in range(logs):
        log, other = (tiny.log(sessions, 2 * number + one) for one in (0, 1))
        for target in CLAIMED:
            policy = tiny.policy(TEMPERATURES[target])
            truth, model = tiny.value(policy, gamma), tiny.fitted(other, np.ones(sessions, np.int64), policy, gamma)
            steps = tiny.steps(log, policy, tiny.mdp.logging().numpy(), model)
            for shrunk in SHRUNK:
                chance = across_folds(tiny, log, shrunk)
                estimated = replace(steps, log_b=np.log(chance))
                for name in ("importance", "self_normalised", "weighted_doubly_robust"):
                    one = assess(name, estimated, gamma=gamma, seed=number, resamples=resamples, breakdown=False)
                    is_covered = one.interval.low <= truth <= one.interval.high
                    row = (
                        one.interval.estimate - truth,
                        is_covered,
                        one.support.mean_weight or 0.0,
                        -float(np.log(chance).mean()),
                    )
                    rows_by_key.setdefault((target, shrunk, name), []).append(row)
    names = ("bias", "coverage", "mass", "log_loss")
    means = {key: dict(zip(names, np.mean(rows, 0).tolist(), strict=True)) for key, rows in rows_by_key.items()}
    return [{"policy": key[0], "shrunk": key[1], "estimator": key[2], **row} for key, row in means.items()]


def measured(tiny: Tiny, sessions: int, logs: int, gamma: float, resamples: int) -> dict[str, Any]:
    rows: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
    verdicts: dict[tuple[str, str, str], list[str]] = {}
    for number in range(logs):
        log, other = (tiny.log(sessions, 2 * number + one) for one in (0, 1))
        for target, temperature in TEMPERATURES.items():
            if target not in CLAIMED and number >= logs // 2:
                continue
            policy = tiny.policy(temperature)
            truth, coarse = tiny.value(policy, gamma), tiny.value(tiny.coarse(policy), gamma)
            for source, name, assessment in estimates(tiny, policy, log, other, gamma, number, resamples):
                for label, value in ((name, truth), *([("marginal, of π̃", coarse)] if name == "marginal" else [])):
                    key, one = (target, source, label), assessment.interval
                    rows.setdefault(key, []).append(
                        (
                            one.estimate - value,
                            one.low <= value <= one.high,
                            one.standard_error,
                            assessment.support.effective_sessions or 0.0,
                        )
                    )
                    verdicts.setdefault(key, []).append(assessment.verdict)
    return {
        "logs": logs,
        "sessions": sessions,
        "gamma": gamma,
        "resamples": resamples,
        "truth": {name: tiny.value(tiny.policy(heat), gamma) for name, heat in TEMPERATURES.items()},
        "logging": tiny.value(tiny.mdp.logging().numpy(), gamma),
        "rows": [summary(key, np.array(rows[key], float), np.array(verdicts[key])) for key in rows],
    }


def summary(key: tuple[str, str, str], rows: NDArray[np.float64], verdict: NDArray[np.str_]) -> dict[str, Any]:
    error, covered, own, effective = rows.T
    kinds = {str(one): verdict == one for one in np.unique(verdict)}
    return {
        "logs": len(rows),
        "policy": key[0],
        "propensities": key[1],
        "estimator": key[2],
        "bias": error.mean(),
        "bias_error": error.std(ddof=1) / len(error) ** 0.5,
        "deviation": error.std(ddof=1),
        "standard_error": own.mean(),
        "coverage": covered.mean(),
        "effective": effective.mean(),
        "verdicts": {one: int(mask.sum()) for one, mask in kinds.items()},
        "coverage_by_verdict": {one: covered[mask].mean() for one, mask in kinds.items()},
    }


def table(result: dict[str, Any]) -> str:
    lines = ["| policy | propensities | estimator | bias | sd | coverage | sessions' worth | trust / caution / not |"]
    lines.append("|---" * 8 + "|")
    for row in result["rows"]:
        given = " / ".join(str(row["verdicts"].get(one, 0)) for one in ("trust", "caution", "do not trust"))
        figures = f"{row['bias']:+.3f} ± {row['bias_error']:.3f} | {row['deviation']:.3f} | {row['coverage']:.3f}"
        names = f"{row['policy']} | {row['propensities']} | {row['estimator']}"
        lines.append(f"| {names} | {figures} | {row['effective']:.0f} | {given} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--folds", action="store_true")
    options = parser.parse_args()
    given = (Tiny.open(), options.sessions, options.logs, options.gamma, options.resamples)
    if options.folds:
        for row in folded(*given):
            print(json.dumps(row))
        return
    from evidence import script_arguments, write_results

    result = measured(*given)
    write_results(options.out, result, {"script": script_arguments(options, "folds")})
    print(table(result))


if __name__ == "__main__":
    main()
