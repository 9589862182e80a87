"""The tables of a report that a terminal has room for."""

from offrec.reports.report import Report
from offrec.reports.tables import Cell, Table

SHOWN = ("Next-item figures", "What is earned", "Sweeps", "Tuning")
MARKS = {
    "*": "* and **: above SL at p ≤ .05 and .01",
    "▾": "▾: below SL at p ≤ .05",
    "±": "±: standard deviation over seeds",
    "[": "[ … ]: 95 % interval",
}


def tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, heads and rows of each."""
    found = []
    for table in _shown(report):
        spans = [f"{label} " for label, count in table.spans for _ in range(count)] or [""] * len(table.heads)
        heads = ["", *(span + head for span, head in zip(spans, table.heads, strict=True))]
        found.append((table.title, heads, _rows(table)))
    return found


def legend(report: Report) -> str:
    """One line for the marks that are there; the report says more of them."""
    marks = "".join(c.stars + c.spread for table in _shown(report) for row in table.rows for c in row.cells)
    return "; ".join(words for mark, words in MARKS.items() if mark in marks)


def _shown(report: Report) -> list[Table]:
    return [table for section in report.sections if section.title in SHOWN for table in section.tables]


def _rows(table: Table) -> list[list[str]]:
    """Each under the backbone it belongs to: the same learner may stand under several."""
    rows = []
    for title, found in table.sections:
        rows += [[title, *[""] * len(table.heads)]] if title else []
        indent = "  " if title else ""
        rows += [[indent + row.label, *map(_text, row.cells)] for row in found]
    return rows


def _text(cell: Cell) -> str:
    return f"{cell.text}{cell.stars} {cell.spread}".rstrip()
