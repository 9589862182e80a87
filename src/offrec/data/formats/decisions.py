"""Read any table of decisions. Each row is a served list: the items offered, their probability and the item picked."""

from collections.abc import Iterator, Sequence

from offrec.data.bad_rows import ReadTask
from offrec.data.formats import events
from offrec.data.formats.record import Columns, FormatRecord, Say
from offrec.data.sources import Source


def read(sources: Sequence[Source], columns: Columns, say: Say) -> Iterator[ReadTask]:
    """Split tables of decisions into tasks."""
    return events.read_columns(sources, columns, (*events.COLUMNS, "offered"), ("item", "propensity"), say)


# `--protocol paper` applies no filters: estimates from filtered sessions would be valid for those sessions only.
RECORD = FormatRecord(
    name="decisions",
    help="Any table with one served list per row: the items offered, their probability and the item picked.",
    read=read,
    has_lists=True,
)
