"""The simulated shop: ground truth for cumulative reward."""

from offrec.data.origin import shop_of
from offrec.shop.log import write_log
from offrec.shop.rollout import Mean, Rollout, paired
from offrec.shop.store import INSIDE, Shop
from offrec.shop.worlds import WORLDS, World, world_of

__all__ = ["INSIDE", "WORLDS", "Mean", "Rollout", "Shop", "World", "paired", "shop_of", "world_of", "write_log"]
