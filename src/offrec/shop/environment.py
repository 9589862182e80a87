"""The shop as a Gymnasium environment: one visitor at a time, the same dynamics.

The only file that needs gymnasium, so nothing else of the shop imports it.
"""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offrec.shop.store import Shop
from offrec.shop.visitors import BEHAVIOURS, Visitors

Observation = NDArray[np.int64]


class ShopEnvironment(gymnasium.Env[Observation, Any]):
    """An action is a list of k items (one item where k = 1); an observation the last picks, most recent first, with A
    where there are none yet. An item that stands twice on a list is offered once.

    The reward is that of the pick, 0 without one. The episode terminates when the visitor leaves; it is never cut off.

    `gymnasium.make("offrec/Shop-v0", shop="demo", seed=0)` once this module is imported.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, gymnasium's own form

    def __init__(self, shop: Shop | str = "demo", seed: int = 0, history: int = 10) -> None:
        self.shop = Shop.open(shop, seed) if isinstance(shop, str) else shop
        self.history = history
        items, k = self.shop.world.items, self.shop.world.k
        self.observation_space = spaces.MultiDiscrete([items + 1] * history)
        self.action_space = spaces.Discrete(items) if k == 1 else spaces.MultiDiscrete([items] * k)
        self.visitors: Visitors | None = None
        self.recent = np.full(history, items)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.visitors = self.shop.dynamics.arrive(1, int(self.np_random.integers(2**31)))
        self.recent = np.full(self.history, self.shop.world.items)
        return self.recent.copy(), {}

    @torch.no_grad()
    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        if self.visitors is None:
            raise gymnasium.error.ResetNeeded("Nobody is in the shop: call reset first.")
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"{action!r} is no list of this shop's items.")
        dynamics = self.shop.dynamics
        offered = torch.as_tensor(np.atleast_1d(action), device=dynamics.device)[None].long()
        twice = (offered[:, :, None] == offered[:, None, :]).tril(-1).any(-1)
        offered = offered.masked_fill(twice, self.shop.world.items)
        uniforms = torch.as_tensor(self.np_random.random((3, 1))).to(dynamics.items.worth)
        found = dynamics.step(self.visitors, offered, uniforms)
        item, leaves = int(found.item), bool(found.leaves)
        if item < self.shop.world.items:
            self.recent = np.concatenate([[item], self.recent[:-1]])
        self.visitors = None if leaves else found.visitors
        behaviour = (*BEHAVIOURS, "none")[int(found.behaviour)]
        return self.recent.copy(), float(found.reward), leaves, False, {"behaviour": behaviour}


gymnasium.register("offrec/Shop-v0", entry_point="offrec.shop.environment:ShopEnvironment")
