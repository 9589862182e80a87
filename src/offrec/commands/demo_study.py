"""The demo: simulate a shop, learn from its log, and evaluate every policy twice.

The log shows how well a policy predicts the next item; the shop shows what it really earns. The demo is an ordinary
study with one log, one backbone and one seed.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from offrec.commands.printing import print_table
from offrec.console import Console
from offrec.data.prepare import prepare
from offrec.errors import InputError, RunError
from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.reading import PolicyResults
from offrec.reports.report import Report, build_report
from offrec.reports.writing import write_report
from offrec.reports.yardsticks import best_simple, compare_with_simple, informed_note, ranks_by, share_of_informed
from offrec.shop import Shop
from offrec.shop.log import write_log
from offrec.studies import design
from offrec.studies.run import run_study
from offrec.studies.study import Run, Study
from offrec.studies.worker import WorkerOptions

LOG_SESSIONS, VISITORS, INFORMED_VISITORS = 20_000, 4_000, 1_000
JOBS = min(2, os.cpu_count() or 1)  # small networks do not benefit from a second core, so two runs use one core each
# The learner that the documentation recommends for value, and an imitation learner. The longer run starts first.
LEARNERS = ("user-model", "sl")
BASELINES = ("popular", "mean-reward", "pick-rate", "recent", "item-neighbours")  # the others take longer
SETTINGS = ("network.width=32", "diagnostics=some", "sl:training.epochs=12")
MARK = ".offrec-demo"  # a folder that contains this file may be replaced
COLUMNS = [
    "policy",
    "test HR@5",
    "test NDCG@10",
    "true reward per session",
    "share of Informed",
    "compared with the best simple policy",
    "purchases",
    "ranks by",
]


def run_demo(out: Path, seed: int, console: Console) -> Report:
    """Write the log, the dataset, the study and its report to `out`, and print a table.

    Args:
        out: The folder; an earlier demo there is replaced.
        seed: Seed of the shop, of the log and of the runs.
        console: Where progress is printed.

    Returns:
        The report.

    Raises:
        InputError: `out` is not empty and does not contain a demo.
        RunError: A run failed.
    """
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise InputError(f"{out} is not empty and does not contain a demo; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("offrec demo\n")
    for part in ("log", "shop", "study"):
        shutil.rmtree(out / part, ignore_errors=True)
    console.line(f"simulating {LOG_SESSIONS:,} visitors …")
    write_log(Shop.open("demo", seed), LOG_SESSIONS, out / "log", seed=seed)
    dataset = prepare(out / "log/full.parquet", format="decisions", out=out / "shop", progress=console.line)
    study = _design(dataset.path, out / "study", seed)
    console.line(f"building {len(study.runs)} policies; each serves {VISITORS:,} new visitors …")
    left = run_study(study, WorkerOptions(jobs=JOBS), console)
    if left.failed or left.waiting:
        raise RunError(
            f"{left.failed + left.waiting} of {len(study.runs)} policies failed; see {study.path('failed')}."
        )
    page = build_report([study.folder], title=f"The demo shop, seed {seed}")
    title = f"{page.title}: how each policy scores in the log, and what it earns in the shop"
    gains = _gains(page)
    print_table(title, COLUMNS, [_row(page, policy, gains.get(id(policy))) for policy in page.results.played])
    console.line(f"{informed_note(page.results, dataset.path.name)} p: Holm's correction over the learners.")
    for answer in page.answers:
        console.line(f"Is the RL doing anything here? {answer.text()}")
    path, _ = write_report(page, [out / "report.html", out / "report.md"])
    run = study.path("runs", f"{dataset.path.name}.{LEARNERS[0]}.gru.{seed}")
    console.line(f"Report: {path}. Try: offrec recommend {run} --history 12,55,9 -k 5")
    return page


def _design(dataset: Path, folder: Path, seed: int) -> Study:
    """Plan a comparison whose longest runs come first, so that no core is idle at the end."""
    study = design.plan_comparison(
        [dataset],
        folder,
        algorithms=",".join(LEARNERS),
        baselines=",".join(BASELINES),
        seeds=f"{seed},",
        settings=SETTINGS,
        visitors=VISITORS,
        informed_visitors=INFORMED_VISITORS,
    )
    runs = sorted(study.runs, key=lambda run: _start_order(study, run))
    return design.create_or_extend(replace(study, runs=tuple(runs)))


def _start_order(study: Study, run: Run) -> tuple[bool, bool]:
    """Sort learners first, then `informed`, then all other policies, which take seconds."""
    group = study.group(run)
    return group.kind != "learner", group.policy != "informed"


def _gains(page: Report) -> dict[int, Comparison]:
    """Compare each learner with the best simple policy."""
    simple = best_simple(page.results, page.results.played[0].group.log)
    learners = [policy for policy in page.results.played if policy.group.kind == "learner"]
    compared = zip(learners, compare_with_simple(Comparer(page.results), learners, simple), strict=True)
    return {id(policy): one for policy, one in compared if one is not None}


def _row(page: Report, policy: PolicyResults, gain: Comparison | None) -> list[str]:
    """Return the cells of a policy: its metrics in the log, if it ranks items, and what it earned in the shop."""
    (result,) = policy.results
    earned = result.facts["shop"]
    reward = earned["reward"]
    return [
        labels.policy_label(policy),
        *(formatting.format_metric(result.metric("all", metric), 3) for metric in ("HR@5", "NDCG@10")),
        f"{reward['mean']:.2f} ± {reward['high'] - reward['mean']:.2f}",
        formatting.format_percent(share_of_informed(page.results, policy)),
        f"{formatting.format_gain(gain.gain, 2)}, {formatting.format_p_value(gain.corrected)}" if gain else "–",
        f"{earned['purchases']['mean']:.2f}",
        ranks_by(policy),
    ]
