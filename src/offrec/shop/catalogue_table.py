"""What a shop's own catalogue says about its items: a title, the category and a noisy observation of the taste vector.

A shop does not know the quality, the attractiveness and the worth of its items, so they are not part of it.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offrec.shop.items import Items, unit
from offrec.shop.randomness import Purpose, generator

if TYPE_CHECKING:
    import polars as pl  # imported where it is used, because roll-outs must also work without polars

NOISE = 0.5  # expected length of the noise, relative to the taste vector


def observed_taste(items: Items, seed: int) -> Tensor:
    """Return noisy observations of the items' taste vectors, [A, d] unit vectors.

    Args:
        items: The items of a shop.
        seed: The seed of the shop. The noise has its own random stream.
    """
    taste = items.taste[:-1].double().cpu()
    noise = torch.randn(taste.shape, generator=generator(seed, Purpose.FEATURES), dtype=torch.double)
    return unit(taste + NOISE * noise / taste.shape[1] ** 0.5).float()


def item_table(items: Items, seed: int) -> "pl.DataFrame":
    """Return the table of all items: item, title, category and taste.

    Args:
        items: The items of a shop.
        seed: The seed of the shop.
    """
    import polars as pl

    digits = len(str(len(items.centroid) - 1))
    categories = [f"category {number:0{digits}d}" for number in items.category[:-1].tolist()]
    return pl.DataFrame(
        {
            "item": range(items.n_items),
            "title": [f"Item {item} of {category}" for item, category in enumerate(categories)],
            "category": categories,
            "taste": observed_taste(items, seed).numpy(),
        }
    )
