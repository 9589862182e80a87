"""`offrec prepare`: turn a raw log into a dataset folder."""

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data import decisions, folder, item_files, item_indices, partitioned, sessions
from offrec.data.arrays import Arrays
from offrec.data.bad_rows import BadRows, ReadTask
from offrec.data.dataset import Dataset, SplitName
from offrec.data.engine import Engine, FileEngine
from offrec.data.formats import FORMATS, Say
from offrec.data.item_indices import IndexedEvents
from offrec.data.log import TICKS_PER_SECOND, BatchChecker, CheckedBatch, Log, LogBuilder, TimeUnit, to_milliseconds
from offrec.data.options import PrepareOptions, check, from_keywords, limit_rewards, resolve_protocol
from offrec.data.partitioned import PartitionedPreparation
from offrec.data.protocol import Protocol
from offrec.data.sessions import Events
from offrec.data.shop_metadata import common_shop
from offrec.data.sources import Source
from offrec.data.statistics import Statistics
from offrec.data.threads import WORKERS
from offrec.data.vocabulary import Vocabulary, encode_ids, read_catalogue
from offrec.errors import InputError

__all__ = ["PrepareOptions", "prepare"]
Steps = list[dict[str, Any]]
NEEDS_EVENTS: dict[SplitName, str] = {"validation": "offrec train", "test": "offrec evaluate"}
LEAST_MEMORY = 512 << 20  # the smallest --memory-limit
BASE_MEMORY = 256 << 20  # of the process without a log
MEMORY_PER_BYTE = 8  # bytes of memory to prepare one byte of a partition
OnRead = Callable[[int, int], None]  # (bytes read, bytes in total)


def prepare(
    source: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    options: PrepareOptions | None = None,
    force: bool = False,
    progress: Say | None = None,
    on_read: OnRead | None = None,
    memory_limit: int | None = None,
    engine: Engine | None = None,
    **keywords: Any,
) -> Dataset:
    """Turn a raw log into a dataset folder.

    Args:
        source: Files, globs or folders of Parquet files, or URLs of such files and folders.
        out: The folder to write.
        options: All options in one object.
        **keywords: The options by name, instead of `options`.
        force: Whether to replace an existing dataset.
        progress: Receives a line of text about each step.
        on_read: Called with the number of bytes of the sources that have been read, and their total.
        memory_limit: Bytes of memory to use, about. The log is divided into partitions on disk, next to `out`.
        engine: Where partitions are prepared instead, such as `offrec.scale.ray_engine.RayEngine`.

    Returns:
        The dataset.

    Raises:
        InputError: If an option or the log is wrong, or if `out` cannot be written.

    Example:
        >>> dataset = offrec.prepare("log.csv", out="data", filter=("item=3",))
    """
    if options is not None and keywords:
        raise InputError(f"Give options either as `options` or by name, not both; got {', '.join(keywords)} by name.")
    options = options or from_keywords(keywords)
    say = progress or (lambda line: None)
    out = Path(out)
    check(options)
    check_partitions(options, memory_limit, engine)
    folder.check_free(out, force)
    tables = FORMATS[options.format].find([source] if isinstance(source, str | Path) else source)
    if memory_limit is not None or engine is not None:
        return _prepare_partitions(tables, out, options, say, on_read, memory_limit, engine)
    catalogue = None if options.catalogue is None else read_catalogue(Path(options.catalogue))
    item_rows = item_files.read_item_rows(options.items, options.item) if options.items else None
    shop = common_shop([table.path for table in tables])
    log = _read_log(tables, options, say, on_read, warn=shop is None)
    if item_rows is not None and options.keep_unseen_items:
        log = item_indices.append_items(log, item_files.unseen_ids(item_rows, Vocabulary(log.item_ids)))
    if catalogue is not None:
        log = item_indices.align_items(log, catalogue, Path(str(options.catalogue)), keep_new=options.keep_new_items)
    log = limit_rewards(log, options.reward_behaviours)
    protocol = resolve_protocol(options, log)
    events, steps = _make_sessions(
        log, protocol, say, drop_unknown_items=catalogue is not None and not options.keep_new_items
    )
    events, splits = sessions.split(events, protocol.split, protocol.split_seed, protocol.split_parts, log.owner_ids)
    indexed, arrays = _index_items(events.gather(), log, splits["train"][1], keep_all_items=catalogue is not None)
    properties = None
    if item_rows is not None:
        properties = item_files.encode_properties(item_rows, Vocabulary(indexed.item_ids))
        arrays |= properties.arrays()
        for note in properties.notes:
            say(note)
    say(f"writing {out}")
    folder.check_free(out, force)
    about = {"protocol": protocol.as_json(), "time_format": log.time_format, "source_rows": log.rows, "steps": steps}
    if log.lists is not None:
        notes = [*log.notes, *decisions.filter_notes(steps)]
        about["decisions"] = decisions.describe(indexed.events, arrays, notes)
    if properties is not None:
        about["item_properties"] = properties.as_json()
    if shop is not None:
        about["shop"] = shop
    folder.write(out, arrays, lambda: {**_describe(indexed, splits), **about})
    return _open_prepared(out, say)


