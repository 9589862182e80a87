"""Any table of events: CSV, TSV, JSON lines or Parquet, whose columns have our names or are named by the user."""

from collections.abc import Iterator, Mapping, Sequence

from offrec.data import tables
from offrec.data.formats.record import Columns, FormatRecord, ProtocolDefaults
from offrec.data.sources import Source
from offrec.data.tables import ReadTask
from offrec.errors import InputError

NAMES = ("session", "user", "item", "time", "position", "behaviour", "propensity")


def read(sources: Sequence[Source], columns: Columns) -> Iterator[ReadTask]:
    if columns.offered:
        raise InputError("A table of events has no lists, so --offered has no place; use --format decisions.")
    return read_as(sources, columns, NAMES, ("item",))


def read_as(
    sources: Sequence[Source], columns: Columns, names: Sequence[str], needed: Sequence[str]
) -> Iterator[ReadTask]:
    """`names`: the columns that are read, of which the `needed` must be there."""
    first: dict[str, Mapping[str, str]] = {}

    def resolve_alike(source: Source, found: Sequence[str]) -> Mapping[str, str]:
        resolved = resolve(source, found, columns, names, needed)
        for name, earlier in first.items():
            if differing := sorted(set(earlier) ^ set(resolved)):
                raise InputError(
                    f"{source.name} and {name} do not have the same columns: only one of them has {differing[0]}; "
                    "prepare files of the same kind together."
                )
        first.setdefault(source.name, resolved)
        return resolved

    optional = [name for name in names if not getattr(columns, name) and (name != "session" or columns.use_session)]
    for source in sources:
        yield from tables.read_tasks(source, resolve_alike, optional)


def resolve(
    source: Source, found: Sequence[str], columns: Columns, names: Sequence[str], needed: Sequence[str]
) -> dict[str, str]:
    """Our name → the table's, for the columns that it has or that were asked for."""
    listed = f"it has {', '.join(found[:20])}{', …' if len(found) > 20 else ''}"
    resolved: dict[str, str] = {}
    for name in names:
        asked = getattr(columns, name)
        wanted = asked or name
        if wanted not in found:
            if asked or name in needed:
                raise InputError(f"{source.name} has no column {wanted!r}; {listed}; name one with --{name}.")
        elif found.count(wanted) > 1:
            raise InputError(f"{source.name} has {found.count(wanted)} columns {wanted!r}; rename all but one.")
        elif name != "session" or columns.use_session:
            resolved[name] = wanted
    if "session" not in resolved and "user" not in resolved:
        missing = "neither a column 'session' nor 'user'" if columns.use_session else "no column 'user'"
        raise InputError(f"{source.name} has {missing}; {listed}; name one with --session or --user.")
    return resolved


RECORD = FormatRecord(
    name="events",
    help="Any table with one event per row, as CSV, TSV, JSON lines or Parquet.",
    read=read,
    paper=ProtocolDefaults(filters=("session=3", "item=3")),
)
