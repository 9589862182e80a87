"""The items of a shop: their tastes, quality, attractiveness and popularity."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.shop.randomness import Purpose, generator
from offrec.shop.worlds import World

SPREAD = 0.5  # standard deviation of quality and attractiveness, apart from bait


@dataclass(frozen=True)
class Items:
    """The properties of all items. Row A of a table stands for "no item": taste and worth are 0, the category is C."""

    taste: Tensor  # [A + 1, d] unit vectors
    category: Tensor  # [A + 1] C for "no item"
    attractiveness: Tensor  # [A + 1]
    quality: Tensor  # [A + 1]
    worth: Tensor  # [A + 1] effect of a pick on satisfaction: quality − bait · max(0, attractiveness − quality)
    centroid: Tensor  # [C, d] unit vectors
    popularity: Tensor  # [A] sums to 1
    within: Tensor  # [A] popularity within the item's category
    category_popularity: Tensor  # [C]
    order: Tensor  # [A] items by category
    edge: Tensor  # [C + 1] the first position of each category in `order`
    cumulative: Tensor  # [A] cumulative popularity in this order

    @property
    def n_items(self) -> int:
        return len(self.popularity)


def make_items(world: World, seed: int, device: torch.device, dtype: torch.dtype) -> Items:
    """Generate the items of a shop, in double precision on the CPU, so that all devices and precisions agree."""
    random = generator(seed, Purpose.ITEMS)
    n, d = world.items, world.dimensions

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.double)

    centroid = unit(normal(world.categories, d))
    category = torch.arange(n) % world.categories
    category = category[torch.randperm(n, generator=random)]
    taste = unit(centroid[category] + world.category_spread * normal(n, d) / d**0.5)
    bait = torch.zeros(n, dtype=torch.bool)
    bait[torch.randperm(n, generator=random)[: round(world.bait_share * n)]] = True
    quality = SPREAD * normal(n) - world.poorness * bait
    attractiveness = SPREAD * normal(n) + world.lure * bait
    worth = quality - world.bait * (attractiveness - quality).clamp(min=0)
    appeal = attractiveness if world.popular_by == "attractiveness" else quality
    rank = (appeal + normal(n)).argsort(descending=True).argsort()  # attractive (or good) items tend to be popular
    if world.worth_spread is not None:
        worth = world.worth_spread * normal(n)
    popularity = (1.0 + rank.double()) ** -world.zipf
    popularity /= popularity.sum()
    order = category.argsort(stable=True)
    of_category = torch.zeros(world.categories, dtype=torch.double).index_add_(0, category, popularity)
    edge = torch.searchsorted(category[order], torch.arange(world.categories + 1))
    tables = (_padded(taste), attractiveness, quality, worth, centroid, popularity, popularity / of_category[category])
    taste, attractiveness, quality, worth, centroid, scaled_popularity, within = (
        table.to(device, dtype) for table in tables
    )
    return Items(
        taste=taste,
        category=_padded(category, world.categories).to(device),
        attractiveness=_padded(attractiveness),
        quality=_padded(quality),
        worth=_padded(worth),
        centroid=centroid,
        popularity=scaled_popularity,
        within=within,
        category_popularity=of_category.to(device, dtype),
        order=order.to(device),
        edge=edge.to(device),
        cumulative=popularity[order].cumsum(0).to(device),  # double precision distinguishes a million items
    )


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors to length 1."""
    return torch.nn.functional.normalize(vectors, dim=-1)


def _padded(table: Tensor, value: float = 0.0) -> Tensor:
    return torch.cat([table, table.new_full((1, *table.shape[1:]), value)])
