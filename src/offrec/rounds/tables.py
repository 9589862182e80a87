"""The table of rounds."""

from itertools import pairwise

from offrec.rounds.results import Round, RoundsResults
from offrec.shop.rollout import Mean

COLUMNS = [
    "explore",
    "round",
    "earned while serving",
    "the next policy earns, top k",
    "gain of the round",
    "share of informed",
]


def rounds_table(results: RoundsResults) -> tuple[str, list[str], list[list[str]]]:
    """Return the title, the columns and the rows of the table: round 0, then each way of exploring.

    Rewards are per session, with the half width of their 95 % interval over visitors.
    """
    options = results.options
    title = (
        f"{options.algorithm} in {options.world}, seed {options.seed}: {options.sessions:,} sessions per round, "
        f"rewards per session"
    )
    rows = [_row(results, None, one) for one in results.rounds if one.number == 0]
    for explore in (way.name for way in options.ways):
        rounds = results.of_way(explore)
        rows += [_row(results, before, one) for before, one in pairwise(rounds)]
    if results.informed is not None:
        rows.append(["informed (knows the items)", "", "", _format(results.informed), "", "100 %"])
    return title, COLUMNS, rows


def _row(results: RoundsResults, before: Round | None, one: Round) -> list[str]:
    name = "logging policy" if before is None else one.explore
    gain = "" if before is None else f"{one.trained.mean - before.trained.mean:+.2f}".replace("-", "−")
    share = "" if results.informed is None else f"{one.trained.mean / results.informed.mean:.0%}".replace("%", " %")
    return [name, str(one.number), _format(one.served), _format(one.trained), gain, share]


def _format(mean: Mean) -> str:
    half = mean.high - mean.mean
    return f"{mean.mean:.2f} ± {half:.2f}" if half < float("inf") else f"{mean.mean:.2f}"
