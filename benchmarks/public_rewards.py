"""Measure how a larger reward for carts changes next-item metrics of carts and of views.

`public_logs.py rewards` calls this. It reads the sweeps FOLDER/cart*, each of DC or PC over `reward.cart`, at one
temperature or several.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from offrec.reports import reading
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.statistics import holm, summarise
from offrec.reports.svg import HEIGHT, WIDTH, Panel, Scale, text_width, tick_label

KNOB = {"dc": ("algorithm.alpha", "α"), "pc": ("algorithm.beta", "β")}
FIGURE = "NDCG@10"
SETTINGS = 0.2, 1.0, 5.0  # rewards of a cart at which a learner must differ
STEPS = (0.2, 1.0), (1.0, 5.0), (0.2, 5.0)
DRAWN = {
    ("dc", 0.5): "constrained",
    ("pc", 0.3): "unconstrained",
}  # (learner, temperature), in absolute units → style
Row = dict[str, Any]
Setting = tuple[str, float, str]  # learner, temperature, unit of reward


def read(folder: Path) -> StudyResults:
    return reading.read_studies(sorted(path.parent for path in folder.glob("cart*/study.json")))


def by_setting(found: StudyResults) -> dict[Setting, dict[float, PolicyResults]]:
    """Return setting → reward of a cart → policy, both sorted."""
    sorted_out: dict[Setting, dict[float, PolicyResults]] = {}
    for entry in found.policies:
        if entry.results:
            name, options = entry.group.policy, entry.group.options
            setting = name, float(options[KNOB[name][0]]), str(options["reward_unit"])
            sorted_out.setdefault(setting, {})[float(options["reward.cart"])] = entry
    return {setting: dict(sorted(sorted_out[setting].items())) for setting in sorted(sorted_out)}


def runs(found: StudyResults) -> list[Row]:
    rows = []
    for (name, knob, unit), entries in by_setting(found).items():
        for cart, entry in entries.items():
            for result in entry.results:
                facts = result.facts
                row = {"learner": name, "knob": knob, "unit": unit, "cart": cart, "seed": result.run.seed}
                row |= {"epochs": len(facts["learning_curve"]), "selected_epoch": facts["selected_epoch"]}
                row |= {split: _figures(facts[split]) for split in ("validation", "test")}
                row |= {key: facts["machine"][key] for key in ("commit", "device")}
                rows.append(row)
    return rows


def _figures(split: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {kind: {name: split[kind][name] for name in ("HR@5", FIGURE)} for kind in ("view", "cart")}


def steps(found: StudyResults) -> list[Row]:
    """Compare neighbouring rewards of each setting on test events; p is corrected by Holm within a setting."""
    comparer, rows = Comparer(found), []
    for (name, knob, unit), entries in by_setting(found).items():
        asked = [(kind, step) for kind in ("view", "cart") for step in STEPS if set(step) <= set(entries)]
        made = [comparer.compare(entries[high], entries[low], kind, FIGURE) for kind, (low, high) in asked]
        corrected = holm([one.p if one else None for one in made])
        for (kind, (low, high)), one, p in zip(asked, made, corrected, strict=True):
            if one is not None:
                row = {"learner": name, "knob": knob, "unit": unit, "behaviour": kind, "from": low, "to": high}
                rows.append(row | _tested(replace(one, corrected=p)))
    return rows


def _tested(one: Comparison) -> Row:
    kept = "gain", "low", "high", "p_seeds", "p_sessions", "corrected", "seeds"
    return {name: getattr(one, name) for name in kept}


def means(entries: Iterable[PolicyResults], kind: str, split: str) -> list[float]:
    found = (summarise(list(entry.values(kind, FIGURE, split).values())) for entry in entries)
    return [one.mean for one in found if one]


def monotone(entries: dict[float, PolicyResults], split: str) -> bool:
    """Return whether carts rise and views fall at both steps between the three settings."""
    asked = [entries[cart] for cart in SETTINGS]
    carts, views = means(asked, "cart", split), means(asked, "view", split)
    return carts == sorted(set(carts)) and views == sorted(set(views), reverse=True)


def table(found: StudyResults) -> str:
    settings = by_setting(found)
    carts = sorted({cart for entries in settings.values() for cart in entries})
    titles = [f"cart {tick_label(cart)}" for cart in carts]
    ends = "both ways over three, validation", "test"
    lines = [f"{FIGURE} on test, view · cart\n", "| | " + " | ".join([*titles, *ends]) + " |"]
    lines.append("|" + "---|" * (len(carts) + 3))
    for (name, knob, unit), entries in settings.items():
        cells = [_cell(entries[cart]) if cart in entries else "–" for cart in carts]
        cells += ["yes" if monotone(entries, split) else "no" for split in ("validation", "test")]
        lines.append(f"| {_label(name, knob)}, {unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _label(name: str, knob: float) -> str:
    return f"{name.upper()}, {KNOB[name][1]} {tick_label(knob)}"


def _cell(entry: PolicyResults) -> str:
    return " · ".join(f"{means([entry], kind, 'test')[0]:.4f}"[1:] for kind in ("view", "cart"))


def picture(found: StudyResults) -> str:
    """Draw carts and views for one temperature per learner; the colours follow the page's light or dark mode."""
    settings = by_setting(found)
    drawn = {(name, knob): settings[name, knob, "absolute"] for name, knob in DRAWN}
    panels = [_panel(drawn, "cart", "Carts"), _panel(drawn, "view", "Views")]
    placed = "".join(
        panel.svg().replace("<svg ", f'<svg x="{n * WIDTH}" width="{WIDTH}" height="{HEIGHT}" ', 1)
        for n, panel in enumerate(panels)
    )
    about = f"{FIGURE} of carts and views over the reward of a cart"
    return (
        f'<svg role="img" viewBox="0 0 {2 * WIDTH} {HEIGHT}" width="{2 * WIDTH}" height="{HEIGHT}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(about)}</title><style>{STYLE}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{placed}</svg>\n'
    )


