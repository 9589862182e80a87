"""The simulated shop: ground truth for cumulative reward."""

from offrec.data.shop_metadata import read_shop
from offrec.shop.log import write_log
from offrec.shop.rollout import Mean, Rollout, paired
from offrec.shop.store import INSIDE, Shop
from offrec.shop.worlds import WORLDS, World, world_of

__all__ = ["INSIDE", "WORLDS", "Mean", "Rollout", "Shop", "World", "paired", "read_shop", "world_of", "write_log"]
