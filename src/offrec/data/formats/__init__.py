"""The raw formats, one file each: how its tables become events, and what the paper does with it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offrec.data.log import Log
from offrec.data.sources import Source, find
from offrec.data.tables import ReadTask


@dataclass(frozen=True)
class Columns:
    """The table's own names for our columns; None: the same name, where the table has it."""

    session: str | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    position: str | None = None
    behaviour: str | None = None
    offered: str | None = None
    propensity: str | None = None
    use_session: bool = True  # False: sessions are made from users, even where the table has a session column


@dataclass(frozen=True)
class Preset:
    """What a protocol does with a format, unless told otherwise."""

    filters: tuple[str, ...] = ()
    sessions: str = "auto"
    drop: tuple[str, ...] = ()
    sample: int | None = None


@dataclass(frozen=True)
class Format:
    """Its tables are read in batches, or, where rows must be joined first, as a whole."""

    read: Callable[[Sequence[Source], Columns], Iterator[ReadTask]] | None
    paper: Preset
    behaviours: dict[str, str] | None = field(default=None)  # the format's spelling → ours; None: any
    whole: Callable[[Sequence[Source], Columns, Callable[[str], None]], Log] | None = None
    find: Callable[[Sequence[str | Path]], list[Source]] = find
