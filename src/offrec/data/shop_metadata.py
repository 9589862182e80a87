"""The description of the simulated shop that wrote a log, stored in the metadata of its Parquet files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offrec.data.json_files import parse_json
from offrec.data.schema import Anything, Scalar, Table, Text, Whole

SHOP_KEY = "offrec.shop"
SHOP = Table(
    {"world": Text(), "seed": Whole(), "k": Whole(1, 1_000_000), "knobs": Table(others=Scalar())}, others=Anything()
)


def read_shop(path: str | Path) -> dict[str, Any] | None:
    """Return the description of the shop that wrote a table or a log folder, or None if no shop wrote it."""
    path = Path(path)
    path = path / "events.parquet" if path.is_dir() else path
    if path.suffix != ".parquet" or not path.is_file():
        return None
    import polars as pl  # imported here, because roll-outs must also work without polars

    try:
        text = pl.read_parquet_metadata(path).get(SHOP_KEY)
    except pl.exceptions.PolarsError:
        return None  # reading the table reports the error
    try:
        shop = None if text is None else parse_json(text)
    except ValueError:
        shop = None
    return shop if SHOP.problem(shop, "shop") is None else None


def common_shop(paths: Sequence[str | Path]) -> dict[str, Any] | None:
    """Return the description of the shop that wrote all of these tables, or None if no single shop wrote them.

    Several logs of one shop can have different visitors and policies; the description then omits what differs. It has
    `served` only if trained policies wrote all logs; `served` is empty if these policies differ.
    """
    shops = [shop for shop in map(read_shop, paths) if shop is not None]
    if (
        not shops
        or len(shops) < len(paths)
        or any(shop[key] != shops[0][key] for shop in shops for key in SHOP.required)
    ):
        return None
    common = {key: value for key, value in shops[0].items() if all(shop.get(key) == value for shop in shops)}
    if all("served" in shop for shop in shops):
        common.setdefault("served", {})
    return common
