"""`offrec prepare`: a raw log in, a dataset folder out."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data import catalogue_alignment, decisions, folder, options, sessions, sources, statistics
from offrec.data.bad_rows import BadRows
from offrec.data.dataset import FORMAT_VERSION, Dataset
from offrec.data.formats import FORMATS
from offrec.data.log import TICKS, Checked, Log, LogBuilder, Reader, TimeUnit
from offrec.data.options import PrepareOptions
from offrec.data.protocol import Protocol, fingerprint
from offrec.data.sessions import Catalogue, Events
from offrec.data.shop_metadata import common_shop
from offrec.data.tables import ReadTask
from offrec.data.threads import WORKERS, run_concurrently
from offrec.data.vocabulary import read_catalogue
from offrec.errors import InputError
from offrec.types import Longs

__all__ = ["PrepareOptions", "prepare"]
Say = Callable[[str], None]
Steps = list[dict[str, Any]]


def prepare(
    source: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    chosen: PrepareOptions | None = None,
    force: bool = False,
    progress: Say | None = None,
    **choices: Any,
) -> Dataset:
    """Read the sources (files or globs) and write the dataset `out`; `progress` gets a line about each step.

    Options are given as `PrepareOptions`, or by name: `prepare("log.csv", out="data", filter=("item=3",))`.
    """
    if chosen is not None and choices:
        raise InputError(f"Options came both as `chosen` and by name ({', '.join(choices)}); give all of them one way.")
    chosen = chosen or options.from_choices(choices)
    say = progress or (lambda line: None)
    out = Path(out)
    options.check(chosen)
    folder.check_free(out, force)
    found = FORMATS[chosen.format].find([source] if isinstance(source, str | Path) else source)
    known = None if chosen.catalogue is None else read_catalogue(Path(chosen.catalogue))
    log = _read(found, chosen, say)
    if known is not None:
        log = catalogue_alignment.align_items(log, known, Path(str(chosen.catalogue)))
    protocol = options.protocol(chosen, log)
    events, steps = _sessions(log, protocol, say, outside=known is not None)
    events, splits = sessions.split(events, protocol.split, protocol.split_seed, protocol.split_parts)
    catalogue, arrays = _catalogue(events.gathered(), log, splits["train"][1], whole=known is not None)
    say(f"writing {out}")
    folder.check_free(out, force)
    about = {"protocol": protocol.as_json(), "time_unit": log.times_as, "sources": log.rows, "steps": steps}
    if log.lists is not None:
        about["decisions"] = decisions.describe(catalogue.events, arrays, [*log.notes, *decisions.notes(steps)])
    if (shop := common_shop(one.path for one in found)) is not None:
        about["shop"] = shop
    folder.write(out, arrays, lambda: {**_describe(catalogue, splits, arrays, protocol), **about})
    return Dataset.open(out)


def _describe(
    catalogue: Catalogue, splits: dict[str, list[int]], arrays: folder.Arrays, protocol: Protocol
) -> dict[str, Any]:
    events, items = catalogue.events, len(catalogue.item_ids)
    spelled = {
        "behaviours": list(catalogue.behaviour_names),
        "splits": splits,
        "item_ids": "int" if isinstance(catalogue.item_ids, np.ndarray) else "string",
    }
    data_hash, described = run_concurrently(
        lambda: folder.digest(arrays, spelled),
        lambda: statistics.describe(events, splits, catalogue.behaviour_names, items),
    )
    return {
        "format_version": FORMAT_VERSION,
        "offrec": version("offrec"),
        "fingerprint": fingerprint(data_hash, protocol),
        "data_hash": data_hash,
        "counts": {"sessions": len(events), "events": events.total, "items": items},
        **spelled,
        "statistics": described,
    }


def _read(found: list[sources.Source], chosen: PrepareOptions, say: Say) -> Log:
    kind = FORMATS[chosen.format]
    if kind.read_whole is not None:
        log = kind.read_whole(found, chosen.columns, say)
    else:
        assert kind.read is not None
        builder = LogBuilder(say)
        for checked in _checked(kind.read(found, chosen.columns), Reader(kind.behaviours, chosen.behaviours)):
            builder.add(checked)
        log = builder.finish(found)
        for name, rows in log.rows.items():
            say(f"{name}: {rows:,} rows")
    lists = "" if log.lists is None else f" and {len(log.lists.row):,} lists"
    say(f"read {np.count_nonzero(log.items >= 0):,} events{lists} of {len(log.item_ids):,} items; {_times(log)}")
    return log


def _checked(tasks: Iterator[ReadTask], reader: Reader) -> Iterator[Checked | BadRows]:
    """What the tasks give, in their order, while others are parsed and checked in threads."""
    for task in tasks:
        first = reader.check(task)
        yield first
        if isinstance(first, Checked):
            if "time" in first.columns:
                reader = replace(reader, numeric_times=first.columns["time"].dtype.is_numeric())
            break
    pending: deque[Future[Checked | BadRows]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for task in tasks:
            pending.append(pool.submit(reader.check, task))
            if len(pending) > 2 * WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _times(log: Log) -> str:
    if log.times is None or log.time_unit is None:
        return "no times, so ordered by " + ("position" if log.positions is not None else "the file")
    bounds = (int(time) // TICKS[log.time_unit] for time in (log.times.min(), log.times.max()))
    first, last = (np.datetime64(seconds, "s") for seconds in bounds)
    return f"times read as {log.times_as}, {first} to {last} UTC"


def _sessions(log: Log, protocol: Protocol, say: Say, *, outside: bool) -> tuple[Events, Steps]:
    """The log's sessions after each step of the protocol, and what each step left. `outside`: there may be items that
    the catalogue does not know.
    """
    events = sessions.arrange(log)
    if protocol.sessions == "gap" and log.time_unit:
        events = sessions.cut_by_gap(events, protocol.gap_minutes * 60 * TICKS[log.time_unit])
    steps: Steps = []

    def after(step: str, left: Events) -> Events:
        if not len(left):
            raise InputError(f"{step} leaves nothing of {events.size()}; loosen the filters.")
        steps.append({"step": step, "sessions": len(left), "events": int(left.picks.sum())})
        say(f"{step}: {left.size()}")
        return left

    after("read", events)
    if outside:
        events = after(
            "drop items outside the catalogue", catalogue_alignment.drop_unknown_items(events, len(log.item_ids))
        )
    for name in protocol.behaviours_dropped:
        events = after(f"drop {name}", sessions.drop_behaviour(events, name, log.behaviour_names))
    for text in protocol.filters:
        events = after(f"filter {text}", sessions.apply_filter(events, text, log.behaviour_names))
    if protocol.sample is not None:
        events = after(f"sample {protocol.sample}", sessions.sample(events, protocol.sample, protocol.split_seed))
    return events, steps


def _catalogue(events: Events, log: Log, training: int, *, whole: bool) -> tuple[Catalogue, folder.Arrays]:
    """What is left of the log, and all of it as arrays."""
    if log.lists is None:
        catalogue, _ = sessions.compact(events, log.item_ids, log.behaviour_names, whole=whole)
        return catalogue, _arrays(catalogue, log.time_unit)
    events, decided = decisions.part(events, log.lists, training)
    catalogue, offered = sessions.compact(events, log.item_ids, log.behaviour_names, decided.items, whole=whole)
    found = {f"decision_{name}": array for name, array in (vars(decided) | {"items": offered}).items()}
    return catalogue, _arrays(catalogue, log.time_unit) | found


def _arrays(catalogue: Catalogue, unit: TimeUnit | None) -> folder.Arrays:
    events, item_ids = catalogue.events, catalogue.item_ids
    arrays: folder.Arrays = {"items": events.items, "behaviours": events.behaviours, "offsets": events.offsets}
    if events.times is not None and unit is not None:
        arrays["times"] = _milliseconds(events.times, TICKS[unit])
    if isinstance(item_ids, np.ndarray):
        arrays["item_ids"] = item_ids
    else:
        encoded = [name.encode() for name in item_ids]
        arrays["item_ids"] = np.frombuffer(b"".join(encoded), np.uint8)
        arrays["item_ids_offsets"] = sessions.offsets([len(name) for name in encoded])
    return arrays


def _milliseconds(times: Longs, ticks: int) -> Longs:
    where = times if times.flags.writeable else None  # in place, as nothing else reads them any more
    return np.multiply(times, 1000 // ticks, where) if ticks <= 1000 else np.floor_divide(times, ticks // 1000, where)
