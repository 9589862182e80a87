"""Read a table in blocks of whole sessions, with the events of each session in order."""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offrec.data import column_checks, list_checks
from offrec.data.bad_rows import BadRows, ReadTask
from offrec.data.factorize import run_starts
from offrec.errors import InputError


class SessionBlocks:
    """A table that is read in blocks of whole sessions.

    Args:
        tasks: Read the blocks of the table, whose rows are grouped by session.

    Attributes:
        known: The hashes of the sessions that were read.
    """

    def __init__(self, tasks: Iterable[ReadTask]) -> None:
        self.tasks = tasks
        self.known: NDArray[np.uint64] = np.empty(0, np.uint64)

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield blocks of whole sessions, with the events of each session in order.

        Raises:
            InputError: If a row is not valid, or the rows of a session are not contiguous.
        """
        unfinished: pl.DataFrame | None = None  # the last session may continue in the next block
        numeric_times: bool | None = None
        for task in self.tasks:
            frame, numeric_times = _read_block(task, numeric_times)
            frame = frame if unfinished is None else pl.concat([unfinished, frame], how="vertical_relaxed")
            keys = session_keys(frame)
            starts = run_starts([frame[name] for name in keys])
            last = int(np.flatnonzero(starts)[-1])
            finished, unfinished = frame[:last], frame[last:]
            self.known = _add_sessions(finished.filter(pl.Series(starts[:last])).select(keys), self.known)
            if finished.height:
                yield _sort_sessions(finished, starts[:last])
        if unfinished is not None:
            self.known = _add_sessions(unfinished[:1].select(session_keys(unfinished)), self.known)
            yield _sort_sessions(unfinished, np.arange(unfinished.height) == 0)


def session_keys(frame: pl.DataFrame) -> list[str]:
    """Return the columns that identify a session."""
    return [name for name in ("session", "user") if name in frame]


def _read_block(task: ReadTask, numeric_times: bool | None) -> tuple[pl.DataFrame, bool | None]:
    """Read and check a block: ids become integers or text, the time or position becomes the column `order`."""
    bad_rows = BadRows()
    batch = task(bad_rows)
    columns: dict[str, pl.Series] = {}
    if batch is not None:
        for name in ("session", "user", "item"):
            if name in batch.frame:
                is_pick = name == "item" and "offered" in batch.frame  # null if nothing was picked
                column_checks.check_ids(batch, name, bad_rows, optional=is_pick)
                column = batch.frame[name]
                columns[name] = column.cast(pl.Int64 if column.dtype.is_integer() else pl.String, strict=False)
        if "offered" in batch.frame:
            item = column_checks.check_ids(batch, "item", bad_rows, optional=True)
            columns["item"] = columns["item"].set(columns["item"].cast(pl.String) == "", None)
            checked = list_checks.check_offered(batch, item, bad_rows)
            if checked:
                columns["offered"] = _as_lists(checked["offered"], checked["offered_length"])
        if "time" in batch.frame:
            columns["order"] = column_checks.check_times(batch, bad_rows, numeric=numeric_times)
            numeric_times = columns["order"].dtype.is_numeric()
        elif "position" in batch.frame:
            columns["order"] = column_checks.check_positions(batch, bad_rows)
    bad_rows.raise_any()
    return pl.DataFrame(columns), numeric_times


def _as_lists(flat: pl.Series, lengths: pl.Series) -> pl.Series:
    """Divide ids, one list after the other, into lists of text."""
    rows = np.repeat(np.arange(len(lengths)), lengths.to_numpy())
    frame = pl.DataFrame({"row": rows, "offered": flat.cast(pl.String)})
    return frame.group_by("row", maintain_order=True).agg("offered")["offered"]


def _sort_sessions(frame: pl.DataFrame, starts: NDArray[np.bool_]) -> pl.DataFrame:
    """Sort the events of each session by the column `order`, if it exists."""
    if "order" not in frame:
        return frame
    numbered = frame.with_columns(number=pl.Series(np.cumsum(starts)))
    return numbered.sort("number", "order", maintain_order=True).drop("number", "order")


def _add_sessions(sessions: pl.DataFrame, known: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Add the hashes of new sessions to those of earlier blocks; a session that occurs again is an error."""
    hashes = sessions.hash_rows().to_numpy()
    unique, first = np.unique(hashes, return_index=True)
    repeated = np.isin(hashes, known)
    repeated[np.setdiff1d(np.arange(len(hashes)), first)] = True
    if repeated.any():
        session = sessions.row(int(np.flatnonzero(repeated)[0]))[0]
        raise InputError(
            f"The rows of session {session!r} are not contiguous in the table; sort the table by session and time."
        )
    return np.concatenate([known, unique])
