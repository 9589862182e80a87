"""RetailRocket's item_properties, with one row per change of a property: timestamp, itemid, property, value.

The latest value of each property is used. `categoryid` is a category and `available` a number. The names and values of
other properties are hashed: a value is a list of hashed words and numbers, where a number is written as n12.000. A
property whose values are single numbers becomes a number, any other property a category.
"""

import polars as pl

COLUMNS = ("timestamp", "itemid", "property", "value")
SMALLEST_SHARE = 0.2  # of the items that must have a property
MOST_PROPERTIES = 30  # the most frequent ones are used
NUMBER = r"^n-?\d+(\.\d+)?$"


def is_long_table(frame: pl.DataFrame) -> bool:
    """Return whether a table has the columns of item_properties."""
    return set(COLUMNS) <= set(frame.columns)


def widen(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table with one row per item and one column per property.

    Args:
        frame: Rows of item_properties.
    """
    text = {"itemid": pl.String, "property": pl.String, "value": pl.String}
    latest = (
        frame.select(COLUMNS)
        .cast(text)  # type: ignore[arg-type]
        .sort("timestamp", maintain_order=True)
        .unique(("itemid", "property"), keep="last", maintain_order=True)
    )
    items = latest["itemid"].n_unique()
    counts = latest.group_by("property").len().sort("len", "property", descending=[True, False])
    frequent = counts.filter(pl.col("len") >= SMALLEST_SHARE * items)["property"].to_list()[:MOST_PROPERTIES]
    wide = latest.select(pl.col("itemid").alias("item")).unique(maintain_order=True)
    for name in dict.fromkeys(("categoryid", "available", *frequent)):
        values = latest.filter(pl.col("property") == name).select(pl.col("itemid").alias("item"), "value")
        if len(values):
            wide = wide.join(values.select("item", _typed(name, values["value"])), on="item", how="left")
    return wide


def _typed(name: str, values: pl.Series) -> pl.Expr:
    """Return the value as a category or a number, named after the property."""
    value = pl.col("value")
    if name == "categoryid":
        return value.alias("category")
    if name == "available":
        return value.cast(pl.Float64, strict=False).alias(name)
    if values.str.contains(NUMBER).all():
        return value.str.strip_prefix("n").cast(pl.Float64, strict=False).alias(f"property {name}")
    return value.alias(f"property {name}")