def check_partitions(options: PrepareOptions, memory_limit: int | None, engine: Engine | None) -> None:
    """Raise InputError if partitions cannot be used with these options, or the limit is too small."""
    if engine is not None:
        partitioned.check_options(options, "--engine ray")
    elif memory_limit is not None:
        partitioned.check_options(options, "--memory-limit")
        if memory_limit < LEAST_MEMORY:
            raise InputError(f"--memory-limit must be at least {LEAST_MEMORY >> 20}MB; got {memory_limit >> 20}MB.")


def _prepare_partitions(
    tables: list[Source],
    out: Path,
    options: PrepareOptions,
    say: Say,
    on_read: OnRead | None,
    memory_limit: int | None,
    engine: Engine | None,
) -> Dataset:
    """Prepare the log in partitions, with files next to `out` or on a cluster."""
    shop = common_shop([table.path for table in tables])
    with folder.publish(out) as target:
        work = target / "partitions"
        part_bytes = (max(LEAST_MEMORY, memory_limit or 0) - BASE_MEMORY) // MEMORY_PER_BYTE
        preparation = PartitionedPreparation(engine or FileEngine(work, part_bytes), options, say)
        meta = preparation.write(tables, target, on_read, warn=shop is None)
        shutil.rmtree(work, ignore_errors=True)
        folder.write_meta(target, meta | ({} if shop is None else {"shop": shop}), meta.pop("arrays"))
    return _open_prepared(out, say)


def _open_prepared(out: Path, say: Say) -> Dataset:
    """Open the dataset, and warn about splits without events, which lists without picks can leave."""
    dataset = Dataset.open(out)
    for name, command in NEEDS_EVENTS.items():
        if not dataset.split(name).events:
            missing = f"the {name} split contains no picks, which {command} needs"
            say(f"Warning: {missing}; add data or choose another --split.")
    return dataset


def _describe(indexed: IndexedEvents, splits: dict[str, list[int]]) -> dict[str, Any]:
    events, items, edges = indexed.events, len(indexed.item_ids), indexed.events.offsets
    sizes = {name: (last - first, int(edges[last] - edges[first])) for name, (first, last) in splits.items()}
    return {
        "offrec_version": version("offrec"),
        "counts": {"sessions": len(events), "events": events.total, "items": items},
        "behaviours": list(indexed.behaviour_names),
        "splits": splits,
        "item_id_type": "int" if isinstance(indexed.item_ids, np.ndarray) else "string",
        "statistics": Statistics(indexed.behaviour_names, items).add(events).as_json(sizes),
    }


def _read_log(tables: list[Source], options: PrepareOptions, say: Say, on_read: OnRead | None, *, warn: bool) -> Log:
    """Read the log; `warn`: print warnings about columns that are not read."""
    record = FORMATS[options.format]
    if record.read_whole is not None:
        log = record.read_whole(tables, options.columns, say)
    else:
        assert record.read is not None
        builder = LogBuilder(say, keep_owner_ids=options.split == "hash")
        positions = dict[Path, int]()
        total = sum({table.path: table.size for table in tables}.values())
        tasks = record.read(tables, options.columns, say if warn else lambda line: None)
        for batch in _check_batches(tasks, BatchChecker(record.behaviours, options.behaviours)):
            builder.add(batch)
            if on_read is not None and isinstance(batch, CheckedBatch):
                positions[batch.source.path] = batch.position
                on_read(sum(positions.values()), total)
        log = builder.finish(tables)
        for name, rows in log.rows.items():
            say(f"{name}: {rows:,} rows")
    lists = "" if log.lists is None else f" and {len(log.lists.row):,} lists"
    events = np.count_nonzero(log.items >= 0)
    say(f"read {events:,} events{lists} of {len(log.item_ids):,} items; {_describe_times(log)}")
    return log


