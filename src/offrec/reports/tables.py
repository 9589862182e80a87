"""Tables as cells, independent of the format they are written in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparison
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.statistics import Summary, summarise

Against = Literal["sl", "baseline"]
Rank = Literal["", "best", "second"]

LEGEND = (
    ("bold, underlined", "best and second best of the column"),
    ("±", "standard deviation over seeds"),
    ("[ … ]", "95 % interval over test sessions or visitors (paired, where two policies are compared)"),
    ("*, **", "better than the policy it is compared with, p ≤ .05 and p ≤ .01"),
    ("▾", "worse than the policy it is compared with, p ≤ .05"),
    (
        "p",
        "the larger p-value of a paired t-test over seeds and a paired bootstrap over test sessions or visitors, after "
        "Holm's correction within the column; with one seed, the bootstrap's",
    ),
)


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: The value.
        spread: Standard deviation or interval, in small type.
        stars: Marks of significance.
        rank: Whether the value is the best or second best of its column.
        reference: The paper's value.
        sort: The number to sort by.
    """

    text: str = formatting.MISSING
    spread: str = ""
    stars: str = ""
    rank: Rank = ""
    reference: str = ""
    sort: float | None = None


@dataclass(frozen=True)
class Row:
    """One row: a label and its cells."""

    label: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """A table whose rows are grouped into titled sections.

    Attributes:
        key: Identifies the table within a report.
        title: Heading.
        note: Text below the table.
        spans: Labels over several columns, with the number of columns.
        heads: Column headings, without that of the row labels.
        sections: Titles and rows.
    """

    key: str
    title: str
    note: str
    spans: list[tuple[str, int]]
    heads: list[str]
    sections: list[tuple[str, list[Row]]]

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.sections for row in rows]


def metric_cell(
    summary: Summary | None,
    comparison: Comparison | None = None,
    rank: Rank = "",
    formatter: Callable[[float | None], str] = formatting.format_metric,
) -> Cell:
    """Return the cell of a mean over seeds."""
    if summary is None:
        return Cell()
    spread = f"± {formatting.format_spread(summary.sd, formatter)}" if summary.sd is not None else ""
    return Cell(formatter(summary.mean), spread, stars(comparison), rank, sort=summary.mean)


def gain_cell(comparison: Comparison | None, decimals: int) -> Cell:
    """Return the cell of a difference of rewards, with its interval and marks."""
    if comparison is None:
        return Cell()

    def formatter(value: float) -> str:
        return formatting.format_gain(value, decimals)

    interval = formatting.format_interval(comparison.low, comparison.high, formatter)
    return Cell(formatter(comparison.gain), interval, stars(comparison), sort=comparison.gain)


def stars(comparison: Comparison | None) -> str:
    """Return the marks of significance of a comparison."""
    if comparison is None or comparison.sign() == "unclear":
        return ""
    if comparison.sign() == "less":
        return "▾"
    return "**" if comparison.sign(0.01) == "more" else "*"


def column_ranks(means: Sequence[float | None]) -> list[Rank]:
    """Return the ranks of the best and the second best value of a column."""
    order = sorted({mean for mean in means if mean is not None}, reverse=True)
    best, second = (*order, None, None)[:2]
    return ["" if mean is None else "best" if mean == best else "second" if mean == second else "" for mean in means]


def policy_summary(policy: PolicyResults, behaviour: str, metric: str) -> Summary | None:
    """Summarise a metric of a policy over seeds."""
    return summarise(list(policy.values(behaviour, metric).values()))


def find_sl(results: StudyResults, policy: PolicyResults) -> PolicyResults | None:
    """Return SL on the same log: with the same backbone and preset for a learner, else the first one."""
    sl = [other for other in results.compared if other.group.log == policy.group.log and labels.is_sl(other)]
    if policy.group.kind == "learner":
        setup = policy.group.backbone, policy.group.preset
        sl = [other for other in sl if (other.group.backbone, other.group.preset) == setup]
    return sl[0] if sl and policy is not sl[0] else None


def opponent(
    results: StudyResults, policy: PolicyResults, behaviour: str, metric: str, against: Against = "sl"
) -> PolicyResults | None:
    """Return the policy that `policy` is tested against."""
    if against == "baseline":
        return results.best_baseline(policy.group.log, behaviour, metric)
    return find_sl(results, policy)
