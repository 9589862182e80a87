"""Read the Open Bandit Dataset (Saito et al. 2021): OBD/{random,bts}/{all,men,women}/{all,men,women}.csv.

Each row is an item in one of three slots, with the probability (`propensity_score`) that the policy shows this item in
this slot, and whether it was clicked. Rows are independent sessions of one decision. The slot (`position`) belongs to
the context: propensities depend on it, and estimates use it through them. Prepared datasets do not store it, because
policies of offrec do not read it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import polars as pl

from offrec.data import sources, tables
from offrec.data.bad_rows import BadRows, ReadTask, RowBatch
from offrec.data.decision_table import TableColumns
from offrec.data.formats.record import Columns, FormatRecord, Say
from offrec.data.sources import Source
from offrec.errors import InputError

COLUMNS = {
    "time": "timestamp",
    "item": "item_id",
    "slot": "position",
    "click": "click",
    "propensity": "propensity_score",
}
CONTEXT = ("item_id", "position")  # the columns on which propensities depend
TABLE_COLUMNS = TableColumns(propensity="propensity_score", reward="click", reads_sessions=False)
ROWS = 1 << 32  # more than a batch has rows, so that rows of different batches are different sessions


def find(paths: Sequence[str | Path]) -> list[Source]:
    """Return the CSV files of campaigns, given by their folders or by the files themselves."""
    files: list[str | Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        file = path / f"{path.resolve().name}.csv"
        if path.is_dir() and not file.is_file():
            raise InputError(
                f"{path} has no {file.name}; give a campaign of the Open Bandit Dataset, such as random/men."
            )
        files.append(file if path.is_dir() else path)
    return sources.find(files)


def read(found: Sequence[Source], columns: Columns, say: Say) -> Iterator[ReadTask]:
    """Split the tables into tasks."""
    if columns != Columns(use_session=columns.use_session):
        raise InputError(
            "--format open-bandit has fixed columns; remove --session, --item, … or use --format decisions."
        )
    number = 0
    for source in found:
        for task in tables.read_tasks(source, resolve):
            yield partial(as_decisions, task, number)
            number += 1


def as_decisions(task: ReadTask, number: int, bad_rows: BadRows) -> RowBatch | None:
    """Read batch `number` as lists of one item, each a session of its own."""
    batch = task(bad_rows)
    if batch is None:
        return None
    frame = batch.frame
    clicked = frame["click"].cast(pl.String)
    is_valid = clicked.is_in(["0", "1"]).fill_null(False)
    bad_rows.add_rows("the click", "expected 0 or 1", batch, ~is_valid, clicked)
    slot = frame["slot"].cast(pl.Int64, strict=False)
    bad_rows.add_rows("the position", "expected the number of a slot", batch, slot.is_null(), frame["slot"])
    decisions = frame.select("time", "propensity", offered="item").with_columns(
        session=number * ROWS + pl.int_range(frame.height), item=pl.when(clicked == "1").then(frame["item"])
    )
    return RowBatch(batch.source, decisions, batch.place, behaviour="click", position=batch.position)


def resolve(source: Source, available: Sequence[str]) -> dict[str, str]:
    """Return the columns of a campaign."""
    for name in COLUMNS.values():
        if name not in available:
            listed = ", ".join(available[:10])
            raise InputError(
                f"{source.name} has no column {name!r}, only {listed}; expected a CSV file of the Open Bandit Dataset."
            )
    return COLUMNS


RECORD = FormatRecord(
    name="open-bandit",
    help="A campaign of the Open Bandit Dataset: its folder, such as random/men, or its CSV file.",
    read=read,
    has_lists=True,
    find=find,
)
