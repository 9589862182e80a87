"""Small logs, and datasets read back as plain sessions of the log's own ids."""

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
Told = tuple[int, list[Any], float, tuple[Any, str] | None]  # position, list, propensity, pick


def sessions_of(dataset: Dataset, split: str | None = None) -> list[Session]:
    """Each session as (item id, behaviour), in the order stored."""
    found = dataset.sessions if split is None else dataset.split(split)  # type: ignore[arg-type]
    return [
        [(dataset.vocabulary.id(found.items[e]), dataset.behaviours[found.behaviours[e]]) for e in range(begin, end)]
        for begin, end in zip(found.offsets[:-1], found.offsets[1:], strict=True)
    ]


def items_of(dataset: Dataset, split: str | None = None) -> list[list[Any]]:
    return [[item for item, _ in session] for session in sessions_of(dataset, split)]


def told(dataset: Dataset) -> list[list[Told]]:
    """Each session's decisions in the log's own ids."""
    found = dataset.decisions
    assert found is not None
    name, events = dataset.vocabulary.id, dataset.sessions

    def one(place: int) -> Told:
        event = int(found.event[place])
        pick = None if event < 0 else (name(events.items[event]), dataset.behaviours[events.behaviours[event]])
        items = [name(item) for item in found.items[place] if item < dataset.n_items]
        return int(found.positions[place]), items, round(math.exp(found.log_propensity[place]), 9), pick

    edges = found.offsets.tolist()
    return [[one(place) for place in range(begin, end)] for begin, end in pairwise(edges)]


def written(folder: Path, sources: Sequence[tuple[str, str | bytes] | Path]) -> list[Path]:
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
    packed = io.BytesIO()
    frame.write_parquet(packed)
    return packed.getvalue()


def refused(prepared: Prepare, source: tuple[str, str | bytes], **choices: Any) -> str:
    """The one sentence that comes instead of a dataset."""
    with pytest.raises(InputError) as caught:
        prepared(source, **choices)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence
