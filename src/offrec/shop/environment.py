"""The shop as a Gymnasium environment, with one visitor at a time.

No other module of the shop imports this one, because it needs gymnasium.
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
    """A simulated shop for RL libraries.

    An action is a list of k items, or a single item if k = 1; repeated items are offered once. An observation contains
    the last picks, most recent first, padded with A. The reward is that of the pick, or 0. An episode terminates when
    the visitor leaves, or after `max_steps` of the shop, and is never truncated.

    Args:
        shop: A shop, or the name of a world.
        seed: The seed of the shop, if `shop` is a name.
        history: The number of picks in an observation.

    Example:
        >>> import offrec.shop.environment
        >>> gymnasium.make("offrec/Shop-v0", shop="demo", seed=0)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, gymnasium's own form

    def __init__(self, shop: Shop | str = "demo", seed: int = 0, history: int = 10) -> None:
        self.shop = Shop.open(shop, seed) if isinstance(shop, str) else shop
        self.history = history
        items, k = self.shop.world.items, self.shop.world.k
        self.observation_space = spaces.MultiDiscrete([items + 1] * history)
        self.action_space = spaces.Discrete(items) if k == 1 else spaces.MultiDiscrete([items] * k)
        self.visitors: Visitors | None = None
        self.recent, self.steps = np.full(history, items), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.visitors = self.shop.dynamics.arrive(1, int(self.np_random.integers(2**31)))
        self.recent, self.steps = np.full(self.history, self.shop.world.items), 0
        return self.recent.copy(), {}

    @torch.no_grad()
    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        if self.visitors is None:
            raise gymnasium.error.ResetNeeded("The episode has ended or not begun; call reset first.")
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"{action!r} is not a list of {self.shop.world.k} items of this shop.")
        dynamics = self.shop.dynamics
        offered = torch.as_tensor(np.atleast_1d(action), device=dynamics.device)[None].long()
        is_repeated = (offered[:, :, None] == offered[:, None, :]).tril(-1).any(-1)
        offered = offered.masked_fill(is_repeated, self.shop.world.items)
        uniforms = torch.as_tensor(self.np_random.random((3, 1))).to(dynamics.items.worth)
        result = dynamics.step(self.visitors, offered, uniforms)
        self.steps += 1
        item, leaves = int(result.item), bool(result.leaves) or self.steps == self.shop.max_steps
        if item < self.shop.world.items:
            self.recent = np.concatenate([[item], self.recent[:-1]])
        self.visitors = None if leaves else result.visitors
        behaviour = (*BEHAVIOURS, "none")[int(result.behaviour)]
        return self.recent.copy(), float(result.reward), leaves, False, {"behaviour": behaviour}


gymnasium.register("offrec/Shop-v0", entry_point="offrec.shop.environment:ShopEnvironment")
