"""Read RetailRocket's events.csv: timestamp (ms), visitorid, event, itemid, transactionid."""

from collections.abc import Iterator, Sequence
from functools import partial

from offrec.data import tables
from offrec.data.bad_rows import BadRows, ReadTask, RowBatch
from offrec.data.formats.record import Columns, FormatRecord, ProtocolDefaults, Say
from offrec.data.sources import Source
from offrec.errors import InputError

COLUMNS = {"time": "timestamp", "user": "visitorid", "behaviour": "event", "item": "itemid", "order": "transactionid"}
BEHAVIOURS = {"view": "view", "addtocart": "cart", "transaction": "buy"}


def read(sources: Sequence[Source], columns: Columns, say: Say) -> Iterator[ReadTask]:
    """Split RetailRocket's tables into tasks."""
    if columns != Columns(use_session=columns.use_session):
        raise InputError("--format retailrocket has fixed columns; remove --session, --item, … or use --format events.")
    for source in sources:
        for task in tables.read_tasks(source, resolve):
            yield partial(check, task)


def check(task: ReadTask, bad_rows: BadRows) -> RowBatch | None:
    """Read a batch and check that only transactions have a transactionid."""
    batch = task(bad_rows)
    if batch is not None:
        is_bad = batch.frame["order"].is_not_null() & (batch.frame["behaviour"] != "transaction").fill_null(False)
        bad_rows.add_rows(
            "a transactionid for", "expected one only for transactions", batch, is_bad, batch.frame["behaviour"]
        )
    return batch


def resolve(source: Source, available: Sequence[str]) -> dict[str, str]:
    """Return the columns of events.csv."""
    for name in COLUMNS.values():
        if name not in available:
            listed = ", ".join(available)
            raise InputError(
                f"{source.name} has no column {name!r}, only {listed}; expected RetailRocket's events.csv."
            )
    return COLUMNS


# In the paper, a "session" of RetailRocket consists of all events of a visitor (Xin et al. 2020).
PAPER = ProtocolDefaults(filters=("session=3", "item=3"), sessions="user", drop=("buy",))
RECORD = FormatRecord(
    name="retailrocket", help="RetailRocket's events.csv.", read=read, paper=PAPER, behaviours=BEHAVIOURS
)
