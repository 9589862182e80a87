"""Helpers for small logs: write them, prepare them, and read datasets back as plain Python values."""

import io
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offrec.data.dataset import Dataset
from offrec.errors import InputError

Session = list[tuple[Any, str]]
Prepare = Callable[..., Dataset]
StoredDecision = tuple[
    int, list[Any], float, tuple[Any, str] | None
]  # position, list, propensity, (item, behaviour) of the pick


def sessions_of(dataset: Dataset, split: str | None = None) -> list[Session]:
    """Return the stored sessions as lists of (item id, behaviour)."""
    sessions = dataset.sessions if split is None else dataset.split(split)  # type: ignore[arg-type]
    return [
        [
            (dataset.vocabulary.id(sessions.items[event]), dataset.behaviours[sessions.behaviours[event]])
            for event in range(begin, end)
        ]
        for begin, end in zip(sessions.offsets[:-1], sessions.offsets[1:], strict=True)
    ]


def items_of(dataset: Dataset, split: str | None = None) -> list[list[Any]]:
    """Return the item ids of the stored sessions."""
    return [[item for item, _ in session] for session in sessions_of(dataset, split)]


def stored_decisions(dataset: Dataset) -> list[list[StoredDecision]]:
    """Return the decisions of each session, with item ids."""
    decisions = dataset.decisions
    assert decisions is not None
    name, events = dataset.vocabulary.id, dataset.sessions

    def decision(index: int) -> StoredDecision:
        event = int(decisions.event[index])
        pick = None if event < 0 else (name(events.items[event]), dataset.behaviours[events.behaviours[event]])
        items = [name(item) for item in decisions.items[index] if item < dataset.n_items]
        return int(decisions.positions[index]), items, round(math.exp(decisions.log_propensity[index]), 9), pick

    edges = decisions.offsets.tolist()
    return [[decision(index) for index in range(begin, end)] for begin, end in pairwise(edges)]


def write_sources(folder: Path, sources: Sequence[tuple[str, str | bytes] | Path]) -> list[Path]:
    """Write (name, content) pairs to files and return all paths."""
    paths = []
    for source in sources:
        if isinstance(source, Path):
            paths.append(source)
        else:
            name, content = source
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
            paths.append(folder / name)
    return paths


def parquet(frame: pl.DataFrame) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def error_message(prepare_log: Prepare, source: tuple[str, str | bytes], **choices: Any) -> str:
    """Prepare a log that must be refused and return the message, which is one sentence."""
    with pytest.raises(InputError) as caught:
        prepare_log(source, **choices)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message
