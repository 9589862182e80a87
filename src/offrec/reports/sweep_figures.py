"""Draw a metric over the values of a varied option."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from offrec.reports import formatting, labels
from offrec.reports.reading import PolicyResults
from offrec.reports.statistics import Summary
from offrec.reports.svg import Panel, Scale, text_width, tick_label

MAX_LABELS, MAX_LETTERS = 8, 20  # maximum labelled lines per figure; maximum characters per label
Family = Callable[[PolicyResults], str]


def draw_sweep(
    title: str, option: str, rows: Sequence[tuple[PolicyResults, Summary]], label: str, family: Family
) -> tuple[str, str]:
    """Draw the means with a band of one standard deviation, and dashed lines for the runs they are compared with.

    Args:
        title: Heading of the figure.
        option: The varied option.
        rows: Policies with their summaries.
        label: Label of the vertical axis.
        family: Returns the family of a policy.

    Returns:
        The SVG element and its caption.
    """
    varied = [(policy.group.varied[option], summary, policy) for policy, summary in rows if policy.group.varied]
    others = [(summary, policy) for policy, summary in rows if policy.group.compare_with]
    positions, is_log, is_numeric = _positions([value for value, _, _ in varied])
    ends = _end_labels(others, family)
    bounds = [bound for _, summary, _ in varied for bound in _band(summary)]
    panel = Panel(
        title,
        "; ".join(f"{value}: {summary.mean:.4g}" for value, summary, _ in varied),
        Scale.over(positions, log=is_log),
        Scale.over([*bounds, *(summary.mean for summary, _ in others)]),
        labels.option_label(option),
        label,
        right=int(14 + max((text_width(text) + 4 for _, text, _ in ends), default=0)),
        x_ticks=[
            (position, tick_label(value) if is_numeric else str(value))
            for position, (value, _, _) in zip(positions, varied, strict=True)
        ],
    )
    order = sorted(range(len(varied)), key=lambda index: positions[index])
    points = [(positions[index], varied[index][1], varied[index][2]) for index in order]
    panel.band([(x, *_band(summary)) for x, summary, _ in points], family(points[0][2]))
    panel.line([(x, summary.mean) for x, summary, _ in points], family(points[0][2]))
    for summary, policy in others:
        panel.line([(x, summary.mean) for x in (min(positions), max(positions))], family(policy), dashed=True)
    for x, summary, policy in points:
        value = formatting.format_setting(policy.group.varied[option])
        panel.mark((x, summary.mean), family(policy), f"{value}: {summary.mean:.4g}")
    panel.label_ends(ends)
    has_band = any(summary.sd for _, summary, _ in points)
    return panel.svg(), "Band: ± one standard deviation over seeds." if has_band else ""


def _band(summary: Summary) -> tuple[float, float]:
    return summary.mean - (summary.sd or 0), summary.mean + (summary.sd or 0)


def _positions(values: Sequence[Any]) -> tuple[list[float], bool, bool]:
    """Return positions on the axis, whether it is logarithmic, and whether all values are numbers.

    Values that span orders of magnitude and include 0 have no common scale; they are placed at equal distances.
    """
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    is_numeric = len(numbers) == len(values)
    is_wide = is_numeric and max(numbers) >= 20 * min((value for value in numbers if value > 0), default=math.inf)
    is_log = is_wide and min(numbers) > 0
    to_scale = is_numeric and (is_log or not is_wide)
    return [float(value) if to_scale else float(index) for index, value in enumerate(values)], is_log, is_numeric


def _end_labels(others: Sequence[tuple[Summary, PolicyResults]], family: Family) -> list[tuple[float, str, str]]:
    """Return the shortened labels of the dashed lines, or none if they are too many. The table shows them in full."""
    if len(others) > MAX_LABELS:
        return []
    ends = [(s.mean, labels.comparison_label(p.group), family(p)) for s, p in others]
    return [(y, text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 1]}…", kind) for y, text, kind in ends]
