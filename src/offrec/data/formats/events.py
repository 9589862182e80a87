"""Read any table of events: CSV, TSV, JSON lines or Parquet. Options rename columns to offrec's names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from offrec.data import tables
from offrec.data.bad_rows import BadRows, ReadTask, RowBatch, only_fields
from offrec.data.column_checks import read_lists
from offrec.data.formats.record import Columns, FormatRecord, ProtocolDefaults, Say
from offrec.data.sources import Source
from offrec.data.unused_columns import describe_unused, find_similar
from offrec.errors import InputError

COLUMNS = ("session", "user", "item", "time", "position", "behaviour", "reward", "propensity")
DECISION_LOG = ("kind", "request_id", "log_probability")  # fields of a decision log
OPTION = "--{}"  # how messages write the option of a column


def read(sources: Sequence[Source], columns: Columns, say: Say) -> Iterator[ReadTask]:
    """Split tables of events into tasks."""
    if columns.offered:
        raise InputError("--offered cannot be used with --format events; use --format decisions.")
    return read_columns(sources, columns, COLUMNS, ("item",), say)


def read_columns(
    sources: Sequence[Source], columns: Columns, names: Sequence[str], required: Sequence[str], say: Say
) -> Iterator[ReadTask]:
    """Split tables into tasks that read the columns `names`, where the columns `required` must exist.

    `say` prints warnings about columns of the first table that look as if they were meant but are not read.
    """
    first: dict[str, Mapping[str, str]] = {}  # the columns of the first source
    lists: str | None = None

    def resolve_consistently(source: Source, available: Sequence[str]) -> Mapping[str, str]:
        nonlocal lists
        _refuse_decision_log(source, available)
        resolved = resolve(source, available, columns, names, required)
        if "offered" not in names:
            lists = find_similar("offered", [column for column in available if column not in resolved.values()])
        if not first:
            if lists is not None:
                say(f"Warning: {source.name}: The column {lists!r} is not used; {read_lists(lists)}.")
            first[source.name] = resolved
            given = [name for name in names if getattr(columns, name)]
            for sentence in describe_unused(available, resolved, given, names if columns.use_session else names[1:]):
                say(f"Warning: {source.name}: {sentence}")
        ((name, earlier),) = first.items()
        if differing := sorted(set(earlier) ^ set(resolved)):
            raise InputError(
                f"{source.name} and {name} have different columns: only one of them has {differing[0]}; "
                "prepare files with the same columns together."
            )
        return resolved

    not_read = {"reward"} if columns.use_session else {"reward", "session"}  # unless the user names them
    optional = [name for name in names if not getattr(columns, name) and name not in not_read]
    for source in sources:
        for task in tables.read_tasks(source, resolve_consistently, optional):
            yield task if lists is None else partial(_with_unread_lists, task, lists)


def _with_unread_lists(task: ReadTask, column: str, bad_rows: BadRows) -> RowBatch | None:
    batch = task(bad_rows)
    return None if batch is None else replace(batch, unread_lists=column)


def _refuse_decision_log(source: Source, available: Sequence[str]) -> None:
    if set(DECISION_LOG) <= set(available):
        raise InputError(
            f"{source.name} has the fields {', '.join(DECISION_LOG)}, so it is a decision log of offrec serve; "
            "name its folder and add --format served."
        )


def resolve(
    source: Source,
    available: Sequence[str],
    columns: Columns,
    names: Sequence[str],
    required: Sequence[str],
    option: str = OPTION,
) -> dict[str, str]:
    """Choose the columns to read.

    Args:
        source: The table, for messages.
        available: The names of its columns.
        columns: The names that the user gave.
        names: offrec's names of the columns to read.
        required: Those that must exist.
        option: How messages write the option of a column; a Python function has arguments instead.

    Returns:
        offrec's name → the table's name.

    Raises:
        InputError: If a required column is missing or ambiguous.
    """
    listed = f"it has {', '.join(available[:20])}{', …' if len(available) > 20 else ''}"
    resolved: dict[str, str] = {}
    for name in names:
        given = getattr(columns, name)
        if name == "reward" and given is None:  # only on request: a log's own `reward` may be any number
            continue
        column = given or name
        if column not in available:
            fields = [field for field in available if field.startswith(f"{column}.")]
            if fields and (given or name in required):
                raise only_fields(source, column, fields, name)
            if given or name in required:
                similar = find_similar(name, available)
                flag = option.format(name)
                advice = f"specify one with {flag}" + (f", such as {flag} {similar}" if similar else "")
                raise InputError(f"{source.name} has no column {column!r}; {listed}; {advice}.")
        elif available.count(column) > 1:
            raise InputError(f"{source.name} has {available.count(column)} columns {column!r}; rename all but one.")
        elif name != "session" or columns.use_session:
            resolved[name] = column
    if "session" not in resolved and "user" not in resolved:
        missing = "no column 'session' or 'user'" if columns.use_session else "no column 'user'"
        flags = "--session or --user" if option == OPTION else option.format("session")
        raise InputError(f"{source.name} has {missing}; {listed}; specify one with {flags}.")
    return resolved


RECORD = FormatRecord(
    name="events",
    help="Any table with one event per row, as CSV, TSV, JSON lines or Parquet.",
    read=read,
    paper=ProtocolDefaults(filters=("session=3", "item=3")),
)
