"""Where a log comes from, if it comes from a simulated shop: that stands in the Parquet file's own metadata."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHOP_KEY = "offrec.shop"


def read_shop(path: str | Path) -> dict[str, Any] | None:
    """The shop that wrote this table, or the log in this folder. None where it comes from no shop."""
    path = Path(path)
    path = path / "events.parquet" if path.is_dir() else path
    if path.suffix != ".parquet" or not path.is_file():
        return None
    import polars as pl  # imported where used: roll-outs must run where there is none

    try:
        found = pl.read_parquet_metadata(path).get(SHOP_KEY)
    except pl.exceptions.PolarsError:
        return None  # whoever reads the table says what is wrong with it
    return None if found is None else dict(json.loads(found))


def common_shop(paths: Iterable[str | Path]) -> dict[str, Any] | None:
    """The shop that wrote all of these tables, if one did."""
    shops = [read_shop(path) for path in paths]
    return shops[0] if shops and all(shop == shops[0] for shop in shops) else None
