"""Draw rounds: what is earned while serving, and what the trained policies earn."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from offrec.data.files import publish_file
from offrec.rounds.results import RoundsResults

WIDTH, HEIGHT = 8.6, 3.6  # inches
COLOURS = ("#1f5fa8", "#c8641b", "#2b7a3d", "#8a3d8f", "#b03030", "#5b5b5b")
MARKS = "osD^vP"

Line = Sequence[tuple[int, float]]  # (round, reward)


def draw_rounds(results: RoundsResults, paths: Sequence[Path]) -> None:
    """Draw the results of a folder into .png, .svg or .pdf files."""
    ways = [way.name for way in results.options.ways]
    serving = {way: [(one.number, one.served.mean) for one in results.of_way(way)] for way in ways}
    trained = {way: [(one.number, one.trained.mean) for one in results.of_way(way)] for way in ways}
    informed = None if results.informed is None else results.informed.mean
    logging = None if results.first is None else results.first.served.mean
    title = f"{results.options.algorithm}, {results.options.world} {results.options.seed}"
    draw_lines(serving, trained, paths, logging=logging, informed=informed, title=title)


def draw_lines(
    serving: Mapping[str, Line],
    trained: Mapping[str, Line],
    paths: Sequence[Path],
    *,
    logging: float | None,
    informed: float | None,
    title: str,
) -> None:
    """Draw two panels with one line per way of exploring.

    Args:
        serving: Reward per session while serving, per way of exploring.
        trained: Reward per session of the policy that is trained after each round.
        paths: The files; the suffix determines the format.
        logging: The reward of the logging policy, for a dashed line.
        informed: The reward of `informed`, for a dashed line.
        title: The title of the picture.

    Raises:
        InputError: If a file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    last = max(number for line in trained.values() for number, _ in line)
    for axes, lines, label in ((left, serving, "earned while serving"), (right, trained, "trained policy, top k")):
        for number, (way, line) in enumerate(lines.items()):
            colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            axes.plot(*zip(*line, strict=True), mark, ls="-", color=colour, label=way, ms=4)
        for reward, name in ((informed, "informed"), (logging, "logging policy")):
            if reward is not None:
                axes.axhline(reward, color="0.45", ls="--", lw=1)
                axes.annotate(
                    name, (1, reward), (-4, 3), axes.get_yaxis_transform(), "offset points", ha="right", color="0.35"
                )
        axes.set_title(label, fontsize="medium")
        axes.set_xlabel("round")
        axes.set_xticks(range(last + 1))
        axes.set_xlim(-0.2, last + 0.2)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("reward per session")
    left.set_ylim(bottom=0)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels))
    figure.suptitle(title, fontsize="medium")
    for path in paths:
        with publish_file(path, advice="choose another --out") as temporary:
            figure.savefig(temporary, dpi=150)
