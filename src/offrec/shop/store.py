"""Shop: a world and a seed made into items and visitors that any policy can be played against."""

from dataclasses import asdict
from typing import Any, get_args

import torch
from torch import Tensor

from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop.informed import Informed
from offrec.shop.items import make_items
from offrec.shop.oracle import Oracle
from offrec.shop.players import Greedy, Logging, Play, Player, PolicyPlayer, Random
from offrec.shop.rollout import MAX_STEPS, Progress, Rollout, SessionTotals, run_sessions
from offrec.shop.solve import TabularPlayer, build_mdp
from offrec.shop.visitors import Dynamics, Step, Visitors
from offrec.shop.worlds import WORLDS, World, get_world

SHOP_POLICIES: dict[str, type[Player]] = {
    "logging": Logging,
    "greedy": Greedy,
    "oracle": Oracle,
    "random": Random,
    "informed": Informed,
}


class Shop:
    """`Shop.open("demo", seed=0).rollout("greedy", sessions=1000).reward.mean`"""

    def __init__(
        self,
        world: World,
        seed: int = 0,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if seed < 0:
            raise InputError(f"The seed is {seed}; it must be 0 or more.")
        self.world, self.seed = world, seed
        self.dynamics = Dynamics(world, make_items(world, seed, torch.device(device), dtype))

    @staticmethod
    def open(name: str, seed: int = 0, k: int | None = None, device: torch.device | str = "cpu") -> "Shop":
        """The world `name` from `WORLDS`, with lists of k items where k is given."""
        return Shop(get_world(name, k), seed, device=device)

    @staticmethod
    def from_meta(meta: dict[str, Any], device: torch.device | str = "cpu") -> "Shop":
        """The shop a log comes from, by what `read_shop` read in the log or stands in dataset.json under "shop"."""
        known = asdict(WORLDS["tiny"]).keys()
        knobs = meta.get("knobs", {})
        if knobs.keys() != known:
            raise InputError(
                f"The log's shop {meta.get('world')!r} was made by another version of offrec ({meta.get('version')}), "
                "whose worlds had other knobs; write the log again."
            )
        return Shop(World(**knobs), int(meta["seed"]), device=device)

    def as_json(self) -> dict[str, Any]:
        """What tells this shop from every other."""
        return {"world": self.world.name, "seed": self.seed, "k": self.world.k, "knobs": asdict(self.world)}

    def check_source_shop(self, meta: dict[str, Any] | None) -> None:
        """Refuse what was learned elsewhere; `meta` as in `from_meta`, None for a log that comes from no shop.

        Lists may have another length than in the log: the items and visitors are the same."""
        if meta is None:
            raise InputError("The log comes from no simulated shop, so what it would truly earn is not known.")
        if self.seed != meta.get("seed") or {**meta.get("knobs", {}), "k": self.world.k} != asdict(self.world):
            raise InputError(
                f"The log comes from the shop {meta.get('world')!r} with seed {meta.get('seed')}, this is "
                f"{self.world.name!r} with seed {self.seed}; a policy is played in the shop its log comes from."
            )

    def player(self, policy: "str | Policy | Player", play: Play = "topk") -> Player:
        """One of the shop's own policies by name, any `Policy`, or a player as it is."""
        if isinstance(policy, Player):
            return policy
        if play not in get_args(Play):
            raise InputError(f"A policy cannot be played by {play!r}; there are {', '.join(get_args(Play))}.")
        if isinstance(policy, Policy):
            if policy.source_shop is not None:
                self.check_source_shop(policy.source_shop)
            return PolicyPlayer(self.dynamics, policy, play)
        if policy == "oracle" and self.world.one_visitor:
            return TabularPlayer(self.dynamics, build_mdp(self.world, self.seed).optimal().policy, "oracle")
        if policy not in SHOP_POLICIES:
            raise InputError(f"The shop has no policy {policy!r}; its own are {', '.join(SHOP_POLICIES)}.")
        return SHOP_POLICIES[policy](self.dynamics)

    @torch.no_grad()
    def rollout(
        self,
        policy: "str | Policy | Player",
        sessions: int = 1000,
        play: Play = "topk",
        *,
        seed: int = 0,
        gamma: float = 1.0,
        max_steps: int = MAX_STEPS,
        progress: Progress | None = None,
    ) -> Rollout:
        """Sessions played to their end. Equal seeds: the same visitors with the same luck, whatever the policy.

        `play` says how a `Policy` makes its list: its best k, or k drawn from it without replacement. The shop's own
        policies play as they are. γ discounts `discounted` alone, once a list.
        """
        if sessions < 1:
            raise InputError(f"{sessions} sessions cannot be played; give at least 1.")
        if seed < 0:
            raise InputError(f"The visitors' seed is {seed}; it must be 0 or more.")
        if not 0 <= gamma <= 1:
            raise InputError(f"The discount is {gamma}; it must lie between 0 and 1.")
        player = self.player(policy, play)
        tally = SessionTotals(sessions, gamma, self.dynamics.device)

        def watch(rows: Tensor, number: int, lists: Tensor, visitors: Visitors, found: Step) -> None:
            tally.add(rows, number, found)

        left = run_sessions(self.dynamics, player, sessions, seed, max_steps, watch, progress)
        rewards, discounted, lengths, steps, bought = tally.arrays()
        return Rollout(
            world=self.world.name,
            shop_seed=self.seed,
            k=self.world.k,
            policy=player.name,
            play=player.play,
            seed=seed,
            gamma=gamma,
            rewards=rewards,
            discounted=discounted,
            lengths=lengths,
            steps=steps,
            bought=bought,
            cut=len(left) / sessions,
        )
