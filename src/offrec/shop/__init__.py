"""The simulated shop: ground truth for cumulative reward."""

from offrec.data.shop_metadata import read_shop
from offrec.shop.log import write_log
from offrec.shop.rollout import Mean, Rollout, paired_difference
from offrec.shop.store import SHOP_POLICIES, Shop
from offrec.shop.worlds import WORLDS, World, get_world

__all__ = [
    "SHOP_POLICIES",
    "WORLDS",
    "Mean",
    "Rollout",
    "Shop",
    "World",
    "get_world",
    "paired_difference",
    "read_shop",
    "write_log",
]
