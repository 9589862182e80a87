"""The demo: a small log is made, prepared, learned from, and ranked beside the baselines."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from offrec.baselines import BASELINES, baseline
from offrec.console import Console
from offrec.data.prepare import prepare
from offrec.evaluation import Evaluation, evaluate
from offrec.experiment import load, train

PrintTable = Callable[[str, list[str], list[list[str]]], None]

FIGURES = ("HR@5", "NDCG@5", "HR@10", "NDCG@10", "coverage@10")


def demo(out: Path, seed: int, console: Console, print_table: PrintTable) -> list[Evaluation]:
    """Everything lands in `out`: the log, the dataset, the run, report.md and report.json."""
    for part in ("dataset", "run"):
        shutil.rmtree(out / part, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_log(out / "events.csv", seed)
    dataset = prepare(out / "events.csv", out=out / "dataset", filter=("item=3", "session=3"), progress=console.line)
    settings = {"network.width": 64, "training.epochs": 12, "training.batch_size": 256}
    train(dataset, out / "run", seed=seed, settings=settings, console=console)
    policies = [*(baseline(name, dataset) for name in BASELINES), load(out / "run")]
    found = []
    for policy in policies:
        with console.counter(f"ranking by {policy.name}") as at:
            found.append(evaluate(policy, dataset, "test", progress=at))
    columns, rows = comparison(found)
    print_table(f"test events of {out}/dataset  {dataset.fingerprint}", columns, rows)
    _write_report(out, found, columns, rows)
    console.line(f"Written: {out}/report.md. Try: offrec recommend {out}/run --history 12,55,9 -k 5")
    return found


def comparison(found: list[Evaluation]) -> tuple[list[str], list[list[str]]]:
    """A row for each policy, the figures of each behaviour side by side."""
    behaviours = [name for name in found[0].figures if name != "all"]
    columns = ["policy", *(f"{name} {figure}" for name in behaviours for figure in FIGURES[:4]), FIGURES[4]]
    rows = []
    for one in found:
        cells = [f"{one.figures[name].values[figure]:.3f}" for name in behaviours for figure in FIGURES[:4]]
        rows.append([one.policy, *cells, f"{one.figures['all'].values[FIGURES[4]]:.3f}"])
    return columns, rows


def _write_report(out: Path, found: list[Evaluation], columns: list[str], rows: list[list[str]]) -> None:
    lines = ["# offrec demo", "", f"Test events, full catalogue, fingerprint `{found[0].fingerprint}`.", ""]
    lines += ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows)]
    (out / "report.md").write_text("\n".join(lines) + "\n")
    (out / "report.json").write_text(json.dumps([one.as_json() for one in found], indent=2) + "\n")


def write_log(path: Path, seed: int, sessions: int = 6000, items: int = 800) -> None:
    """An events.csv of visitors who follow paths between related items, come back to what they saw, and put some of it
    into the cart."""
    random = np.random.default_rng(seed)
    liked = random.zipf(1.3, size=200_000) - 1
    liked = liked[liked < items]  # item 0 is the best known
    related = np.stack([(np.arange(items) * 7 + step) % items for step in (1, 3, 11, 40)], 1)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["session", "item", "time", "behaviour"])
        for session in range(sessions):
            clock, seen = 1_700_000_000 + 60 * session, [int(random.choice(liked))]
            table.writerow([session, seen[-1], clock, "view"])
            for _ in range(random.geometric(0.2)):
                clock += int(random.integers(5, 90))
                draw = random.random()
                if draw < 0.15:
                    table.writerow([session, seen[-1], clock, "cart"])
                    seen.append(seen[-1])
                    continue
                step = related[seen[-1], int(random.integers(4) if random.random() < 0.3 else 0)]
                seen.append(
                    int(random.choice(seen)) if draw < 0.4 else int(step if draw < 0.9 else random.choice(liked))
                )
                table.writerow([session, seen[-1], clock, "view"])
