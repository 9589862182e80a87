"""Recommend items for every session of a table in memory: polars or pandas in, the same out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from offrec.console import Console
from offrec.data.bad_rows import RowBatch
from offrec.data.formats import Columns, events
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.policy import Id, Policy
from offrec.serving.recommend_table import SessionTable, TableOptions, check_options

TABLE = Source(Path("the table"))  # the name of the table in messages


def recommend_table(
    policy: Policy,
    frame: Any,
    k: int = 10,
    *,
    exclude_seen: bool = False,
    skip_recent: int = 0,
    allow: Sequence[Id] | None = None,
    deny: Sequence[Id] = (),
    session: str | None = None,
    item: str | None = None,
    time: str | None = None,
    offered: str | None = None,
) -> Any:
    """Recommend the k best items for every session of a table.

    Args:
        policy: The policy, for example from `offrec.load`.
        frame: A polars or pandas DataFrame with one event per row. With a column `offered`, each row is a list that was
            shown, and `item` the pick from it or null.
        k: Number of items per session.
        exclude_seen: Whether to exclude the items of a session from its list.
        skip_recent: How many of the last items of a session to rank below all other items.
        allow: Item ids to choose from, or None for the whole catalogue.
        deny: Item ids to exclude.
        session: The session column; by default `session`, else `user`.
        item: The item column; by default `item`.
        time: The column that orders the events of a session; by default `time`, else `position`, else their order.
        offered: The column of lists; by default `offered`, if the table has it.

    Returns:
        A DataFrame of the same kind with the columns session, rank, item, score and probability, and title if the items
        have titles. Sessions are in the order of their first rows.

    Raises:
        InputError: If an argument or the table is not valid.

    Example:
        >>> offrec.recommend_table(offrec.load("runs/sl"), frame, k=5)
    """
    if isinstance(frame, pl.LazyFrame):
        raise InputError("frame is a LazyFrame; collect it first, or use `offrec recommend --input` for large tables.")
    is_polars = isinstance(frame, pl.DataFrame)
    if not is_polars and not hasattr(frame, "columns"):
        raise InputError(f"frame must be a polars or pandas DataFrame; got {type(frame).__name__}.")
    options = TableOptions(k, exclude_seen, skip_recent, allow=allow, deny=deny, is_command=False)
    check_options(policy, options)
    columns = Columns(session=session, item=item, time=time, offered=offered)
    names = [str(name) for name in frame.columns]
    resolved = events.resolve(TABLE, names, columns, (*events.COLUMNS, "offered"), ("item",), "the argument {}")
    wanted = {name: column for name, column in resolved.items() if name not in ("behaviour", "propensity", "reward")}
    table = pl.DataFrame(
        {name: frame[column] if is_polars else frame[column].to_list() for name, column in wanted.items()}
    )
    if not table.height:
        raise InputError("The table contains no rows; expected one event per row.")
    table = _group_sessions(table)
    batch = RowBatch(TABLE, table.drop("row"), lambda row: f"row {table['row'][row] + 1}")
    lists = pl.concat(list(SessionTable(policy, iter([lambda bad_rows: batch]), options, Console(quiet=True)).lists))
    return lists if is_polars else type(frame)(lists.to_dict(as_series=False))


def _group_sessions(table: pl.DataFrame) -> pl.DataFrame:
    """Move the rows of each session together, in the order of their first rows; `row` is the original row."""
    keys = [name for name in ("session", "user") if name in table.columns]
    return (
        table.with_row_index("row")
        .with_columns(first=pl.col("row").min().over(keys))
        .sort("first", "row")
        .drop("first")
    )
