"""Any table of decisions, a row a served list: what was offered, how likely that was, and what was picked of it."""

from collections.abc import Iterator, Sequence

from offrec.data.formats import events
from offrec.data.formats.record import Columns, FormatRecord
from offrec.data.sources import Source
from offrec.data.tables import ReadTask


def read(sources: Sequence[Source], columns: Columns) -> Iterator[ReadTask]:
    return events.read_as(sources, columns, (*events.NAMES, "offered"), ("item", "propensity"))


# Unlike the paper's other logs, nothing is filtered: estimates from sessions of a certain length speak of those alone.
RECORD = FormatRecord(
    name="decisions",
    help="Any table with one served list per row: the items offered, their probability and the item picked.",
    read=read,
    has_lists=True,
)
