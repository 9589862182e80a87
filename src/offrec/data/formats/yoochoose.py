"""Read YooChoose's yoochoose-clicks.dat and yoochoose-buys.dat: no header, ISO 8601 times, integer ids."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from offrec.data import tables
from offrec.data.bad_rows import BadRows, ReadTask, RowBatch
from offrec.data.formats.record import Columns, FormatRecord, ProtocolDefaults, Say
from offrec.data.sources import Source, read_blocks
from offrec.data.tables import Layout
from offrec.errors import InputError

IDS = {"session": pl.Int64, "item": pl.Int64}
LAYOUTS = {
    "click": Layout(("session", "time", "item", "category"), types=IDS, may_end_early=True),
    "buy": Layout(("session", "time", "item", "price", "quantity"), types=IDS, may_end_early=True),
}


def read(sources: Sequence[Source], columns: Columns, say: Say) -> Iterator[ReadTask]:
    """Split YooChoose's tables into tasks."""
    if columns != Columns(use_session=columns.use_session):
        raise InputError("--format yoochoose has fixed columns; remove --session, --item, … or use --format events.")
    for source in sources:
        behaviour = behaviour_of(source)
        for task in tables.delimited(source, resolve, LAYOUTS[behaviour]):
            yield partial(check, task, behaviour)


def check(task: ReadTask, behaviour: str, bad_rows: BadRows) -> RowBatch | None:
    """Read a batch and check that its ids are integers."""
    batch = task(bad_rows)
    if batch is None:
        return None
    for name in IDS:
        ids = batch.frame[name]
        if ids.dtype == pl.String:
            is_text = ids.is_not_null() & ids.cast(pl.Int64, strict=False).is_null()
            bad_rows.add_rows(f"the {name} id", "expected an integer", batch, is_text, ids)
    return replace(batch, behaviour=behaviour)


def behaviour_of(source: Source) -> str:
    """Distinguish clicks, which have four fields, from buys, which have five."""
    start = next(read_blocks(source))
    fields = start.data.lstrip(b"\n").partition(b"\n")[0].count(b",") + 1
    for behaviour, layout in LAYOUTS.items():
        if fields == len(layout.columns):
            return behaviour
    raise InputError(
        f"{source.name}, line {start.line(0)}: {fields} fields; expected 4 as in yoochoose-clicks.dat "
        "(session,time,item,category) or 5 as in yoochoose-buys.dat (session,time,item,price,quantity)."
    )


def resolve(source: Source, available: Sequence[str]) -> dict[str, str]:
    """Return the columns that both kinds of table have."""
    return {name: name for name in ("session", "time", "item")}


PAPER = ProtocolDefaults(filters=("session.click=3",), sample=200_000)
RECORD = FormatRecord(
    name="yoochoose",
    help="YooChoose's clicks, with or without its buys.",
    read=read,
    paper=PAPER,
    behaviours={"click": "click", "buy": "buy"},
)
