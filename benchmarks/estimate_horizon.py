"""Measure estimates and verdicts by the number of lists per session, in a small world that is solved exactly.

    python benchmarks/estimate_horizon.py                    200 logs of 2,000 sessions, half an hour on one core
    python benchmarks/estimate_horizon.py --logs 10          a quick check
    python benchmarks/estimate_horizon.py --table results/estimates-horizon.json results/estimates-horizon-2.json

Logs of `tiny` are cut after 1, 2, 4, 8 or 16 lists per session, or not at all. Policies are its soft optima at falling
temperatures; the exact values of cut sessions come from the dynamic programme with a limit on steps. Propensities are
true. Q is fitted to another log of the same size; "poor Q" contains only mean immediate rewards.

State-marginal weights use the exact state (the last two picks) as the class, or the classes of `offrec estimate`.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimators_tiny import Log, Table, Tiny
from evidence import read_results, script_arguments, write_results
from offrec.estimation.state_classes import classify_states
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import VERDICTS, Assessment, assess

HORIZONS = (1, 2, 4, 8, 16, None)
TEMPERATURES = (1.0, 0.5, 0.2, 0.1)
PLAIN = ("self_normalised", "importance", "weighted_doubly_robust")
SPLICED = ("state_marginal", "state_marginal_doubly_robust")
ENOUGH = 100  # verdicts
LONGEST = 400  # decisions; longer sessions are practically impossible
OUT = Path(__file__).parent.parent / "results" / "estimates-horizon.json"
Figures = dict[str, Any]
Model = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def cut(log: Log, horizon: int | None) -> Log:
    """Return the first decisions of each session."""
    if horizon is None:
        return log
    lengths = np.diff(log.offsets)
    step = np.arange(len(log.state)) - np.repeat(log.offsets[:-1], lengths)
    first = step < horizon
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, horizon))])
    return Log(offsets, log.state[first], log.item[first], log.reward[first], log.propensity[first])


def model_of(tiny: Tiny, log: Log | None) -> Model:
    """Return the reward and the probability of staying [states, items], exact or as the means of a whole log."""
    if log is None:
        return tiny.mdp.reward.numpy(), tiny.mdp.stay.numpy(), tiny.following
    stayed = np.ones(len(log.state))
    stayed[log.offsets[1:] - 1] = 0.0
    n, reward, stay = (tiny.summed(log, part) for part in (np.ones(len(stayed)), log.reward, stayed))
    reward = np.where(n > 0, reward / np.maximum(n, 1), reward.sum() / n.sum())
    return reward, np.where(n > 0, stay / np.maximum(n, 1), stay.sum() / n.sum()), tiny.following


def values_to_go(model: Model, policy: Table, horizon: int | None) -> list[tuple[Table, NDArray[np.float64]]]:
    """Return Q and V with 1, 2, … decisions to go; for whole sessions, with infinitely many only."""
    reward, stay, following = model
    v, result = np.zeros(len(reward)), []
    for _ in range(horizon or LONGEST):
        q = reward + stay * v[following]
        v = (policy * q).sum(1)
        result.append((q, v))
    return result if horizon else result[-1:]


def trajectories(tiny: Tiny, policy: Table, log: Log, other: Log, horizon: int | None) -> dict[str, Trajectories]:
    """Return the columns of a log with each kind of Q."""
    at, b = (log.state, log.item), tiny.mdp.logging().numpy()
    items = tiny.following.shape[1]
    mean = np.bincount(other.item, other.reward, items) / np.maximum(np.bincount(other.item, minlength=items), 1)
    poor = np.broadcast_to(mean, policy.shape), policy @ mean
    to_go = values_to_go(model_of(tiny, other), policy, horizon)
    plain = Trajectories(
        log.offsets,
        log.reward,
        np.log(policy[at]),
        np.log(b[at]),
        rare_mass=np.zeros(len(log.state)),
        log_ratios={"clusters": np.log(tiny.by_category(policy)[at] / tiny.by_category(b)[at])},
        state=log.state,
    )
    number = np.zeros_like(plain.step) if horizon is None else horizon - 1 - plain.step
    q, v = np.stack([one[0] for one in to_go])[(number, *at)], np.stack([one[1] for one in to_go])[number, log.state]
    return {"fitted": replace(plain, q=q, v=v), "poor": replace(plain, q=poor[0][at], v=poor[1][log.state])}


def estimates(
    by_q: dict[str, Trajectories], log: Log, seed: int, resamples: int, *, everything: bool, only: str = ""
) -> Iterator[tuple[str, Assessment]]:
    """Yield the assessment of each estimator; for whole sessions, those with a poor Q and ratios of clusters too."""
    fitted, poor = by_q["fitted"], by_q["poor"]
    given: list[tuple[str, str, Trajectories]] = [(name, name, fitted) for name in PLAIN]
    general = classify_states(log.offsets, log.item, log.reward)
    given += [(f"{name}, classes", name, replace(fitted, state=general)) for name in SPLICED]
    if everything:
        given += [(f"{name}, exact states", name, fitted) for name in SPLICED]
        given += [
            ("marginal", "marginal", fitted),
            ("weighted_doubly_robust, poor Q", "weighted_doubly_robust", poor),
            ("state_marginal_doubly_robust, classes, poor Q", SPLICED[1], replace(poor, state=general)),
        ]
    for label, name, steps in given:
        if not label.startswith(only):
            continue
        yield label, assess(name, steps, seed=seed, resamples=resamples, breakdown=False)


def exact_values(tiny: Tiny) -> dict[tuple[int | None, float], float]:
    """Return the value of a new visitor by horizon and temperature."""
    model = model_of(tiny, None)
    return {
        (horizon, temperature): float(values_to_go(model, tiny.policy(temperature), horizon)[-1][1][0])
        for temperature in TEMPERATURES
        for horizon in HORIZONS
    }


def measure(tiny: Tiny, options: argparse.Namespace) -> Iterator[Figures]:
    """Yield one row per log, horizon, temperature and estimator."""
    policies, truths = {one: tiny.policy(one) for one in TEMPERATURES}, exact_values(tiny)
    for number in range(options.first_log, options.first_log + options.logs):
        whole, other = (tiny.log(options.sessions, 2 * number + one) for one in (0, 1))
        for horizon, temperature in product(HORIZONS, TEMPERATURES):
            log, policy, truth = cut(whole, horizon), policies[temperature], truths[horizon, temperature]
            by_q = trajectories(tiny, policy, log, other, horizon)
            about = {"horizon": horizon, "temperature": temperature, "log": number, "truth": truth}
            decisions = len(log.state) / options.sessions
            given = (by_q, log, number, options.resamples)
            for label, one in estimates(*given, everything=horizon is None, only=options.only):
                yield {**about, "decisions": decisions, "estimator": label, **figures(one, truth)}
        if (number + 1) % 10 == 0:
            print(f"{number + 1} logs", flush=True)


def summarise(rows: Iterable[Figures]) -> list[dict[str, Any]]:
    """Return one row per horizon, temperature and estimator."""
    found: dict[tuple[Any, ...], list[Figures]] = {}
    for row in rows:
        found.setdefault((row["horizon"], row["temperature"], row["truth"], row["estimator"]), []).append(row)
    names = ("horizon", "temperature", "truth", "estimator")
    return [{**dict(zip(names, key, strict=True)), **summary(part)} for key, part in found.items()]


def figures(one: Assessment, truth: float) -> Figures:
    """Return what the tables need of one estimate."""
    low, high, support = one.interval.low, one.interval.high, one.support
    return {
        "error": one.interval.estimate - truth,
        "covered": low <= truth <= high,
        "half_width": (high - low) / 2,
        "verdict": one.verdict,
        "effective": support.effective_sessions,
        "tail": support.tail_shape,
        "contribution_tail": support.contribution_tail_shape,
        "reasons": [reason.code for reason in one.reasons],
    }


def summary(rows: list[Figures]) -> dict[str, Any]:
    """Return the figures of one row of the tables."""
    error, covered, width = (np.array([row[key] for row in rows], float) for key in ("error", "covered", "half_width"))
    verdict = np.array([row["verdict"] for row in rows])
    return {
        "logs": len(rows),
        "decisions": float(np.mean([row["decisions"] for row in rows])),
        "bias": error.mean(),
        "bias_error": error.std(ddof=1) / len(error) ** 0.5,
        "deviation": error.std(ddof=1),
        "coverage": covered.mean(),
        "half_width": float(np.median(width)),
        "effective": float(np.mean([row["effective"] for row in rows])),
        "verdicts": {one: int((verdict == one).sum()) for one in VERDICTS},
        "covered": {one: int(covered[verdict == one].sum()) for one in VERDICTS},
    }


def tables(rows: list[dict[str, Any]]) -> str:
    """Return Markdown: whole sessions by estimator and temperature, then verdicts by horizon and estimator."""
    found = {(row["horizon"], row["temperature"], row["estimator"]): row for row in rows}
    names = list(dict.fromkeys(row["estimator"] for row in rows))
    lines = ["| estimator | " + " | ".join(f"{one:g}" for one in TEMPERATURES) + " |", "|---" * 5 + "|"]
    for name in names:
        cells = [found[None, one, name] for one in TEMPERATURES]
        texts = [f"{one['bias']:+.3f}, {one['coverage']:.1%}, {one['half_width']:.3f}" for one in cells]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    lines += ["", "| horizon | lists per session | estimator | " + " | ".join(f"{one:g}" for one in TEMPERATURES)]
    lines[-1] += " | trust | trust holds |"
    lines.append("|---" * 9 + "|")
    for name in names:
        for horizon in HORIZONS:
            cells = [found[horizon, one, name] for one in TEMPERATURES if (horizon, one, name) in found]
            if not cells:
                continue
            given, held = (sum(one[key]["trust"] for one in cells) for key in ("verdicts", "covered"))
            texts = [f"{one['bias']:+.3f}, {one['coverage']:.1%}" for one in cells]
            share = (
                f"{given / sum(one['logs'] for one in cells):.0%} | {held / given:.1%} of {given}"
                if given
                else "0 % | "
            )
            lengths = f"{horizon or 'whole'} | {cells[0]['decisions']:.1f}"
            lines.append(f"| {lengths} | {name} | " + " | ".join(texts) + f" | {share} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--first-log", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--only", default="", help="measure only estimators whose names begin like this")
    parser.add_argument("--rows", type=Path, help="also write one line of JSON per estimate to this file")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", type=Path, nargs="+", help="print the tables of these files, without a measurement")
    options = parser.parse_args()
    if not options.table:
        rows: list[Figures] = []
        with options.rows.open("w") if options.rows else nullcontext() as file:
            for row in measure(Tiny.open(), options):
                rows.append(row)
                if file is not None:
                    file.write(json.dumps(row) + "\n")
        write_results(options.out, summarise(rows), {"script": script_arguments(options, "table")})
    print(tables([row for path in options.table or [options.out] for row in read_results(path)]))


if __name__ == "__main__":
    main()
