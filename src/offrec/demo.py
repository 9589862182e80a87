"""The demo: visitors come to the simulated shop, its log is learned from, and every policy is judged twice: by the log,
which asks what was clicked next, and by the shop, which knows what is truly earned."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from offrec.baselines import BASELINES, baseline
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.evaluation import Evaluation, evaluate
from offrec.experiment import train
from offrec.policy import Policy
from offrec.shop import Rollout, Shop, paired
from offrec.shop.log import write_log

PrintTable = Callable[[str, list[str], list[list[str]]], None]

OWN = ("random", "logging", "greedy", "oracle")  # the shop's own policies; they rank no log
LOG_SESSIONS, VISITORS = 20_000, 4_000
# Imitation, and a learner that looks ahead and needs no π̂_b: small, so that the demo is short.
LEARNERS: dict[str, dict[str, int | str]] = {
    "sl": {"network.width": 32, "training.epochs": 12},
    "sr": {"network.width": 32, "diagnostics": "some"},
}
MARK = ".offrec-demo"  # a folder that has it may be replaced
VISITORS_SEED = 1_000_000  # other visitors than the log's
FIGURES = ("HR@5", "NDCG@10")
COLUMNS = ["policy", *(f"test {figure}" for figure in FIGURES), "true reward a session", "picks", "purchases"]

REPORT = f"""{LOG_SESSIONS:,} sessions of the simulated shop `demo`, dataset fingerprint `{{fingerprint}}`.
HR and NDCG: the next logged item in the full catalogue, test sessions. True reward: what a session earned (view 0.2,
cart 1, buy 1), with a 95 % interval, when the policy itself served {VISITORS:,} new visitors until they left; all met
the same visitors. `greedy` knows every visitor's taste and shows what will be clicked most now; `oracle` also looks
ahead. What lies between them is there to be won, and next-item figures do not show it. `sl` imitates the log; `sr`
also learned from it what follows from a pick."""


@dataclass(frozen=True)
class Judged:
    """One policy: its figures in the log, if it ranks one, and what it earned."""

    evaluation: Evaluation | None
    rollout: Rollout

    def row(self) -> list[str]:
        found = self.evaluation
        cells = [f"{found.figures['all'][figure]:.3f}" if found else "–" for figure in FIGURES]
        reward = self.rollout.reward
        earned = f"{reward.mean:.2f} ± {reward.high - reward.mean:.2f}"
        return [
            self.rollout.policy,
            *cells,
            earned,
            f"{self.rollout.length.mean:.1f}",
            f"{self.rollout.purchases.mean:.2f}",
        ]


def demo(out: Path, seed: int, console: Console, print_table: PrintTable) -> list[Judged]:
    """Everything lands in `out`: log, dataset, runs, report.md with its picture, report.json."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise InputError(f"{out} is not a demo's folder and not empty; choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("offrec demo\n")
    for part in ("log", "dataset", "run", "runs"):
        shutil.rmtree(out / part, ignore_errors=True)
    shop = Shop.open("demo", seed)
    console.line(f"{LOG_SESSIONS:,} visitors come to the shop …")
    write_log(shop, LOG_SESSIONS, out / "log", seed=seed)
    dataset = prepare(out / "log/events.parquet", out=out / "dataset", progress=console.line)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small take twice as long on two
    try:
        learned = [
            train(dataset, out / "runs" / name, algorithm=name, seed=seed, settings=settings, console=console)
            for name, settings in LEARNERS.items()
        ]
    finally:
        torch.set_num_threads(threads)
    judged = _judge(shop, dataset, [*(baseline(name, dataset) for name in BASELINES), *learned], console)
    rows = [one.row() for one in judged]
    console.line(verdict(judged))
    print_table(f"The demo shop, seed {seed}: what the log says of a policy, and what it truly earns", COLUMNS, rows)
    _write_report(out, dataset, judged, rows)
    console.line(f"Written: {out}/report.md. Try: offrec recommend {out}/runs/sr --history 12,55,9 -k 5")
    return judged


def _judge(shop: Shop, dataset: Dataset, policies: list[Policy], console: Console) -> list[Judged]:
    judged = []
    with console.steps("judging", len(OWN) + len(policies)) as advance:
        for own in OWN:
            judged.append(Judged(None, shop.rollout(own, VISITORS, seed=VISITORS_SEED)))
            advance(note=own)
        for policy in policies:
            earned = shop.rollout(policy, VISITORS, seed=VISITORS_SEED)
            judged.append(Judged(evaluate(policy, dataset, "test"), earned))
            advance(note=policy.name)
    return judged


def _write_report(out: Path, dataset: Dataset, judged: list[Judged], rows: list[list[str]]) -> None:
    lines = [
        "# offrec demo",
        "",
        REPORT.format(fingerprint=dataset.fingerprint),
        "",
        *("| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)),
        "",
        verdict(judged),
        "",
        "![true reward by policy](report.png)",
    ]
    draw(judged, out / "report.png")
    (out / "report.md").write_text("\n".join(lines) + "\n")
    whole = [{"rollout": j.rollout.as_json(), "evaluation": j.evaluation and j.evaluation.as_json()} for j in judged]
    (out / "report.json").write_text(json.dumps(whole, indent=2) + "\n")


def verdict(judged: list[Judged]) -> str:
    """What learning to look ahead brought, in words, from the same visitors' rewards."""
    earned = {one.rollout.policy: one.rollout for one in judged}
    ours = next(rollout for name, rollout in earned.items() if name.startswith("sr/"))
    imitation = next(rollout for name, rollout in earned.items() if name.startswith("sl/"))
    parts = []
    for name, other in (("SL", imitation), ("the logging policy", earned["logging"])):
        gain = paired(ours, other)
        clear = "more than" if gain.low > 0 else "less than" if gain.high < 0 else "no clearly different amount from"
        parts.append(f"{clear} {name} ({gain.mean:+.2f} a session, 95 % interval {gain.low:+.2f} to {gain.high:+.2f})")
    return f"SR earned {parts[0]} and {parts[1]}, from the same log, served to the same visitors."


def draw(judged: list[Judged], path: Path) -> None:
    """True reward with its interval, and HR@5 in the log beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ordered = sorted(judged, key=lambda one: one.rollout.reward.mean)
    names = [one.rollout.policy for one in ordered]
    means = [one.rollout.reward.mean for one in ordered]
    errors = [one.rollout.reward.high - one.rollout.reward.mean for one in ordered]
    hits = [one.evaluation.figures["all"]["HR@5"] if one.evaluation else 0.0 for one in ordered]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True, constrained_layout=True)
    left.barh(names, means, xerr=errors, color=["#9aa5b1" if name in OWN else "#2f6f9f" for name in names])
    left.set_xlabel("true reward a session, 95 % interval")
    right.barh(names, hits, color="#c98a2b")
    right.set_xlabel("HR@5 in the log (grey policies rank no log)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
