"""The description of the simulated shop that wrote a log, stored in the metadata of its Parquet files."""

from collections.abc import Iterable
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


def common_shop(paths: Iterable[str | Path]) -> dict[str, Any] | None:
    """Return the description of the shop that wrote all of these tables, or None if no single shop wrote them.

    Several logs of one shop can have different visitors and policies; the description then omits what differs.
    """
    shops = [read_shop(path) for path in paths]
    first = shops[0] if shops else None
    if first is None or any(shop is None or any(shop[key] != first[key] for key in SHOP.required) for shop in shops):
        return None
    return {key: value for key, value in first.items() if all(shop and shop.get(key) == value for shop in shops)}
