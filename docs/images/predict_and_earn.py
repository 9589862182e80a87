"""Draw what policies predict against what they earn: predict-and-earn.svg, from two files in results/.

python docs/images/predict_and_earn.py
"""

import json
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
WORLD = "demo"
IMITATION, MIXED, FREE, CONSTRAINED, BASELINE = "#3b4650", "#0f7f74", "#b4571a", "#1f66b0", "#8a6d00"
FAMILIES = {
    "imitation": (IMITATION, "o", ("sl", "sl+dqn", "sl+pg")),
    "unconstrained RL": (FREE, "s", ("dqn", "pg", "sdac")),
    "constrained RL": (CONSTRAINED, "D", ("sc", "sr", "pc", "dc", "re")),
    "baseline without training": (BASELINE, "^", ("mean-reward", "recent", "vsknn")),
}
# Where a label would cover a mark: (dx, dy) in points.
OFFSETS = {
    "sl+dqn": (8, -10),
    "sl": (6, 6),
    "sl+pg": (-44, 4),
    "vsknn": (-42, -4),
    "recent": (-42, -4),
    "mean-reward": (-4, 8),
    "dqn": (7, -10),
    "pg": (7, -12),
}


def read_rows(path: Path) -> list[dict]:
    content = json.loads(path.read_text())
    return content["rows"] if isinstance(content, dict) else content  # with and without a stamp


def means() -> dict[str, tuple[float | None, float]]:
    """Return (HR@5, true reward) of every policy, as means over the shops of the world."""
    results = [
        result
        for name in ("learners-shops.json", "baselines-shops.json")
        for result in read_rows(RESULTS / name)
        if result["dataset"].startswith(f"{WORLD}-")
    ]
    by_policy: dict[str, list[dict]] = {}
    for result in results:
        by_policy.setdefault(result["algorithm"], []).append(result)
    return {
        name: (
            fmean(r["test"]["HR@5"] for r in group) if "test" in group[0] else None,
            fmean(r["reward"] for r in group),
        )
        for name, group in by_policy.items()
    }


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "offrec", "svg.fonttype": "none", "font.size": 10}
    points = means()
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for label, (colour, marker, names) in FAMILIES.items():
        chosen = [name for name in names if name in points]
        axes.scatter(
            [points[n][0] for n in chosen], [points[n][1] for n in chosen], c=colour, marker=marker, s=48, label=label
        )
        for name in chosen:
            text = name if name in FAMILIES["baseline without training"][2] else name.upper()
            axes.annotate(
                text, points[name], xytext=OFFSETS.get(name, (7, 3)), textcoords="offset points", color=colour
            )
    logging = points["logging"][1]
    axes.axhline(logging, color="#77808a", linestyle="--", linewidth=1)
    axes.text(0.25, logging + 0.02, "the policy that wrote the log", color="#5b6570", ha="center", va="bottom")
    axes.set_xlabel("predicts: HR@5 on the log's test sessions")
    axes.set_ylabel("earns: true reward per session")
    axes.set_xlim(-0.01, 0.47)
    axes.set_ylim(0.8, 2.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(HERE / "predict-and-earn.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
