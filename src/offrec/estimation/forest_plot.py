"""Draw a forest plot: every estimate with its interval, compared with what the logging policy earned."""

from pathlib import Path

from offrec.data.files import publish_file
from offrec.errors import InputError
from offrec.estimation.result import EstimateResult

COLOURS = {"trust": "#2b7a3d", "caution": "#c98a00", "do not trust": "#b03030"}


def draw_forest_plot(result: EstimateResult, path: Path) -> None:
    """Draw all estimates into a .png, .svg or .pdf file.

    Raises:
        InputError: If the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [(policy, assessment) for policy in result.policies for assessment in policy.assessments.values()]
    figure = Figure(figsize=(9, 1.6 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(result.logged.low, result.logged.high, color="0.88")
    axes.axvline(result.logged.estimate, color="0.35", label="logging policy, 95 % interval")
    for row, (_, assessment) in enumerate(rows):
        colour = COLOURS[assessment.verdict]
        if not result.is_shown(assessment):
            axes.text(result.logged.estimate, row, " withheld: too little support", va="center", color=colour)
            continue
        interval, end = assessment.interval, assessment.interval.estimate
        if result.has_interval(assessment.estimator):
            end = interval.high
            axes.plot([interval.low, end], [row, row], color=colour)
        axes.plot([interval.estimate], [row], "o", color=colour)
        axes.annotate(assessment.verdict, (end, row), (6, 0), textcoords="offset points", va="center")
    labels = [f"{policy.name} ({policy.play})\n{one.estimator.replace('_', ' ')}" for policy, one in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(_axis_label(result))
    axes.margins(x=0.05)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.3 * (right - left))  # space for the last verdict
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    FigureCanvasAgg(figure)
    with publish_file(path, advice="choose another --picture") as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:  # matplotlib does not support the suffix
            raise InputError(f"--picture {path} cannot be written ({error}); choose another suffix.") from error


def _axis_label(result: EstimateResult) -> str:
    """Return the label of the axis, with all options that differ from their defaults."""
    options = result.options
    parts = [f"reward per session, {result.split} sessions"]
    if options.gamma != 1:
        parts.append(f"γ = {options.gamma:g}")
    if options.temperature != 1:
        parts.append(f"temperature {options.temperature:g}")
    if options.blend != 1:
        parts.append(f"policy makes {options.blend:.0%} of the decisions")
    return ", ".join(parts)
