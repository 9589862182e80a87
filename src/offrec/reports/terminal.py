"""Select the tables of a report that fit on a terminal."""

from offrec.reports.report import EARNINGS, RANKING, SWEEPS, TUNING, Report
from offrec.reports.tables import Cell, Table

SHOWN = (RANKING, EARNINGS, SWEEPS, TUNING)
MARKS = {
    "*": "* and **: better than the policy it is compared with, p ≤ .05 and .01",
    "▾": "▾: worse than the policy it is compared with, p ≤ .05",
    "±": "±: standard deviation over seeds",
    "[": "[ … ]: 95 % interval",
}


def tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return title, headings and rows of each table."""
    printed = []
    for table in _shown(report):
        spans = [f"{label} " for label, count in table.spans for _ in range(count)] or [""] * len(table.heads)
        heads = ["", *(span + head for span, head in zip(spans, table.heads, strict=True))]
        printed.append((table.title, heads, _rows(table)))
    return printed


def legend(report: Report) -> str:
    """Explain in one line the marks that the tables use."""
    marks = "".join(cell.stars + cell.spread for table in _shown(report) for row in table.rows for cell in row.cells)
    return "; ".join(meaning for mark, meaning in MARKS.items() if mark in marks)


def _shown(report: Report) -> list[Table]:
    return [table for section in report.sections if section.title in SHOWN for table in section.tables]


def _rows(table: Table) -> list[list[str]]:
    """Put each section's rows under its title: the same learner can occur with several backbones."""
    lines = []
    for title, rows in table.sections:
        lines += [[title, *[""] * len(table.heads)]] if title else []
        indent = "  " if title else ""
        lines += [[indent + row.label, *map(_text, row.cells)] for row in rows]
    return lines


def _text(cell: Cell) -> str:
    return f"{cell.text}{cell.stars} {cell.spread}".rstrip()
