"""The figures of a report."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from offrec.reports import formatting, labels
from offrec.reports.answers import earnings_measure, learner_groups
from offrec.reports.compared_learners import Measure
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.svg import HEIGHT, SHAPES, Panel, Scale, text_width
from offrec.reports.sweep_figures import draw_sweep
from offrec.reports.sweeps import sweep_columns, sweeps
from offrec.reports.tables import policy_summary

FAMILIES = {
    "imitation": "imitation",
    "mixed": "imitation and RL",
    "unconstrained": "RL without a constraint",
    "constrained": "RL constrained to the log",
    "planner": "planner",
    "baseline": "baseline",
    "shop": "shop policy",
}
END_MARGIN = 62  # least space for line labels on the right
AXIS_LABELS = {
    "reward": "true reward per session",
    "value": "estimated value per session",
    "reward@10": "reward@10",
    "NDCG@10": "NDCG@10 in the log",
}


@dataclass(frozen=True)
class Figure:
    """A figure with its identifier and caption."""

    key: str
    svg: str
    caption: str = ""


def family(policy: PolicyResults) -> str:
    """Return the family of a policy, which determines its colour and mark."""
    return labels.learner_family(policy.group) if policy.group.kind == "learner" else policy.group.kind


def family_legend(figures: Sequence[Figure]) -> str:
    """Explain the marks of the families that the figures contain, as HTML."""
    return "".join(
        f'<span class="key"><svg viewBox="-7 -7 14 14" aria-hidden="true"><g class="mark f-{name}">'
        f"{SHAPES[name](0, 0)}</g></svg>{label}</span>"
        for name, label in FAMILIES.items()
        if any(f'"mark f-{name}"' in figure.svg for figure in figures)
    )


def overview(results: StudyResults) -> list[Figure]:
    """Draw what policies predict (NDCG@10 in the log) against what they earn, if a measure of earnings exists."""
    drawings = []
    for about, key, policies in _figure_groups(results):
        measure = earnings_measure(policies)
        if measure is None:
            continue
        xs = {id(policy): policy.mean("all", "NDCG@10") for policy in policies}
        ys = {id(policy): policy.mean("", measure) for policy in policies}
        title = f"Prediction and earnings: {about}"
        logging = results.find(policies[0].group.log, "logging")
        level = logging.mean("", measure) if logging else None
        drawings.append(_scatter(f"overview-{key}", title, policies, xs, ys, "NDCG@10", measure, level))
    return [figure for figure in drawings if figure is not None]


def trade_offs(results: StudyResults) -> list[Figure]:
    """Draw clicks against purchases, and the distance from the logging policy against earnings."""
    drawings = []
    for about, key, policies in _figure_groups(results):
        log = policies[0].group.log
        click, purchase = (_most_frequent(results, log, kinds) for kinds in (labels.CLICKS, labels.PURCHASES))
        if click and purchase:
            xs, ys = ({id(p): p.mean(b, "NDCG@10") for p in policies} for b in (click, purchase))
            axes = f"NDCG@10 of {click}", f"NDCG@10 of {purchase}"
            title = f"{click[0].upper()}{click[1:]} and {purchase}: {about}"
            drawings.append(_scatter(f"clicks-{key}", title, policies, xs, ys, *axes))
        measure = earnings_measure(policies) or "reward@10"
        distance = {id(policy): policy.diagnostics.get("kl_to_logging") for policy in policies}
        ys = {id(policy): policy.mean("all" if measure == "reward@10" else "", measure) for policy in policies}
        title = f"Distance from the log and earnings: {about}"
        drawings.append(_scatter(f"kl-{key}", title, policies, distance, ys, "KL(π‖π̂_b), nats", measure))
    return [figure for figure in drawings if figure is not None]


def earnings(results: StudyResults) -> list[Figure]:
    """Draw the true reward of every policy of a log with its 95 % interval over visitors."""
    drawings = []
    for log in results.logs:
        policies = [p for p in results.played if p.group.log == log and p.values("", "reward")]
        if policies:
            policies.sort(key=lambda policy: policy.mean("", "reward") or 0.0)
            drawings.append(_ladder(results, log, policies))
    return drawings


def learning_curves(results: StudyResults) -> list[Figure]:
    """Draw the validation NDCG@10 over epochs."""
    return _over_epochs(results, "curve", "validation NDCG@10", lambda epoch: epoch["validation"].get("NDCG@10"))


def diagnostic_curves(results: StudyResults) -> list[Figure]:
    """Draw overestimation and the probability of items without support over epochs."""

    def overestimation(epoch: dict[str, Any]) -> float | None:
        row = epoch.get("diagnostics", {})
        return row["q_logged"] - row["return_logged"] if {"q_logged", "return_logged"} <= row.keys() else None

    def unsupported(epoch: dict[str, Any]) -> float | None:
        value: float | None = epoch.get("diagnostics", {}).get("mass_rare")
        return value

    return _over_epochs(results, "q", "overestimation by Q", overestimation) + _over_epochs(
        results, "rare", "π where π̂_b < 10⁻⁴", unsupported
    )


def sweep_figures(results: StudyResults) -> list[Figure]:
    """Draw each metric of a sweep over the values of the varied option."""
    drawings = []
    for (log, learner, key), policies in sweeps(results).items():
        for metric, behaviour, label in sweep_columns(results, log, policies):
            rows = [(p, s) for p in policies if (s := policy_summary(p, behaviour, metric))]
            if metric == "HR@5" or not any(policy.group.varied for policy, _ in rows):
                continue
            title = f"{label}: {learner} over {labels.option_label(key)}, {log}"
            svg, caption = draw_sweep(title, key, rows, label, family)
            drawings.append(Figure(f"sweep-{metric}-{behaviour}-{log}-{learner}-{key}", svg, caption))
    return drawings


def _figure_groups(results: StudyResults) -> Iterator[tuple[str, str, list[PolicyResults]]]:
    """Yield the policies of one figure: the learners of a log and backbone, and the baselines of the log."""
    for about, key, learners in learner_groups(results):
        log = learners[0].group.log
        baselines = [p for p in results.compared if p.group.kind == "baseline" and p.group.log == log]
        yield about, key, [*baselines, *learners]


def _most_frequent(results: StudyResults, log: str, behaviours: Sequence[str]) -> str | None:
    """Return the behaviour with the most test events."""
    counts = {name: 0 for name in results.behaviours(log) if name in behaviours}
    for result in results.results():
        for name in counts:
            metrics = result.facts.get("test", {}).get(name)
            counts[name] = max(counts[name], metrics["events"] if metrics else 0)
    return max(counts, key=lambda name: counts[name]) if any(counts.values()) else None


def _scatter(
    key: str,
    title: str,
    policies: Sequence[PolicyResults],
    xs: Mapping[int, float | None],
    ys: Mapping[int, float | None],
    x_axis: str,
    y_axis: str | Measure,
    level: float | None = None,
) -> Figure | None:
    """Draw one mark per policy; `level` is a dashed line for the logging policy."""
    measured = [(p, (x, y)) for p in policies if (x := xs[id(p)]) is not None and (y := ys[id(p)]) is not None]
    points = [(policy, point) for policy, point in measured if all(map(math.isfinite, point))]
    if len(points) < 2:
        return None
    x_label, y_label = (AXIS_LABELS.get(axis, axis) for axis in (x_axis, y_axis))
    content = "; ".join(f"{labels.policy_label(policy)} {x:.3g}, {y:.3g}" for policy, (x, y) in points)
    across = Scale.over([x for _, (x, _) in points], pad=0.12)
    up = Scale.over([*(y for _, (_, y) in points), *([level] if level is not None else [])], pad=0.12)
    panel = Panel(title, f"{x_label}, {y_label}: {content}", across, up, x_label, y_label)
    captions = []
    if level is not None:
        panel.line([(across.low, level), (across.high, level)], "shop", dashed=True)
        captions.append("Dashed line: the logging policy.")
    for policy, point in points:
        panel.mark(point, family(policy), f"{labels.policy_label(policy)}: {point[0]:.4g}, {point[1]:.4g}")
    learners_first = sorted(points, key=lambda one: list(FAMILIES).index(family(one[0])))
    names = [(labels.short_label(policy), point) for policy, point in learners_first]
    unlabelled = [name for name, point in names if not panel.label_point(point, name)]
    if unlabelled:
        captions.append(f"No space for the labels of {formatting.join_names(unlabelled)}; point at a mark to see them.")
    return Figure(key, panel.svg(), " ".join(captions))


def _ladder(results: StudyResults, log: str, policies: Sequence[PolicyResults]) -> Figure:
    names = [labels.short_label(p) if p.group.kind != "learner" else labels.learner_label(p.group) for p in policies]
    rows = []
    for policy in policies:
        rewards = [result.facts["shop"]["reward"] for result in policy.results]
        rows.append(
            [mean(one["mean"] if one[end] is None else one[end] for one in rewards) for end in ("low", "mean", "high")]
        )
    panel = Panel(
        f"True reward per session: {log}",
        "; ".join(f"{name} {row[1]:.3g}" for name, row in zip(names, rows, strict=True)),
        Scale.over([0.0, *(row[2] for row in rows)], zero=True, pad=0.04),
        Scale(-0.7, len(rows) - 0.3),
        "95 % intervals; dashed: logging",
        "",
        height=int(HEIGHT - 178 + 18 * len(rows)),
        left=int(14 + max(map(text_width, names))),
        y_ticks=list(enumerate(names)),
    )
    logging = results.find(log, "logging")
    level = logging.mean("", "reward") if logging else None
    if level is not None:
        panel.line([(level, -0.7), (level, len(rows) - 0.3)], "shop", dashed=True)
    for index, (policy, (low, middle, high)) in enumerate(zip(policies, rows, strict=True)):
        panel.interval((low, index), (high, index), family(policy))
        panel.mark((middle, index), family(policy), f"{names[index]}: {middle:.3g} ({low:.3g} to {high:.3g})")
    return Figure(f"earned-{log}", panel.svg())


def _over_epochs(
    results: StudyResults, kind: str, label: str, value: Callable[[dict[str, Any]], float | None]
) -> list[Figure]:
    """Draw one line per learner: the mean over seeds, up to the epoch in which the first seed stopped."""
    drawings = []
    for about, key, learners in learner_groups(results):
        lines = [(policy, points) for policy in learners if (points := _mean_curve(policy, value))]
        if not lines:
            continue
        content = "; ".join(f"{labels.policy_label(policy)} ends at {points[-1][1]:.3g}" for policy, points in lines)
        longest = max(len(points) for _, points in lines)
        up = Scale.over([y for _, points in lines for _, y in points])
        across = Scale(0.5, longest + 0.5)
        ends = [(points[-1][1], labels.short_label(policy), family(policy)) for policy, points in lines]
        margin = max(END_MARGIN, int(14 + max(text_width(text) + 4 for _, text, _ in ends)))
        panel = Panel(f"{label}: {about}", content, across, up, "epoch", label, right=margin)
        if longest <= 8:
            panel.x_ticks = [(epoch, str(epoch)) for epoch in range(1, longest + 1)]
        for policy, points in sorted(lines, key=lambda line: labels.is_sl(line[0])):  # SL on top
            panel.line(points, family(policy))
            panel.mark(points[-1], family(policy), f"{labels.policy_label(policy)}: {points[-1][1]:.4g}")
        panel.label_ends(ends)
        drawings.append(Figure(f"{kind}-{key}", panel.svg()))
    return drawings


def _mean_curve(policy: PolicyResults, value: Callable[[dict[str, Any]], float | None]) -> list[tuple[float, float]]:
    runs = [[value(epoch) for epoch in result.facts["learning_curve"]] for result in policy.results]
    points = []
    for index in range(min(map(len, runs))):
        values = [run[index] for run in runs]
        known = [v for v in values if v is not None and math.isfinite(v)]
        if len(known) == len(values):
            points.append((index + 1.0, mean(known)))
    return points
