"""RetailRocket's events.csv: timestamp (ms), visitorid, event, itemid, transactionid."""

from collections.abc import Iterator, Sequence
from functools import partial

from offrec.data import tables
from offrec.data.bad_rows import BadRows, RowBatch
from offrec.data.formats.record import Columns, FormatRecord, ProtocolDefaults
from offrec.data.sources import Source
from offrec.data.tables import ReadTask
from offrec.errors import InputError

COLUMNS = {"time": "timestamp", "user": "visitorid", "behaviour": "event", "item": "itemid", "order": "transactionid"}
BEHAVIOURS = {"view": "view", "addtocart": "cart", "transaction": "buy"}


def read(sources: Sequence[Source], columns: Columns) -> Iterator[ReadTask]:
    if columns != Columns(use_session=columns.use_session):
        raise InputError("RetailRocket's columns are known; drop --session, --item, … or use --format events.")
    for source in sources:
        for task in tables.read_tasks(source, resolve):
            yield partial(checked, task)


def checked(task: ReadTask, bad_rows: BadRows) -> RowBatch | None:
    batch = task(bad_rows)
    if batch is not None:
        odd = batch.frame["order"].is_not_null() & (batch.frame["behaviour"] != "transaction").fill_null(False)
        bad_rows.add_rows("a transactionid for", "only transactions have one", batch, odd, batch.frame["behaviour"])
    return batch


def resolve(source: Source, found: Sequence[str]) -> dict[str, str]:
    for name in COLUMNS.values():
        if name not in found:
            listed = ", ".join(found)
            raise InputError(f"{source.name} has no column {name!r}; it has {listed}; is it RetailRocket's events.csv?")
    return COLUMNS


# Unlike the name says, a paper "session" of RetailRocket is everything one visitor ever did (Xin et al. 2020).
PAPER = ProtocolDefaults(filters=("session=3", "item=3"), sessions="user", drop=("buy",))
RECORD = FormatRecord(
    name="retailrocket", help="RetailRocket's events.csv.", read=read, paper=PAPER, behaviours=BEHAVIOURS
)
