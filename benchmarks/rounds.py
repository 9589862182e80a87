"""Measure rounds of serving, logging and training over several simulated shops.

    python benchmarks/rounds.py --out FOLDER --seeds 101,102,103,104,105 --explore never,blend:0.1,places:1
                                [--sessions 20000] [--rounds 3] [--algorithm user-model] [--jobs 16] [--limit SECONDS]
    python benchmarks/rounds.py --table FOLDER… [--collect results/rounds.json] [--picture docs/images/rounds.svg]

Each shop and way of exploring has its own folder, as `offrec rounds` writes it; repeat the command to continue. With
several jobs they run concurrently, with one thread each, after round 0 of all shops. Logs are stored as arrays, so the
script needs only numpy, torch and safetensors. The reward of `informed` is read from results/earnings.json, which has
the same shops and visitors.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch

from earnings_plan import PLAN
from evidence import ROOT, learner, read_results, script_arguments, world, write_results
from offrec.console import Console
from offrec.rounds import RoundsOptions, run_rounds
from offrec.rounds import read_results as read_rounds
from offrec.rounds.results import OPTIONS
from shop_list_dataset import NumpyLogs

Row = dict[str, Any]
Task = tuple[int, str | None, int]  # shop, way of exploring (None for round 0), round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--world", default="demo")
    parser.add_argument("--seeds", default=",".join(map(str, PLAN.tuning_seeds[:3])))
    parser.add_argument("--sessions", type=int, default=20_000, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--explore", default="never,blend:0.1")
    parser.add_argument("--algorithm", default="user-model")
    parser.add_argument("--train-on", default="served", choices=("served", "all", "newest"))
    parser.add_argument("--fresh", action="store_true", help="train each policy from new weights")
    parser.add_argument("--visitors", type=int, default=PLAN.visitors)
    parser.add_argument("--set", action="append", default=[], help="an option of the learner: key=value")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent processes")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no round after this many seconds")
    parser.add_argument("--table", type=Path, nargs="+", help="print the results in these folders or files")
    parser.add_argument("--collect", type=Path, help="with --table: write all results into one file")
    parser.add_argument("--picture", type=Path, nargs="+", help="with --table: draw the means over shops")
    options = parser.parse_args()
    if options.table is None:
        if options.out is None:
            parser.error("give --out FOLDER, or --table")
        _run(options)
        options.table = [options.out]
    rows = [row for source in options.table for row in _read(source)]
    if options.collect is not None:
        _collect(options, rows)
    _print_table(rows)
    if options.picture is not None:
        _draw(rows, options.picture)


def _collect(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write all rows. Stamped files keep their stamps, because they may have been measured on other machines."""
    used = {name: world(name) for name in dict.fromkeys(row["world"] for row in rows)}
    used |= {name: learner(algorithm=name, dataset_format="decisions") for name in {row["algorithm"] for row in rows}}
    used["script"] = script_arguments(options, "out", "table", "collect")
    files = [source for source in options.table or () if source.is_file()]
    paths = {str(options.out): "FOLDER", str(options.collect): options.collect.name}
    command = shlex.join(["python", "benchmarks/rounds.py", *(paths.get(word, word) for word in sys.argv[1:])])
    write_results(options.collect, list(rows), used, command=command, made_from=files)


def _run(options: argparse.Namespace) -> None:
    """Run round 0 of every shop, then the rounds of all ways of exploring, and collect after each of them."""
    stop = time.time() + options.limit
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        tasks: list[Task] = [(int(seed), None, 0) for seed in options.seeds.split(",")]
        waiting = {pool.submit(_run_shop, options, *task, stop): task for task in tasks}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                seed, way, number = waiting.pop(future)
                if not future.result() or number == options.rounds:
                    continue
                ways = options.explore.split(",") if way is None else [way]
                for task in ((seed, way, number + 1) for way in ways):
                    waiting[pool.submit(_run_shop, options, *task, stop)] = task
                if options.collect is not None:
                    _collect(options, _read(options.out))


def _run_shop(options: argparse.Namespace, seed: int, way: str | None, number: int, stop: float) -> bool:
    """Run the rounds of a way of exploring up to a number, from a copy of round 0; return whether it is finished."""
    torch.set_num_threads(1)
    start = options.out / f"{options.world}-{seed}"
    folder = start
    if way is not None:
        folder = start.with_name(f"{start.name}-{way.replace(':', '-')}")
        if not (folder / OPTIONS).exists():
            shutil.copytree(start, folder, dirs_exist_ok=True)
    results = run_rounds(
        RoundsOptions(
            world=options.world,
            seed=seed,
            sessions=options.sessions,
            rounds=number,
            explore=("never" if way is None else way,),
            algorithm=options.algorithm,
            settings=dict(text.split("=", 1) for text in options.set),
            train_on=options.train_on,
            warm_start=not options.fresh,
            visitors=options.visitors,
            informed_visitors=0,
            device=options.device,
        ),
        folder,
        _Lines(f"shop {seed}: "),
        logs=NumpyLogs(),
        seconds=stop - time.time(),
    )
    return len(results.rounds) == number + 1


