"""Where the steps of a partitioned computation run: in this process with files, or on a cluster.

A step is a function that an engine calls once per part. It returns a report, which comes back to the caller in the
order of the parts, and tables, which stay with the engine. Steps must not depend on when or where they run, because a
cluster repeats the steps of a machine that dies.
"""

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import polars as pl

Tables = dict[str, pl.DataFrame]
Stored = Any  # the tables of a part, as an engine refers to them
HEADER = struct.Struct("<Q")  # the number of bytes of the frame that follows


class Engine(Protocol):
    """Runs the steps of a partitioned computation."""

    def partitions(self, size: int) -> int:
        """Return the number of partitions for a log of this many bytes."""

    def split(
        self, step: Callable[..., tuple[Any, list[pl.DataFrame]]], parts: Iterable[Any], n: int, *shared: Any
    ) -> tuple[Iterator[Any], Sequence[Stored]]:
        """Call `step(part, n, *shared)`, which divides each part into n pieces.

        Args:
            step: Returns a report and the pieces.
            parts: Values, or tables that the engine stores. They are read as they are needed.
            n: The number of pieces.
            shared: Further arguments, which are the same for all parts.

        Returns:
            The reports, and the pieces by their number. Read all reports before the pieces.
        """

    def merge(
        self, step: Callable[..., tuple[Any, Tables]], pieces: Sequence[Stored], *shared: Any
    ) -> tuple[list[Any], list[Stored]]:
        """Call `step(pieces, *shared)` with the pieces of each number, in the order of the parts."""

    def update(
        self, step: Callable[..., tuple[Any, Tables]], parts: Sequence[Stored], *shared: Any
    ) -> tuple[list[Any], list[Stored]]:
        """Call `step(tables, *shared)` with the tables of each part, and replace them by its result."""

    def load(self, part: Stored) -> Tables:
        """Return the tables of a part, and delete them from the engine's storage."""


class FileEngine:
    """Runs one step at a time in this process and stores tables in a folder.

    Memory contains one part, or the pieces of one part.

    Args:
        folder: Where the tables are stored.
        part_bytes: The size of a part of the log in memory; see `partitions`.
    """

    MOST_PARTITIONS = 4096

    def __init__(self, folder: Path, part_bytes: int) -> None:
        self.folder, self.part_bytes, self.files = folder, part_bytes, 0
        folder.mkdir(parents=True, exist_ok=True)

    def partitions(self, size: int) -> int:
        return min(max(1, -(-size // self.part_bytes)), self.MOST_PARTITIONS)

    def split(
        self, step: Callable[..., tuple[Any, list[pl.DataFrame]]], parts: Iterable[Any], n: int, *shared: Any
    ) -> tuple[Iterator[Any], Sequence[Stored]]:
        pieces = [self._new_path() for _ in range(n)]

        def run() -> Iterator[Any]:
            for part in parts:
                report, frames = step(self.load(part) if isinstance(part, Path) else part, n, *shared)
                for path, frame in zip(pieces, frames, strict=True):
                    if frame.height:
                        _append(path, frame)
                del part, frames
                yield report

        return run(), pieces

    def merge(
        self, step: Callable[..., tuple[Any, Tables]], pieces: Sequence[Stored], *shared: Any
    ) -> tuple[list[Any], list[Stored]]:
        reports, parts = [], []
        for path in pieces:
            report, tables = step(_read_frames(path) if path.exists() else [], *shared)
            path.unlink(missing_ok=True)
            reports.append(report)
            parts.append(self._save(tables))
        return reports, parts

    def update(
        self, step: Callable[..., tuple[Any, Tables]], parts: Sequence[Stored], *shared: Any
    ) -> tuple[list[Any], list[Stored]]:
        reports, updated = [], []
        for part in parts:
            report, tables = step(self.load(part), *shared)
            reports.append(report)
            updated.append(self._save(tables))
        return reports, updated

    def load(self, part: Stored) -> Tables:
        names, *frames = _read_frames(part)
        part.unlink()
        return dict(zip(names["name"].to_list(), frames, strict=True))

    def _save(self, tables: Tables) -> Path:
        path = self._new_path()
        for frame in (pl.DataFrame({"name": list(tables)}), *tables.values()):
            _append(path, frame)
        return path

    def _new_path(self) -> Path:
        self.files += 1
        return self.folder / f"{self.files}.tables"


def _append(path: Path, frame: pl.DataFrame) -> None:
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    with path.open("ab") as file:
        file.write(HEADER.pack(buffer.tell()))
        file.write(buffer.getbuffer())


def _read_frames(path: Path) -> list[pl.DataFrame]:
    frames = []
    with path.open("rb") as file:
        while header := file.read(HEADER.size):
            frames.append(pl.read_ipc(io.BytesIO(file.read(*HEADER.unpack(header)))))
    return frames
