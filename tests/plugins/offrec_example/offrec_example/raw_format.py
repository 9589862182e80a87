"""A format: ratings.csv of MovieLens, with the columns userId, movieId, rating and timestamp."""

from collections.abc import Iterator, Sequence

import offrec
from offrec.data.bad_rows import ReadTask
from offrec.data.formats import Columns, Say
from offrec.data.sources import Source
from offrec.data.tables import read_tasks
from offrec.errors import InputError

NAMES = {"user": "userId", "item": "movieId", "time": "timestamp"}


def resolve(source: Source, columns: Sequence[str]) -> dict[str, str]:
    """offrec's names of the columns to read → the table's names."""
    if missing := [name for name in NAMES.values() if name not in columns]:
        raise InputError(f"{source.name} has no column {missing[0]!r}; is it MovieLens's ratings.csv?")
    return NAMES


def read(sources: Sequence[Source], columns: Columns, say: Say) -> Iterator[ReadTask]:
    for source in sources:
        yield from read_tasks(source, resolve)


offrec.register_format(offrec.FormatRecord("movielens", "MovieLens's ratings.csv; every rating is a view.", read=read))
