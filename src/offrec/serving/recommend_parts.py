"""Recommend items for the sessions of many files, on one machine or several: one file of lists per file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offrec.console import Console
from offrec.data import sources
from offrec.data.files import absolute_if_unnamed, check_not_current, publish_folder
from offrec.data.sources import Source
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.serving.recommend_table import TableCounts, TableOptions, check_options, write_lists

LoadPolicy = Callable[[], Policy]


class MapEngine(Protocol):
    """Calls a function for many parts, such as `offrec.scale.ray_engine.RayEngine`."""

    def map(self, step: Callable[..., Any], parts: Iterable[Any], *shared: Any) -> Iterator[Any]: ...


@dataclass(frozen=True)
class _Part:
    """A file of the table and the file of its lists."""

    source: Source
    out: Path


def write_parts(
    policy: Policy,
    paths: Sequence[str | Path],
    out: Path,
    options: TableOptions,
    console: Console,
    *,
    force: bool,
    engine: MapEngine | None = None,
    load: LoadPolicy | None = None,
) -> TableCounts:
    """Write the k best items of every session, with one Parquet file per file of the table.

    The lists of a file do not depend on other files, so they are the same on one machine and on several.

    Args:
        policy: Ranks the items.
        paths: The files of the table. No session may have rows in two files.
        out: The folder to write: part-00000.parquet, part-00001.parquet, …
        options: Which columns to read and what to recommend.
        console: Prints the progress.
        force: Whether an existing folder of such files is replaced.
        engine: Where files are processed; None: in this process. All machines need the files and the folder `out`.
        load: Loads the policy there.

    Returns:
        The counts of the table.

    Raises:
        InputError: If an option or the table is invalid; then nothing is written.
    """
    check_options(policy, options)
    _check_out(out, force)
    tables = sources.find(paths)
    counts, known = TableCounts(), np.empty(0, np.uint64)
    with publish_folder(out, replace=force, advice="choose another --out") as folder:
        parts = [_Part(_absolute(one), folder.resolve() / f"part-{at:05d}.parquet") for at, one in enumerate(tables)]
        if engine is None:
            results: Iterable[Any] = (_write_part(part, policy, options) for part in parts)
        else:
            results = engine.map(_load_and_write, parts, load, options)
        for part, (done, sessions) in zip(parts, results, strict=True):
            counts += done
            known = _add(known, sessions, part.source)
            console.line(f"{part.source.name}: {done.sessions:,} sessions")
    return counts


def _check_out(out: Path, force: bool) -> None:
    if not out.exists():
        return
    check_not_current(absolute_if_unnamed(out))
    if not force:
        raise InputError(f"--out {out} exists; choose another folder, or replace it with --force.")
    if not out.is_dir() or any(not path.match("part-*.parquet") for path in out.iterdir()):
        raise InputError(f"--out {out} is not a folder of lists, so --force does not replace it; choose another --out.")


def _absolute(source: Source) -> Source:
    folder = None if source.folder is None else source.folder.resolve()
    return Source(source.path.resolve(), source.member, folder)


def _load_and_write(part: _Part, load: LoadPolicy, options: TableOptions) -> tuple[TableCounts, NDArray[np.uint64]]:
    return _write_part(part, load(), options)


def _write_part(part: _Part, policy: Policy, options: TableOptions) -> tuple[TableCounts, NDArray[np.uint64]]:
    table = write_lists(policy, [part.source], part.out, options, Console(quiet=True))
    return table.counts, table.blocks.known


def _add(known: NDArray[np.uint64], more: NDArray[np.uint64], source: Source) -> NDArray[np.uint64]:
    """Add the hashes of a file's sessions to those of earlier files; a session in two files is an error."""
    if np.isin(more, known).any():
        raise InputError(
            f"{source.name} contains rows of a session that an earlier file contains too; write each session to one "
            "file."
        )
    return np.concatenate([known, more])
