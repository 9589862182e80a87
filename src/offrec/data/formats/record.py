"""The record of a raw format, which describes it to every command. Each format's file declares one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offrec.data.bad_rows import ReadTask
from offrec.data.log import Log
from offrec.data.sources import Source, find
from offrec.plugins import Registry, check_callable, check_texts

Say = Callable[[str], None]  # prints a line


@dataclass(frozen=True)
class Columns:
    """The table's names for the columns that offrec reads. None: offrec's own name, if the table has such a column."""

    session: str | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    position: str | None = None
    behaviour: str | None = None
    reward: str | None = None  # None: no reward column
    offered: str | None = None
    propensity: str | None = None
    use_session: bool = True  # False: sessions are made from users, even if the table has a session column


@dataclass(frozen=True)
class ProtocolDefaults:
    """The defaults of `--protocol paper` for a format; options override them."""

    filters: tuple[str, ...] = ()
    sessions: str = "auto"
    drop: tuple[str, ...] = ()
    sample: int | None = None


@dataclass(frozen=True)
class FormatRecord:
    """A raw format as `prepare` and `recommend` see it. Give either `read` or `read_whole`.

    Args:
        name: The name after `--format`: "events".
        help: One line that says what the files contain.
        read: Reads the sources in batches. Its last argument prints a line, such as a warning.
        read_whole: Reads all sources into one log, for formats whose rows must be joined first.
        paper: The defaults of `--protocol paper` for the format.
        behaviours: Maps the format's names of behaviours to offrec's; None if any name may occur.
        has_lists: Whether rows are served lists rather than events; `recommend --input` reads events only.
        find: Turns the paths from the command line into sources.
    """

    name: str
    help: str
    read: Callable[[Sequence[Source], Columns, Say], Iterator[ReadTask]] | None = None
    read_whole: Callable[[Sequence[Source], Columns, Say], Log] | None = None
    paper: ProtocolDefaults = field(default_factory=ProtocolDefaults)
    behaviours: dict[str, str] | None = None
    has_lists: bool = False
    find: Callable[[Sequence[str | Path]], list[Source]] = find


def _check(record: FormatRecord) -> str | None:
    if (record.read is None) == (record.read_whole is None):
        return "it must have either `read` or `read_whole`"
    reader = "read_whole" if record.read is None else "read"
    return check_texts(record, ("help",)) or check_callable(record, reader) or check_callable(record, "find")


FORMATS: Registry[FormatRecord] = Registry("format", FormatRecord, _check)


def register_format(record: FormatRecord) -> FormatRecord:
    """Register a raw format with every command.

    Args:
        record: Its record.

    Returns:
        The same record.

    Raises:
        InputError: The record is not valid, or another format has this name.

    Example:
        >>> offrec.register_format(offrec.FormatRecord("mine", "My own log.", read=read))
    """
    return FORMATS.register(record)
