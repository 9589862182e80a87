"""The simulated shop: ground truth for cumulative reward."""

from offrec.shop.rollout import Rollout, paired
from offrec.shop.store import INSIDE, Shop
from offrec.shop.worlds import WORLDS, World, world_of

__all__ = ["INSIDE", "WORLDS", "Rollout", "Shop", "World", "paired", "world_of"]