def _check_batches(tasks: Iterator[ReadTask], checker: BatchChecker) -> Iterator[CheckedBatch | BadRows]:
    """Yield the checked batches in the order of the tasks; threads read and check them concurrently."""
    for task in tasks:  # the first batch decides whether times are numbers
        first = checker.check(task)
        yield first
        if isinstance(first, CheckedBatch):
            if "time" in first.columns:
                checker = replace(checker, numeric_times=first.columns["time"].dtype.is_numeric())
            break
    pending: deque[Future[CheckedBatch | BadRows]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for task in tasks:
            pending.append(pool.submit(checker.check, task))
            if len(pending) > 2 * WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _describe_times(log: Log) -> str:
    if log.times is None or log.time_unit is None:
        return "no times, so events are ordered by " + ("position" if log.positions is not None else "their rows")
    bounds = (int(time) // TICKS_PER_SECOND[log.time_unit] for time in (log.times.min(), log.times.max()))
    first, last = (np.datetime64(seconds, "s") for seconds in bounds)
    return f"times read as {log.time_format}, {first} to {last} UTC"


def _make_sessions(log: Log, protocol: Protocol, say: Say, *, drop_unknown_items: bool) -> tuple[Events, Steps]:
    """Cut, filter and sample sessions; return them and the counts after each step."""
    events = sessions.order_events(log)
    if protocol.sessions == "gap" and log.time_unit:
        events = sessions.cut_by_gap(events, protocol.gap_minutes * 60 * TICKS_PER_SECOND[log.time_unit])
    steps: Steps = []

    def record(step: str, result: Events) -> Events:
        if not len(result):
            raise InputError(f"{step} removes all of the {events.describe_size()}; relax the filters.")
        steps.append({"step": step, "sessions": len(result), "events": int(result.event_counts.sum())})
        say(f"{step}: {result.describe_size()}")
        return result

    record("read", events)
    if protocol.sample_first is not None:
        drawn = sessions.sample(events, protocol.sample_first, protocol.split_seed, stream=2)
        events = record(f"sample {protocol.sample_first} first", drawn)
    if drop_unknown_items:
        known = item_indices.drop_unknown_items(events, len(log.item_ids))
        events = record("drop items outside the catalogue", known)
    for name in protocol.behaviours_dropped:
        events = record(f"drop {name}", sessions.drop_behaviour(events, name, log.behaviour_names))
    for text in protocol.filters:
        events = record(f"filter {text}", sessions.apply_filter(events, text, log.behaviour_names))
    if protocol.sample is not None:
        events = record(f"sample {protocol.sample}", sessions.sample(events, protocol.sample, protocol.split_seed))
    return events, steps


def _index_items(events: Events, log: Log, n_training: int, *, keep_all_items: bool) -> tuple[IndexedEvents, Arrays]:
    """Number the remaining items consecutively; return the events and all arrays of the dataset."""
    names, keep_from = log.behaviour_names, 0 if keep_all_items else len(log.item_ids) - log.unseen_items
    if log.lists is None:
        indexed, _ = item_indices.compact(events, log.item_ids, names, keep_from=keep_from)
        return indexed, _event_arrays(indexed, log.time_unit)
    events, raw = decisions.separate_lists(events, log.lists, n_training)
    indexed, offered = item_indices.compact(events, log.item_ids, names, raw.items, keep_from=keep_from)
    decision_arrays = {f"decision_{name}": array for name, array in (vars(raw) | {"items": offered}).items()}
    return indexed, _event_arrays(indexed, log.time_unit) | decision_arrays


def _event_arrays(indexed: IndexedEvents, unit: TimeUnit | None) -> Arrays:
    events, item_ids = indexed.events, indexed.item_ids
    arrays: Arrays = {"items": events.items, "behaviours": events.behaviours, "offsets": events.offsets}
    if events.times is not None and unit is not None:
        arrays["times"] = to_milliseconds(events.times, TICKS_PER_SECOND[unit])
    if events.rewards is not None:
        arrays["rewards"] = events.rewards
    return arrays | encode_ids(item_ids)
