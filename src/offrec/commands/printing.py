"""Functions that print tables and numbers, and that declare the flags of commands."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import tyro

from offrec.console import Console
from offrec.errors import InputError, plain_text

if TYPE_CHECKING:
    from offrec.evaluation import Evaluation


UNITS = re.compile(r"\S+ … \S+|\S+")  # an interval or a word
PAGE_WIDTHS = (140, 200)  # columns of text in files and pipes; the second if words would be broken otherwise


def unset(metavar: str) -> Any:
    """Declare a flag whose help text states the default itself."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def registered(kind: str, text: str, metavar: str = "NAME") -> Any:
    """Declare a flag that takes names from a registry; its help lists all names, including those of plug-ins.

    Args:
        kind: "learner", "backbone", "baseline", "format" or "world".
        text: The help text before the names, without a full stop.
        metavar: The placeholder for the value in the help.
    """
    names = names_for_help(kind)
    return tyro.conf.arg(metavar=metavar, help=f"{text}: {names}." if names else text, help_behavior_hint="")


def names_for_help(kind: str) -> str:
    """Return the names in a registry, or none if no help is printed: importing the learners takes a second."""
    shown = "torch" in sys.modules or not {"-h", "--help"}.isdisjoint(sys.argv)
    if not shown:
        return ""
    registry = _registry(kind)
    if kind == "world":
        return ", ".join(f"{name} ({world.items} items)" for name, world in registry.items())
    return ", ".join(registry)


def _registry(kind: str) -> Mapping[str, Any]:
    module, name = {
        "learner": ("offrec.algorithms", "LEARNERS"),
        "backbone": ("offrec.backbones", "BACKBONES"),
        "baseline": ("offrec.baselines", "BASELINES"),
        "format": ("offrec.data.formats", "FORMATS"),
        "world": ("offrec.shop.worlds", "WORLDS"),
        "metric": ("offrec.evaluation", "METRICS"),
    }[kind]
    registry: Mapping[str, Any] = getattr(import_module(module), name)
    return registry


def registered_names() -> str:
    """Return every registered name with its help text, by registry."""
    lines: list[str] = []
    for kind in ("learner", "backbone", "baseline", "format", "metric"):
        registry = _registry(kind)
        width = max(map(len, registry))
        lines += [f"{kind}s", *(f"  {name:<{width}}  {record.help}" for name, record in registry.items())]
    return "\n".join(lines)


def split_ids(text: str) -> list[str]:
    """Split text at commas into item ids."""
    return [part.strip() for part in text.split(",") if part.strip()]


def console_for(json_wanted: bool) -> Console:
    """Return a console, which is quiet if the output is JSON and standard error is not a terminal."""
    return Console(quiet=json_wanted and not sys.stderr.isatty())


def significant(value: float | None, digits: int = 3, scale: float | None = None) -> str:
    """Format a number with significant digits instead of fixed decimals, so that small rewards stay visible.

    Args:
        value: The number; None prints as a dash.
        digits: Significant digits.
        scale: Count the digits from this number instead of the value, for example from the width of an interval.

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
    """Print a JSON document to standard output."""
    print(json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table. Cells are plain text: markup is not interpreted and control characters are escaped."""
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    def cell(text: str) -> Text:
        return Text(plain_text(text))  # a Text is not parsed for markup: an item can be called "[red]"

    width = table_width(columns, rows)
    widths: Sequence[int | None] = _column_widths(columns, rows, width) or [None] * len(columns)
    table = Table(show_header=any(columns))
    for index, (column, column_width) in enumerate(zip(columns, widths, strict=True)):
        # Long cells are folded, not cut: a truncated number reads as another number.
        justify: Literal["left", "right"] = "left" if index == 0 else "right"
        table.add_column(cell(column), justify=justify, overflow="fold", width=column_width)
    for row in rows:
        table.add_row(*map(cell, row))
    out = RichConsole(width=width)
    out.print(plain_text(title), markup=False, highlight=False)
    out.print(table)


def table_width(columns: list[str], rows: list[list[str]]) -> int:
    """Return the width to print a table with: that of the terminal, or of the page of a file or pipe."""
    from rich.console import Console as RichConsole

    if sys.stdout.isatty():
        return RichConsole().width
    return next((width for width in PAGE_WIDTHS if _column_widths(columns, rows, width)), PAGE_WIDTHS[0])


def breaks_words(columns: list[str], rows: list[list[str]]) -> bool:
    """Return whether a table is so wide that words would be broken."""
    return _column_widths(columns, rows, table_width(columns, rows)) is None


def _column_widths(columns: list[str], rows: list[list[str]], width: int) -> list[int] | None:
    """Return the widths of the columns such that lines end between words and outside of intervals, or None."""
    from rich.cells import cell_len  # some characters are two cells wide

    cells = [[plain_text(text) for text in column] for column in zip(columns, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in cells]
    least = [max((cell_len(unit) for text in column for unit in UNITS.findall(text)), default=1) for column in cells]
    available = width - 3 * len(columns) - 1  # without borders and padding
    if sum(least) > available:
        return None
    while sum(widths) > available:
        widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def metrics_table(evaluation: "Evaluation") -> tuple[list[str], list[list[str]]]:
    """Return a table with one row per metric and one column per behaviour."""
    columns = ["", *(f"{name} ({values.events:,})" for name, values in evaluation.metrics.items())]
    rows = [
        [metric, *(f"{values[metric]:.4f}" if values.events else "–" for values in evaluation.metrics.values())]
        for metric in evaluation.metrics["all"].values
    ]
    return columns, rows


def parse_rewards(pairs: tuple[str, ...]) -> dict[str, float]:
    """Read the values of --reward: BEHAVIOUR=NUMBER each."""
    rewards = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            rewards[name.strip()] = float(value)
            if not name.strip() or not math.isfinite(rewards[name.strip()]):
                raise ValueError
        except ValueError:
            raise InputError(f"--reward must be BEHAVIOUR=NUMBER, for example cart=2; got {pair}.") from None
    return rewards
