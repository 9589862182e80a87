"""Which pictures a report has, and what is in them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from offrec.reports import formatting, labels
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.statistics import Summary, summary
from offrec.reports.svg import HEIGHT, SHAPES, Panel, Scale, short, width
from offrec.reports.value_tables import own, sweeps
from offrec.studies.value import VALUE_AT_5

FAMILIES = {
    "imitation": "SL",
    "mixed": "imitation and RL",
    "unconstrained": "RL without a constraint",
    "constrained": "RL constrained to the log",
    "baseline": "without training",
    "own": "the shop's own",
}
END = 62  # room at the right for the lines' names
MOST_LEVELS, LONGEST = 8, 20  # lines across a sweep that are named, and letters of a name


@dataclass(frozen=True)
class Picture:
    key: str
    svg: str
    caption: str = ""


def family(entry: PolicyResults) -> str:
    if entry.group.kind != "learner":
        return "baseline" if entry.group.kind == "baseline" else "own"
    return labels.learner_family(entry.group.policy)


def legend(pictures: Sequence[Picture]) -> str:
    """The marks of the families that are in them."""
    return "".join(
        f'<span class="key"><svg viewBox="-7 -7 14 14" aria-hidden="true"><g class="mark f-{name}">'
        f"{SHAPES[name](0, 0)}</g></svg>{label}</span>"
        for name, label in FAMILIES.items()
        if any(f'"mark f-{name}"' in picture.svg for picture in pictures)
    )


def trade_offs(reading: StudyResults) -> list[Picture]:
    """Clicks against purchases, next-item figures against what is earned, distance from the log against reward."""
    found = []
    for about, key, entries in _pools(reading):
        log = entries[0].group.log
        click, purchase = _busiest(reading, log, labels.CLICKS), _busiest(reading, log, labels.PURCHASES)
        earned = "reward" if any(e.values("", "reward") for e in entries) else "reward@10"
        if click and purchase:
            xs, ys = ({id(e): _mean(e, b, "NDCG@10") for e in entries} for b in (click, purchase))
            row_labels = f"NDCG@10 of {click}", f"NDCG@10 of {purchase}"
            found.append(_scatter(f"clicks-{key}", f"Clicks and purchases: {about}", entries, xs, ys, *row_labels))
        if earned == "reward":
            xs = {id(e): _mean(e, "all", "NDCG@10") for e in entries}
            ys = {id(e): _mean(e, "", "reward") for e in entries}
            row_labels = "NDCG@10 in the log", "true reward a session"
            found.append(_scatter(f"reward-{key}", f"Predicted and earned: {about}", entries, xs, ys, *row_labels))
        far = {id(e): e.last.get("kl_to_logging") for e in entries}
        ys = {id(e): _mean(e, "" if earned == "reward" else "all", earned) for e in entries}
        label = "true reward a session" if earned == "reward" else "reward@10"
        title = f"KL and reward: {about}"
        found.append(_scatter(f"kl-{key}", title, entries, far, ys, "KL(π‖π̂_b), nats", label))
    return [picture for picture in found if picture is not None]


def earned(reading: StudyResults) -> list[Picture]:
    """True reward of every policy of a log, with 95 % intervals over visitors, in order."""
    found = []
    for log in reading.logs:
        entries = [e for e in reading.compared if e.group.log == log and e.values("", "reward")]
        if entries:
            entries.sort(key=lambda e: _mean(e, "", "reward") or 0.0)
            found.append(_ladder(reading, log, entries))
    return found


def curves(reading: StudyResults) -> list[Picture]:
    return _over_epochs(
        reading, "learning_curve", "NDCG@10 on validation", lambda epoch: epoch["validation"].get("NDCG@10")
    )


def critics(reading: StudyResults) -> list[Picture]:
    """Over-estimation and support, epoch by epoch."""

    def above(epoch: dict[str, Any]) -> float | None:
        seen = epoch.get("diagnostics", {})
        return seen["q_logged"] - seen["return_logged"] if {"q_logged", "return_logged"} <= seen.keys() else None

    over = _over_epochs(reading, "q", "over-estimation by Q", above)
    return over + _over_epochs(
        reading, "rare", "π where π̂_b < 10⁻⁴", lambda epoch: epoch.get("diagnostics", {}).get("mass_rare")
    )


def swept(reading: StudyResults) -> list[Picture]:
    found = []
    for (log, learner, key), entries in sweeps(reading).items():
        several = reading.behaviours(log) if len(reading.behaviours(log)) > 1 else []
        for figure, behaviour, label in (
            ("NDCG@10", "all", "NDCG@10"),
            *(("NDCG@10", name, f"NDCG@10 of {name}") for name in several),
            ("reward", "", "true reward a session"),
            (VALUE_AT_5, "all", f"{VALUE_AT_5}, estimated"),
        ):
            rows = [(e, s) for e in entries if (s := summary(list(e.values(behaviour, figure).values())))]
            if any(e.group.varied for e, _ in rows):
                name = f"sweep-{figure}-{behaviour}-{log}-{learner}-{key}"
                found.append(
                    _sweep(name, f"{label}: {learner} over {labels.option_label(key)}, {log}", key, rows, label)
                )
    return found


def _pools(reading: StudyResults) -> Iterator[tuple[str, str, list[PolicyResults]]]:
    """What goes into one picture: a log and a backbone, and the policies without training."""
    learners = [e for e in reading.compared if e.group.kind == "learner"]
    for log, backbone, preset in dict.fromkeys((e.group.log, e.group.backbone, e.group.preset) for e in learners):
        mine = [e for e in learners if (e.group.log, e.group.backbone, e.group.preset) == (log, backbone, preset)]
        others = [e for e in reading.compared if e.group.kind == "baseline" and e.group.log == log]
        yield f"{log}, {labels.backbone_label(mine[0])}", f"{log}-{backbone}-{preset}", [*others, *mine]


def _busiest(reading: StudyResults, log: str, kinds: Sequence[str]) -> str | None:
    """The behaviour of a kind with the most test events."""
    counts = {
        name: max((r.facts["test"][name]["events"] for r in reading.results() if _tested(r.facts, name)), default=0)
        for name in reading.behaviours(log)
        if name in kinds
    }
    return max(counts, key=lambda name: counts[name]) if any(counts.values()) else None


def _tested(facts: dict[str, Any], behaviour: str) -> bool:
    return bool(facts.get("test", {}).get(behaviour))


def _mean(entry: PolicyResults, behaviour: str, figure: str) -> float | None:
    values = list(entry.values(behaviour, figure).values())
    return mean(values) if values else None


def _scatter(
    key: str,
    title: str,
    entries: Sequence[PolicyResults],
    xs: dict[int, float | None],
    ys: dict[int, float | None],
    x_label: str,
    y_label: str,
) -> Picture | None:
    known = [(e, (x, y)) for e in entries if (x := xs[id(e)]) is not None and (y := ys[id(e)]) is not None]
    points = [(e, point) for e, point in known if all(map(math.isfinite, point))]
    if len(points) < 2:
        return None
    told = "; ".join(f"{labels.policy_label(e)} {x:.3g}, {y:.3g}" for e, (x, y) in points)
    across, up = (Scale.over([point[axis] for _, point in points], pad=0.12) for axis in (0, 1))
    panel = Panel(title, f"{x_label}, {y_label}: {told}", across, up, x_label, y_label)
    for entry, point in points:
        panel.mark(point, family(entry), f"{labels.policy_label(entry)}: {point[0]:.4g}, {point[1]:.4g}")
    ordered = sorted(points, key=lambda one: list(FAMILIES).index(family(one[0])))  # learners choose first
    unnamed = [
        labels.short_label(entry) for entry, point in ordered if not panel.name(point, labels.short_label(entry))
    ]
    caption = (
        f"Too close to others to be named: {formatting.join_names(unnamed)}; each mark tells its own."
        if unnamed
        else ""
    )
    return Picture(key, panel.svg(), caption)


def _ladder(reading: StudyResults, log: str, entries: Sequence[PolicyResults]) -> Picture:
    row_labels = [
        labels.short_label(e) if e.group.kind != "learner" else labels.learner_label(e.group) for e in entries
    ]
    rows = []
    for entry in entries:
        shops = [result.facts["shop"]["reward"] for result in entry.results]
        rows.append([mean(one[name] or one["mean"] for one in shops) for name in ("low", "mean", "high")])
    left = int(14 + max(map(width, row_labels)))
    panel = Panel(
        f"True reward a session: {log}",
        "; ".join(f"{label} {row[1]:.3g}" for label, row in zip(row_labels, rows, strict=True)),
        Scale.over([0.0, *(row[2] for row in rows)], zero=True, pad=0.04),
        Scale(-0.7, len(rows) - 0.3),
        "95 % over visitors; dashed: the logging policy",
        "",
        height=int(HEIGHT - 178 + 18 * len(rows)),
        left=left,
        y_ticks=[(index, label) for index, label in enumerate(row_labels)],
    )
    logging = own(reading, log, "logging")
    if logging is not None and (earned_ := _mean(logging, "", "reward")) is not None:
        panel.line([(earned_, -0.7), (earned_, len(rows) - 0.3)], "own", dashed=True)
    for index, (entry, (low, middle, high)) in enumerate(zip(entries, rows, strict=True)):
        panel.span((low, index), (high, index), family(entry))
        panel.mark((middle, index), family(entry), f"{row_labels[index]}: {middle:.3g} ({low:.3g} to {high:.3g})")
    return Picture(f"earned-{log}", panel.svg())


def _over_epochs(reading: StudyResults, kind: str, label: str, value: Any) -> list[Picture]:
    """A line a learner: the mean over seeds, as long as all of them went on."""
    found = []
    for about, key, entries in _pools(reading):
        lines: list[tuple[PolicyResults, list[tuple[float, float]]]] = []
        for entry in (e for e in entries if e.group.kind == "learner"):
            runs = [[value(epoch) for epoch in result.facts["learning_curve"]] for result in entry.results]
            shortest = min(map(len, runs))
            rows = [[run[n] for run in runs] for n in range(shortest)]
            points = [
                (n + 1.0, mean(row))
                for n, row in enumerate(rows)
                if all(v is not None and math.isfinite(v) for v in row)
            ]
            if points:
                lines.append((entry, points))
        if not lines:
            continue
        told = "; ".join(f"{labels.policy_label(e)} ends at {points[-1][1]:.3g}" for e, points in lines)
        longest = max(len(points) for _, points in lines)
        every = [y for _, points in lines for _, y in points]
        panel = Panel(
            f"{label}: {about}", told, Scale(0.5, longest + 0.5), Scale.over(every), "epoch", label, right=END
        )
        if longest <= 8:
            panel.x_ticks = [(n, str(n)) for n in range(1, longest + 1)]
        for entry, points in sorted(lines, key=lambda line: family(line[0]) == "imitation"):  # SL above the others
            panel.line(points, family(entry))
            panel.mark(points[-1], family(entry), f"{labels.policy_label(entry)}: {points[-1][1]:.4g}")
        panel.ends([(points[-1][1], labels.short_label(entry), family(entry)) for entry, points in lines])
        found.append(Picture(f"{kind}-{key}", panel.svg()))
    return found


def _sweep(key: str, title: str, option: str, rows: Sequence[tuple[PolicyResults, Summary]], label: str) -> Picture:
    varied = [(e.group.varied[option], s, e) for e, s in rows if e.group.varied]
    levels = [(s, e) for e, s in rows if e.group.compare_with]
    numbers = [value for value, _, _ in varied if isinstance(value, int | float) and not isinstance(value, bool)]
    plain = len(numbers) == len(varied)
    wide = plain and max(numbers) >= 20 * min((value for value in numbers if value > 0), default=math.inf)
    log = wide and min(numbers) > 0
    to_scale = plain and (log or not wide)  # else one after the other: 0 has no place beside powers of ten
    places = [float(value) if to_scale else float(n) for n, (value, _, _) in enumerate(varied)]
    spreads = [one for _, s, _ in varied for one in (s.mean - (s.sd or 0), s.mean + (s.sd or 0))]
    ends = _ends(levels)
    panel = Panel(
        title,
        "; ".join(f"{value}: {s.mean:.4g}" for value, s, _ in varied),
        Scale.over(places, log=log),
        Scale.over([*spreads, *(s.mean for s, _ in levels)]),
        labels.option_label(option),
        label,
        right=int(14 + max((width(label) + 4 for _, label, _ in ends), default=0)),
        x_ticks=[
            (place, short(value) if plain else str(value)) for place, (value, _, _) in zip(places, varied, strict=True)
        ],
    )
    order = sorted(range(len(varied)), key=lambda n: places[n])
    found = [(places[n], varied[n][1], varied[n][2]) for n in order]
    panel.band([(x, s.mean - (s.sd or 0), s.mean + (s.sd or 0)) for x, s, _ in found], family(found[0][2]))
    panel.line([(x, s.mean) for x, s, _ in found], family(found[0][2]))
    for s, entry in levels:
        panel.line([(x, s.mean) for x in (min(places), max(places))], family(entry), dashed=True)
    for x, s, entry in found:
        panel.mark((x, s.mean), family(entry), f"{formatting.format_setting(entry.group.varied[option])}: {s.mean:.4g}")
    panel.ends(ends)
    return Picture(
        key, panel.svg(), "Band: ± a standard deviation over seeds." if any(s.sd for _, s, _ in found) else ""
    )


def _ends(levels: Sequence[tuple[Summary, PolicyResults]]) -> list[tuple[float, str, str]]:
    """What the lines across are called, where there is room for it; the table beside the picture has it whole."""
    row_labels = [
        (s.mean, labels.comparison_label(str(entry.group.compare_with)), family(entry)) for s, entry in levels
    ]
    if len(row_labels) > MOST_LEVELS:
        return []
    return [(y, text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", kind) for y, text, kind in row_labels]