def _panel(drawn: dict[tuple[str, float], dict[float, PolicyResults]], kind: str, title: str) -> Panel:
    lines = {
        key: [(cart, summarise(list(entry.values(kind, FIGURE).values()))) for cart, entry in entries.items()]
        for key, entries in drawn.items()
    }
    points = {key: [(cart, one.mean, one.sd or 0.0) for cart, one in line if one] for key, line in lines.items()}
    labels = [(points[key][-1][1], _label(*key), DRAWN[key]) for key in points]
    spread = [edge for line in points.values() for _, mean, sd in line for edge in (mean - sd, mean + sd)]
    carts = [cart for cart, _, _ in next(iter(points.values()))]
    told = "; ".join(f"{_label(*key)}: {_spoken(line)}" for key, line in points.items())
    panel = Panel(title, told, Scale.over(carts, log=True), Scale.over(spread), "reward of a cart (a view: .2)", FIGURE)
    panel.right = math.ceil(14 + max(text_width(label) for _, label, _ in labels))
    panel.x_ticks = [(cart, tick_label(cart)) for cart in carts]
    for key, line in points.items():
        panel.band([(cart, mean - sd, mean + sd) for cart, mean, sd in line], DRAWN[key])
    for key, line in points.items():
        panel.line([(cart, mean) for cart, mean, _ in line], DRAWN[key])
        for cart, mean, sd in line:
            panel.mark((cart, mean), DRAWN[key], f"{_label(*key)}, cart {tick_label(cart)}: {mean:.4f} ± {sd:.4f}")
    panel.label_ends(labels)
    return panel


def _spoken(line: Sequence[tuple[float, float, float]]) -> str:
    return ", ".join(f"{mean:.4f} at {tick_label(cart)}" for cart, mean, _ in line)


# Those of the report's colours that the picture needs.
STYLE = """
svg { --paper: #fdfdfc; --ink: #1c2126; --soft: #5b6570; --line: #d9dde1; --free: #b4571a; --constrained: #1f66b0; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #14181c; --ink: #e6e9ec; --soft: #a2acb6; --line: #333b43; --free: #f0955a; --constrained: #6fb1f5; }
}
text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: var(--ink); }
text.head { font-weight: 600; font-size: 11.5px; }
text.axis { fill: var(--soft); }
.paper { fill: var(--paper); }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.lead { stroke-width: 1; opacity: .5; }
.band { opacity: .16; }
.mark { stroke: var(--paper); stroke-width: 1; }
.f-free { --c: var(--free); } .f-constrained { --c: var(--constrained); }
.line, .lead { stroke: var(--c); }
.band, .mark { fill: var(--c); }
"""
