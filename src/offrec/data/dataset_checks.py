"""Check the content of a dataset folder: the structure of dataset.json, and types, shapes and ranges of the arrays.

The checksums detect accidents. These checks also protect against a folder that somebody changed on purpose: no array
that passes them makes offrec read outside an array or allocate more memory than the folder has bytes.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from offrec.data.arrays import DESCRIPTION, Array, Arrays, read_blocks
from offrec.data.folder import hash_data
from offrec.data.item_properties import PROPERTIES, decode_properties
from offrec.data.protocol import Protocol, fingerprint
from offrec.data.schema import Anything, Flag, ListOf, Maybe, Number, OneOf, Table, Text, Whole
from offrec.data.shop_metadata import SHOP
from offrec.data.vocabulary import check_item_ids

SPLITS = ("train", "validation", "test")
MAX_ITEMS = 2**31 - 2  # items and the index of padding are int32
MAX_BEHAVIOURS = 256
MAX_REWARD = 1e9  # larger rewards are usually errors of the log, and one of them would dominate every mean
ROUNDING = 1e-4  # a log probability is a float32 sum, so it can be slightly above 0
CHUNK = 1 << 20  # rows per step of a check, which bounds its memory

PROTOCOL = Table(
    {
        "format": Text(),
        "sessions": OneOf(("column", "user", "gap")),
        "gap_minutes": Number(0.0),
        "behaviours_dropped": ListOf(Text()),
        "filters": ListOf(Text()),
        "sample": Maybe(Whole()),
        "split": OneOf(("random", "time", "hash")),
        "split_seed": Whole(),
        "split_parts": ListOf(Number(0.0), 3, 3),
        "score_first": Flag(),
        "unseen": OneOf(("keep", "drop")),
        "score_last": Maybe(Whole(1)),
    },
    {"sample_first": Whole(1)},
)
COUNTS = Table({"sessions": Whole(1), "events": Whole(), "items": Whole(1, MAX_ITEMS)})
META = Table(
    {
        "format_version": Whole(),
        "counts": COUNTS,
        "behaviours": ListOf(Text(), 0, MAX_BEHAVIOURS),
        "splits": Table({name: ListOf(Whole(), 2, 2) for name in SPLITS}),
        "item_id_type": OneOf(("int", "string")),
        "protocol": PROTOCOL,
        "data_hash": Text("[0-9a-f]{64}"),
        "fingerprint": Text("[0-9a-f]{12}"),
        "arrays": Table(dict.fromkeys(("items", "behaviours", "offsets", "item_ids"), DESCRIPTION), {}, DESCRIPTION),
    },
    {
        "decisions": Table({"count": Whole(), "k": Whole(1, MAX_ITEMS)}, {"notes": ListOf(Text())}, Anything()),
        "shop": SHOP,
        "item_properties": PROPERTIES,
    },
    Anything(),
)


def find_problem(meta: Mapping[str, Any], arrays: Arrays) -> str | None:
    """Return what is wrong with a dataset whose dataset.json has the structure META, or None."""
    try:
        _check_hashes(meta)
        _check_events(meta, arrays)
        check_item_ids(arrays, meta["item_id_type"], meta["counts"]["items"])
        if "decisions" in meta:
            _check_decisions(meta, arrays)
        if "item_properties" in meta:
            decode_properties(meta["item_properties"], arrays, meta["counts"]["items"])
    except ValueError as error:
        return str(error)
    return None


def _check_hashes(meta: Mapping[str, Any]) -> None:
    data_hash = hash_data(meta["arrays"], meta)
    _require(meta["data_hash"] == data_hash, f"data_hash in dataset.json is not {data_hash}, that of its arrays")
    expected = fingerprint(data_hash, Protocol.from_json(meta["protocol"]))
    _require(meta["fingerprint"] == expected, f"fingerprint in dataset.json is not {expected}, that of its content")


def _check_events(meta: Mapping[str, Any], arrays: Arrays) -> None:
    counts, names = meta["counts"], meta["behaviours"]
    sessions, events = counts["sessions"], counts["events"]
    _check_shape(arrays, "items", "int32", [events])
    _check_shape(arrays, "behaviours", "uint8", [events])
    _check_shape(arrays, "offsets", "int64", [sessions + 1])
    if "times" in arrays:
        _check_shape(arrays, "times", "int64", [events])
    if "rewards" in arrays:
        _check_shape(arrays, "rewards", "float32", [events])
        blocks = read_blocks(arrays["rewards"])
        is_valid = all(bool((np.abs(block[~np.isnan(block)]) <= MAX_REWARD).all()) for block in blocks)
        _require(is_valid, f"rewards.npy contains a number outside {-MAX_REWARD:g} … {MAX_REWARD:g}")
    _check_ascending(arrays["offsets"], "offsets", events)
    _check_range(arrays["items"], "items", 0, counts["items"])
    _check_range(arrays["behaviours"], "behaviours", 0, len(names))
    _require(len(set(names)) == len(names), "behaviours in dataset.json contains a name twice")
    splits = [meta["splits"][name] for name in SPLITS]
    edges = list(chain.from_iterable(sorted([first, last] for first, last in splits if first != last)))
    is_valid = edges == sorted(edges) and all(first <= last <= sessions for first, last in splits)
    _require(is_valid, f"splits in dataset.json must be disjoint ranges within 0 … {sessions:,}")


def _check_decisions(meta: Mapping[str, Any], arrays: Arrays) -> None:
    count, k, items = meta["decisions"]["count"], meta["decisions"]["k"], meta["counts"]["items"]
    _check_shape(arrays, "decision_offsets", "int64", [meta["counts"]["sessions"] + 1])
    _check_shape(arrays, "decision_positions", "int32", [count])
    _check_shape(arrays, "decision_items", "int32", [count, k])
    _check_shape(arrays, "decision_log_propensity", "float64", [count])
    _check_shape(arrays, "decision_event", "int64", [count])
    offsets = arrays["decision_offsets"]
    _check_ascending(offsets, "decision_offsets", count)
    propensity = arrays["decision_log_propensity"]
    _require(
        bool(np.isfinite(propensity).all() and (propensity <= ROUNDING).all()),
        "decision_log_propensity must contain logarithms of probabilities above 0 and at most 1",
    )
    _check_range(arrays["decision_items"], "decision_items", 0, items + 1)
    session = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    for first in range(0, count, CHUNK):
        _check_lists(arrays["decision_items"][first : first + CHUNK], items)
        _check_picks(arrays, session[first : first + CHUNK], slice(first, first + CHUNK))


def _check_lists(lists: Array, items: int) -> None:
    _require(bool((lists[:, 0] < items).all()), "decision_items contains an empty list")
    _require(bool((np.diff((lists == items).astype(np.int8)) >= 0).all()), "decision_items must be padded on the right")
    ordered = np.sort(lists, 1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < items)
    _require(not repeated.any(), "decision_items contains a list with a repeated item")


def _check_picks(arrays: Arrays, session: Array, rows: slice) -> None:
    first, after = arrays["offsets"][session], arrays["offsets"][session + 1]
    positions, event = arrays["decision_positions"][rows], arrays["decision_event"][rows]
    inside = (positions >= 0) & (positions <= after - first)
    _require(bool(inside.all()), "decision_positions contains a position outside its session")
    picked = event >= 0
    inside = (event == -1) | ((event >= first) & (event < after))
    _require(bool(inside.all()), "decision_event contains an event outside its session")
    items = arrays["items"][event[picked]]
    offered = (arrays["decision_items"][rows][picked] == items[:, None]).any(1)
    _require(bool(offered.all()), "decision_event contains a pick of an item that the list does not contain")


def _check_shape(arrays: Arrays, name: str, dtype: str, shape: list[int]) -> None:
    _require(name in arrays, f"arrays in dataset.json lacks {name}")
    array = arrays[name]
    _require(
        array.dtype.name == dtype and list(array.shape) == shape,
        f"{name}.npy contains {array.dtype.name} {list(array.shape)}, but dataset.json implies {dtype} {shape}",
    )


def _check_ascending(offsets: Array, name: str, last: int) -> None:
    ascends = offsets[0] == 0 and offsets[-1] == last and bool((offsets[1:] >= offsets[:-1]).all())
    _require(bool(ascends), f"{name}.npy must ascend from 0 to {last:,}")


def _check_range(array: Array, name: str, first: int, stop: int) -> None:
    if array.size:
        bounds = [(int(block.min()), int(block.max())) for block in read_blocks(array)]
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        _require(
            first <= low and high < stop,
            f"{name}.npy contains {low if low < first else high:,}, not in 0 … {stop - 1:,}",
        )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
