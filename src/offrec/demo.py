"""The demo: visitors come to the simulated shop, its log is learned from, and every policy is judged twice: by the log,
which asks what was clicked next, and by the shop, which knows what is truly earned. It is a study like any other, of
one log, one backbone and one seed.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from offrec.console import Console
from offrec.data.prepare import prepare
from offrec.errors import InputError, RunError
from offrec.reports import formatting, labels
from offrec.reports.reading import PolicyResults
from offrec.reports.report import Report, build_report
from offrec.reports.writing import write_report
from offrec.shop import Shop
from offrec.shop.log import write_log
from offrec.studies import design
from offrec.studies.run import run_study
from offrec.studies.study import Study
from offrec.studies.worker import WorkerOptions

PrintTable = Callable[[str, list[str], list[list[str]]], None]

LOG_SESSIONS, VISITORS = 20_000, 4_000
JOBS = min(2, os.cpu_count() or 1)  # networks this small take twice as long on two cores: better two runs, a core each
# Imitation, and a learner that looks ahead and needs no π̂_b: small, so that the demo is short. The longer one first.
LEARNERS = ("sr", "sl")
SETTINGS = ("network.width=32", "diagnostics=some", "sl:training.epochs=12")
MARK = ".offrec-demo"  # a folder that has it may be replaced
COLUMNS = ["policy", "test HR@5", "test NDCG@10", "true reward a session", "picks", "purchases"]


def demo(out: Path, seed: int, console: Console, print_table: PrintTable) -> Report:
    """Everything lands in `out`: log, dataset, study, report.html and report.md."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise InputError(f"{out} is not a demo's folder and not empty; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("offrec demo\n")
    for part in ("log", "shop", "study"):
        shutil.rmtree(out / part, ignore_errors=True)
    console.line(f"{LOG_SESSIONS:,} visitors come to the shop …")
    write_log(Shop.open("demo", seed), LOG_SESSIONS, out / "log", seed=seed)
    dataset = prepare(out / "log/events.parquet", out=out / "shop", progress=console.line)
    study = _asked(dataset.path, out / "study", seed)
    console.line(f"{len(study.runs)} policies are made, and each serves {VISITORS:,} new visitors …")
    left = run_study(study, WorkerOptions(jobs=JOBS), console)
    if left.failed or left.waiting:
        raise RunError(
            f"{left.failed + left.waiting} of {len(study.runs)} policies failed; see {study.path('failed')}."
        )
    found = build_report([study.folder], title=f"The demo shop, seed {seed}")
    title = f"{found.title}: what the log says of a policy, and what it truly earns"
    print_table(title, COLUMNS, [_row(entry) for entry in found.reading.entries])
    for answer in found.answers:
        console.line(f"Is the RL doing anything here? {answer.short}")
    page, _ = write_report(found, [out / "report.html", out / "report.md"])
    run = study.path("runs", f"{dataset.path.name}.sr.gru.{seed}")
    console.line(f"The report: {page}. Try: offrec recommend {run} --history 12,55,9 -k 5")
    return found


def _asked(dataset: Path, folder: Path, seed: int) -> Study:
    """What takes longest comes first, so that no core waits for it at the end."""
    study = design.plan_comparison(
        [dataset], folder, algorithms=",".join(LEARNERS), seeds=f"{seed},", settings=SETTINGS, visitors=VISITORS
    )
    runs = sorted(study.runs, key=lambda run: study.group(run).kind != "learner")
    return design.create_or_extend(replace(study, runs=tuple(runs)))


def _row(entry: PolicyResults) -> list[str]:
    """A policy's figures in the log, if it ranks one, and what it earned."""
    (result,) = entry.results
    earned = result.facts["shop"]
    reward = earned["reward"]
    return [
        labels.policy_label(entry),
        *(formatting.format_figure(result.figure("all", figure), 3) for figure in ("HR@5", "NDCG@10")),
        f"{reward['mean']:.2f} ± {reward['high'] - reward['mean']:.2f}",
        f"{earned['length']['mean']:.1f}",
        f"{earned['purchases']['mean']:.2f}",
    ]
