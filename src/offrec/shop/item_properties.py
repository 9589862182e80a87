"""What a shop's catalogue says about its items: a title, the category and a noisy taste vector.

Quality, attractiveness and worth are not part of it: a shop does not know them.
"""

import numpy as np
import torch

from offrec.data.item_properties import CategoryColumn, ItemProperties, VectorColumn
from offrec.shop.items import Items, unit
from offrec.shop.randomness import Purpose, generator

NOISE = 0.5  # length of the noise, relative to the taste vector


def observable_properties(items: Items, seed: int) -> ItemProperties:
    """Return the observable properties of all items of a shop.

    Args:
        items: The items.
        seed: The seed of the shop.
    """
    taste, category = items.taste[:-1].double().cpu(), items.category[:-1].cpu().numpy()
    noise = torch.randn(taste.shape, generator=generator(seed, Purpose.FEATURES), dtype=torch.double)
    observed = unit(taste + NOISE * noise / taste.shape[1] ** 0.5)
    names = category_names(len(items.centroid))
    titles = [f"{names[code]}, model {item}" for item, code in enumerate(category.tolist())]
    return ItemProperties(
        titles,
        (CategoryColumn("category", tuple(names)),),
        (category + 1).astype(np.int32)[:, None],
        (),
        np.zeros((items.n_items, 0), np.float32),
        (VectorColumn("taste", taste.shape[1]),),
        observed.float().numpy(),
    )


def category_names(count: int) -> list[str]:
    """Return the names of the categories, in the order of their numbers."""
    return [f"category {number:0{len(str(count - 1))}d}" for number in range(count)]
