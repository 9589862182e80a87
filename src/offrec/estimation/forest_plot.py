"""A picture of a comparison: each estimate with its interval, around what the logging policy earned."""

from pathlib import Path

from offrec.data.files import publish_file
from offrec.errors import InputError
from offrec.estimation.estimate import EstimateResult

COLOURS = {"trust": "#2b7a3d", "caution": "#c98a00", "do not trust": "#b03030"}


def draw_forest_plot(found: EstimateResult, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [(one, name) for one in found.policies for name in one.assessed]
    figure = Figure(figsize=(9, 1.6 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(found.logged.low, found.logged.high, color="0.88")
    axes.axvline(found.logged.estimate, color="0.35", label="the logging policy, 95 % interval")
    for place, (one, name) in enumerate(rows):
        assessment = one.assessed[name]
        colour = COLOURS[assessment.verdict]
        if assessment.withheld and name not in found.asked.named:
            axes.text(found.logged.estimate, place, " withheld: too little support", va="center", color=colour)
            continue
        around, end = assessment.interval, assessment.interval.estimate
        if found.has_interval(name):
            end = around.high
            axes.plot([around.low, end], [place, place], color=colour)
        axes.plot([around.estimate], [place], "o", color=colour)
        axes.annotate(assessment.verdict, (end, place), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [f"{one.name} ({one.play})\n{name.replace('_', ' ')}" for one, name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    discount = "" if found.asked.gamma == 1 else f", discounted by {found.asked.gamma:g} a step"
    axes.set_xlabel(f"reward a session{discount}, {found.asked.split} sessions{_played(found)}")
    axes.margins(x=0.05)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.3 * (right - left))  # for the verdict beside the last estimate
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    FigureCanvasAgg(figure)
    with publish_file(path, advice="choose another --picture") as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:  # matplotlib does not know the suffix
            raise InputError(f"--picture {path} cannot be written ({error}); choose another suffix.") from error


def _played(found: EstimateResult) -> str:
    """How policies are played, where it is not as they are."""
    asked = found.asked
    heat = "" if asked.temperature == 1 else f", at temperature {asked.temperature:g}"
    return heat if asked.blend == 1 else f"{heat}, handed {asked.blend:.0%} of the decisions"
