"""A keyed hash of session ids, which does not depend on the machine, the order of the log or the version of a library.

`prepare --split hash` assigns sessions to splits by it, and partitioned preparation assigns them to partitions.
"""

import hashlib
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
WORD = 8  # bytes that are hashed at once
LONG_ID = 256  # ids of more bytes are replaced by their SHA-256


def hash_ids(ids: pl.DataFrame, key: int) -> Hashes:
    """Hash each row of a table of ids.

    Args:
        ids: Columns of text without nulls.
        key: Selects the hash function.

    Returns:
        [N] the hashes.
    """
    state = np.full(ids.height, key % 2**64, np.uint64)
    state = _mix(state)
    for column in ids.get_columns():
        state = _add_text(state, _shorten(column))
    return state


def _shorten(column: pl.Series) -> pl.Series:
    is_long = column.str.len_bytes() > LONG_ID
    if not is_long.any():
        return column
    texts = [hashlib.sha256(text.encode()).hexdigest() if len(text.encode()) > LONG_ID else text for text in column]
    return pl.Series(column.name, texts, pl.String)


def _add_text(state: Hashes, column: pl.Series) -> Hashes:
    lengths = column.str.len_bytes().to_numpy()
    padded = (column + "\0" * WORD).cast(pl.Binary)
    state = _mix(state ^ lengths.astype(np.uint64))
    for first in range(0, int(lengths.max(initial=0)), WORD):
        continues = lengths > first
        words = padded.filter(pl.Series(continues)).bin.slice(first, WORD)
        state[continues] = _mix(state[continues] ^ words.bin.reinterpret(dtype=pl.UInt64).to_numpy())
    return state


def _mix(state: Any) -> Hashes:
    """Return the next outputs of SplitMix64 (Steele et al. 2014) for these states."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = state ^ (state >> np.uint64(31))
    return mixed


def hash_groups(ids: pl.DataFrame, key: int, parts: tuple[float, ...]) -> NDArray[np.uint8]:
    """Assign each row of a table of ids to a group: 0, 1, … with probabilities in proportion to `parts`."""
    share = (hash_ids(ids, key) >> np.uint64(11)) * 2.0**-53
    bounds = np.cumsum(parts)[:-1] / sum(parts)
    return np.searchsorted(bounds, share, side="right").astype(np.uint8)
