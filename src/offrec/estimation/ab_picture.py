"""Draw how the difference between policies and its interval developed."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from offrec.data.files import publish_file
from offrec.errors import InputError
from offrec.estimation.ab_test import POINTS, AbResult

COLOURS = ("#1f5fa8", "#b5541c", "#2b7a3d", "#7a3d8f")


def draw_course(result: AbResult, path: Path) -> None:
    """Draw the differences over time into a .png, .svg or .pdf file.

    Raises:
        InputError: If the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="0.6", linewidth=0.8)
    for number, course in enumerate(result.courses):
        points = np.unique(np.linspace(0, len(course.time) - 1, POINTS).astype(int))
        points = points[~np.isnan(course.low[points])]
        times = [datetime.fromtimestamp(course.time[point] / 1000, UTC) for point in points]
        colour = COLOURS[number % len(COLOURS)]
        axes.fill_between(times, course.low[points], course.high[points], color=colour, alpha=0.2, linewidth=0)  # type: ignore[arg-type]
        axes.plot(times, course.difference[points], color=colour, label=f"{course.policy} − {result.arms[0].policy}")  # type: ignore[arg-type]
    axes.set_ylabel("difference in reward per session")
    axes.set_xlabel("start of the last session counted (UTC)")
    axes.set_title(f"{result.options.confidence:.0%} intervals that are valid at all times together", fontsize="medium")
    if result.courses:
        axes.legend(frameon=False)
    figure.autofmt_xdate()
    FigureCanvasAgg(figure)
    with publish_file(path, advice="choose another --picture") as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:  # matplotlib does not support the suffix
            raise InputError(f"--picture {path} cannot be written ({error}); choose another suffix.") from error
