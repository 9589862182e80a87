"""What the commands print, and how their flags read."""

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import tyro

from offrec.console import Console, plain_text

if TYPE_CHECKING:
    from offrec.evaluation import Evaluation


def unset(metavar: str) -> Any:
    """For a flag whose default is told in its text."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def ids(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def console_for(json_wanted: bool) -> Console:
    """Silent where a program reads, unless a person watches."""
    return Console(quiet=json_wanted and not sys.stderr.isatty())


def significant(value: float | None, digits: int = 3, scale: float | None = None) -> str:
    """Format a number with significant digits instead of fixed decimals, so that small rewards stay visible.

    Args:
        value: The number; None prints as a dash.
        digits: Significant digits.
        scale: The digits count from this number instead of the value, for example from the width of an interval.

    Example:
        >>> significant(0.0001234), significant(1234.5), significant(12.345, 2, scale=0.04)
        ('0.000123', '1,234', '12.345')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    reference = abs(scale) if scale and math.isfinite(scale) else abs(value)
    if value != 0 and abs(value) < 1e-6:
        return f"{value:.{digits - 1}e}"
    exponent = math.floor(math.log10(reference)) if reference else 0
    decimals = min(10, max(0, digits - 1 - exponent))
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text


def print_json(tree: Any) -> None:
    print(json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    def cell(text: str) -> Text:
        return Text(plain_text(text))  # a Text is not parsed for markup: an item can be called "[red]"

    table = Table(show_header=any(columns))
    for index, column in enumerate(columns):
        # Folded where the terminal is too narrow: a figure that is cut short reads as another figure.
        table.add_column(cell(column), justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    out = RichConsole(width=None if sys.stdout.isatty() else 140)
    out.print(plain_text(title), markup=False, highlight=False)
    out.print(table)


def figures_table(found: "Evaluation") -> tuple[list[str], list[list[str]]]:
    """A row for each figure, a column for each behaviour."""
    columns = ["", *(f"{name} ({figures.events:,})" for name, figures in found.metrics.items())]
    names = list(found.metrics["all"].values)
    table = [[name, *(f"{f.values[name]:.4f}" if f.events else "–" for f in found.metrics.values())] for name in names]
    return columns, table
