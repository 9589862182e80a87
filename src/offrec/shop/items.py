"""The catalogue of a shop: what its items are like, and how often the logging policy shows them by popularity."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.shop.randomness import Purpose, generator
from offrec.shop.worlds import World

OTHERS = 0.5  # standard deviation of quality and attractiveness among items of one kind


@dataclass(frozen=True)
class Items:
    """Row A of each table is the empty place: no taste, no worth, a category of its own."""

    taste: Tensor  # [A + 1, d] of length 1
    category: Tensor  # [A + 1]; C for the empty place
    attractiveness: Tensor  # [A + 1]
    quality: Tensor  # [A + 1]
    worth: Tensor  # [A + 1] what a pick does to satisfaction: quality − bait · max(0, attractiveness − quality)
    centroid: Tensor  # [C, d] of length 1
    popularity: Tensor  # [A] adds up to 1
    within: Tensor  # [A] popularity within the category
    category_popularity: Tensor  # [C]
    order: Tensor  # [A] items by category
    edge: Tensor  # [C + 1] where each category begins in `order`
    cumulative: Tensor  # [A] popularity added up in this order

    @property
    def n_items(self) -> int:
        return len(self.popularity)


def make_items(world: World, seed: int, device: torch.device, dtype: torch.dtype) -> Items:
    """Drawn in double precision on the CPU, so that every device and precision has the same items."""
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
    quality = OTHERS * normal(n) - world.poorness * bait
    attractiveness = OTHERS * normal(n) + world.lure * bait
    worth = quality - world.bait * (attractiveness - quality).clamp(min=0)
    liked = attractiveness if world.popular_by == "attractiveness" else quality
    rank = (liked + normal(n)).argsort(descending=True).argsort()  # attractive (or good) items tend to be popular
    if world.worth_spread is not None:
        worth = world.worth_spread * normal(n)
    popularity = (1.0 + rank.double()) ** -world.zipf
    popularity /= popularity.sum()
    order = category.argsort(stable=True)
    of_category = torch.zeros(world.categories, dtype=torch.double).index_add_(0, category, popularity)
    edge = torch.searchsorted(category[order], torch.arange(world.categories + 1))
    real = (_padded(taste), attractiveness, quality, worth, centroid, popularity, popularity / of_category[category])
    taste, attractiveness, quality, worth, centroid, chance, within = (table.to(device, dtype) for table in real)
    return Items(
        taste=taste,
        category=_padded(category, world.categories).to(device),
        attractiveness=_padded(attractiveness),
        quality=_padded(quality),
        worth=_padded(worth),
        centroid=centroid,
        popularity=chance,
        within=within,
        category_popularity=of_category.to(device, dtype),
        order=order.to(device),
        edge=edge.to(device),
        cumulative=popularity[order].cumsum(0).to(device),  # double: a million steps must stay apart
    )


def unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def _padded(table: Tensor, value: float = 0.0) -> Tensor:
    return torch.cat([table, table.new_full((1, *table.shape[1:]), value)])