class _Lines(Console):
    """Prints the line of each round and nothing else."""

    def __init__(self, prefix: str) -> None:
        super().__init__(quiet=True)
        self.prefix = prefix

    def line(self, text: str) -> None:
        if text.startswith(("Round", "Stopped")):
            print(self.prefix + text, flush=True)


def _read(source: Path) -> list[Row]:
    """Return one row per shop, way of exploring and round."""
    if source.is_file():
        return list(read_results(source))
    rows = []
    informed = _informed()
    for folder in sorted(path.parent for path in source.glob("*/rounds.json")):
        results = read_rounds(folder)
        about = results.options.fixed()
        about = {
            key: about[key]
            for key in ("world", "seed", "sessions", "algorithm", "settings", "train_on", "warm_start", "visitors")
        }
        for one in results.rounds:
            row = {**about, "explore": one.explore, "round": one.number, "served": one.served.mean}
            row |= {"trained": one.trained.mean, "lists": one.lists, "seconds": round(one.seconds, 1)}
            row["informed"] = informed.get((about["world"], about["seed"]))
            rows += [row] if row not in rows else []  # the folders of a shop share round 0
    return rows


def _informed() -> dict[tuple[str, int], float]:
    rows = json.loads((ROOT / "results/earnings.json").read_text())["rows"]
    return {
        (row["world"], row["seed"]): row["reward"] for row in rows if row["policy"] == "informed" and "reward" in row
    }


def _way(row: Row) -> str:
    """Return the learner, the way of exploring and other options that are not the defaults."""
    others = [] if row["algorithm"] == "user-model" else [row["algorithm"]]
    others += [] if row["train_on"] == "served" else [f"trained on {row['train_on']}"]
    others += [] if row["warm_start"] else ["new weights"]
    return ", ".join([row["explore"], *others, *(f"{key}={value}" for key, value in row["settings"].items())])


def _ways(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(_way(row) for row in rows if row["round"]))


def _of(rows: Sequence[Row], way: str, number: int) -> dict[int, Row]:
    """Return the rows of a round by shop; round 0 belongs to all ways of the same options."""
    options = way.partition(", ")[2]
    return {
        row["seed"]: row
        for row in rows
        if row["round"] == number and (_way(row).partition(", ")[2] == options if number == 0 else _way(row) == way)
    }


def _print_table(rows: Sequence[Row]) -> None:
    """Print means over shops, the gain of each round, and the cost of exploring."""
    last = max((row["round"] for row in rows), default=0)
    print("| explore | round | shops | served | cost of exploring | trained | gain of the round | of informed |")
    print("|---" * 8 + "|")
    for way in _ways(rows):
        for number in range(last + 1):
            now = _of(rows, way, number)
            if not now:
                continue
            before = _of(rows, way, number - 1) if number else {}
            cost = [1 - now[seed]["served"] / before[seed]["trained"] for seed in now if seed in before]
            gain = [now[seed]["trained"] - before[seed]["trained"] for seed in now if seed in before]
            share = [row["trained"] / row["informed"] for row in now.values() if row["informed"]]
            served, trained = ([row[name] for row in now.values()] for name in ("served", "trained"))
            cells = [
                way,
                number,
                len(now),
                _mean(served),
                _percent(cost),
                _mean(trained),
                _mean(gain, "+"),
                _percent(share),
            ]
            print("| " + " | ".join(map(str, cells)) + " |")
    for way in _ways(rows):
        after = [row for row in rows if _way(row) == way and row["round"]]
        logging = {row["seed"]: row["served"] for row in rows if row["round"] == 0}
        lowest = min((row["served"] / logging[row["seed"]] for row in after), default=float("nan"))
        print(f"{way}: the worst round earns {lowest:.2f} times as much as the logging policy while serving")


def _mean(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return "–"
    spread = f" ± {1.96 * stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{fmean(values):{sign}.2f}{spread}"


def _percent(values: Sequence[float]) -> str:
    return f"{fmean(values):.0%}" if values else "–"


def _draw(rows: Sequence[Row], paths: Sequence[Path]) -> None:
    """Draw means over shops: for each way of exploring, the rounds that every shop has."""
    shops = {row["seed"] for row in rows}
    lines: dict[str, dict[str, list[tuple[int, float]]]] = {"served": {}, "trained": {}}
    for way in _ways(rows):
        number = 0
        while set(now := _of(rows, way, number)) == shops:
            for name, line in lines.items():
                line.setdefault(way, []).append((number, fmean(row[name] for row in now.values())))
            number += 1
    informed = [row["informed"] for row in rows if row["round"] == 0 and row["informed"]]
    title = (
        f"{rows[0]['algorithm']} in {len(shops)} {rows[0]['world']} shops, {rows[0]['sessions']:,} sessions per round"
    )
    logging = lines["served"][_ways(rows)[0]][0][1]
    level = fmean(informed) if informed else None
    from offrec.rounds.picture import draw_lines  # needs matplotlib

    draw_lines(lines["served"], lines["trained"], paths, logging=logging, informed=level, title=title)


if __name__ == "__main__":
    main()
