"""Shop: the items and visitors of a world and a seed, in which any policy can be simulated."""

from dataclasses import asdict
from typing import Any, get_args

import torch
from torch import Tensor

from offrec.data.schema import Maybe, Whole, schema_of
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop.informed import Informed
from offrec.shop.items import make_items
from offrec.shop.oracle import Oracle
from offrec.shop.players import Greedy, Logging, Play, Player, PolicyPlayer, Random
from offrec.shop.rollout import MAX_STEPS, Progress, Rollout, SessionTotals, Watch, run_sessions
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


SIZE = Whole(1, 10_000_000)
KNOBS = schema_of(
    World, items=SIZE, k=Whole(1, 10_000), dimensions=Whole(1, 4096), categories=SIZE, memory=Whole(0, 1000)
)
STEPS = Maybe(Whole(1, 1_000_000))
MAX_NUMBERS = 1 << 28  # of all items' taste vectors


class Shop:
    """A simulated shop.

    Args:
        world: The parameters of the shop.
        seed: The seed of its items.
        device: The device of the simulation.
        dtype: The precision of the items.
        max_steps: The number of lists after which every session ends; None if only the visitors end sessions.

    Example:
        >>> Shop.open("demo", seed=0).rollout("greedy", sessions=1000).reward.mean
    """

    def __init__(
        self,
        world: World,
        seed: int = 0,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_steps: int | None = None,
    ) -> None:
        if seed < 0:
            raise InputError(f"The seed of a shop must be at least 0; got {seed}.")
        if max_steps is not None and max_steps < 1:
            raise InputError(f"--steps must be at least 1; got {max_steps}.")
        self.world, self.seed, self.max_steps = world, seed, max_steps
        self.dynamics = Dynamics(world, make_items(world, seed, torch.device(device), dtype))

    @staticmethod
    def open(
        name: str,
        seed: int = 0,
        k: int | None = None,
        device: torch.device | str = "cpu",
        max_steps: int | None = None,
    ) -> "Shop":
        """Return the shop of a world.

        Args:
            name: The name of the world, see `WORLDS`.
            seed: The seed of the items.
            k: The length of lists; by default that of the world.
            device: Where to simulate.
            max_steps: The number of lists after which every session ends.
        """
        return Shop(get_world(name, k), seed, device=device, max_steps=max_steps)

    @staticmethod
    def from_meta(meta: dict[str, Any], device: torch.device | str = "cpu") -> "Shop":
        """Return the shop that wrote a log.

        Args:
            meta: The description from `read_shop`, or `shop` of a dataset.json.
            device: Where to simulate.
        """
        known = asdict(WORLDS["tiny"]).keys()
        knobs = meta.get("knobs", {})
        if knobs.keys() != known:
            raise InputError(
                f"The shop {meta.get('world')!r} of the log was written by another version of offrec "
                f"({meta.get('version')}), whose worlds have other parameters; write the log again."
            )
        problem = KNOBS.problem(knobs, "knobs") or STEPS.problem(meta.get("max_steps"), "max_steps")
        if problem is not None or knobs["items"] * knobs["dimensions"] > MAX_NUMBERS:
            raise InputError(
                f"The shop of the log is not possible ({problem or 'it has too many items'}); write the log again."
            )
        return Shop(World(**knobs), int(meta["seed"]), device=device, max_steps=meta.get("max_steps"))

    def as_json(self) -> dict[str, Any]:
        """Return the description of the shop: world, seed, k, all parameters and the limit of steps if there is one."""
        limit = {} if self.max_steps is None else {"max_steps": self.max_steps}
        return {"world": self.world.name, "seed": self.seed, "k": self.world.k, "knobs": asdict(self.world), **limit}

    def check_source_shop(self, meta: dict[str, Any] | None) -> None:
        """Raise InputError unless this shop wrote the log. `meta` is as in `from_meta`; None if no shop wrote it.

        The lengths of lists and sessions may differ from the log, because the items and visitors are the same."""
        if meta is None:
            raise InputError(
                "No simulated shop wrote the log, so the true reward is unknown; use a log of `offrec shop`."
            )
        if self.seed != meta.get("seed") or {**meta.get("knobs", {}), "k": self.world.k} != asdict(self.world):
            raise InputError(
                f"The log comes from the shop {meta.get('world')!r} with seed {meta.get('seed')}, this is "
                f"{self.world.name!r} with seed {self.seed}; simulate the policy in the shop that wrote its log."
            )

    def player(self, policy: "str | Policy | Player", play: Play = "topk", skip_recent: int = 0) -> Player:
        """Return a player.

        Args:
            policy: The name of one of the shop's own policies, any `Policy`, or a player.
            play: How a `Policy` makes lists: its best k items, or k items sampled without replacement.
            skip_recent: How many of the visitor's last picks a `Policy` ranks below all other items.
        """
        if isinstance(policy, Player):
            return policy
        if play not in get_args(Play):
            raise InputError(f"play must be one of {', '.join(get_args(Play))}; got {play!r}.")
        if isinstance(policy, Policy):
            if policy.source_shop is not None:
                self.check_source_shop(policy.source_shop)
            return PolicyPlayer(self.dynamics, policy, play, skip_recent)
        if policy == "oracle" and self.max_steps is not None:
            raise InputError(
                "The oracle plans sessions without a limit of steps; use greedy, which looks one step ahead."
            )
        if policy == "oracle" and self.world.one_visitor:
            return TabularPlayer(self.dynamics, build_mdp(self.world, self.seed).optimal().policy, "oracle")
        if policy not in SHOP_POLICIES:
            raise InputError(f"The shop has no policy {policy!r}; its policies are {', '.join(SHOP_POLICIES)}.")
        return SHOP_POLICIES[policy](self.dynamics)

    @torch.no_grad()
    def rollout(
        self,
        policy: "str | Policy | Player",
        sessions: int = 1000,
        play: Play = "topk",
        *,
        skip_recent: int = 0,
        seed: int = 0,
        gamma: float = 1.0,
        max_steps: int = MAX_STEPS,
        progress: Progress | None = None,
        first: int | None = None,
    ) -> Rollout:
        """Simulate sessions until the visitors leave.

        Args:
            policy: See `player`.
            sessions: The number of visitors.
            play: See `player`; the shop's own policies ignore it.
            skip_recent: See `player`; the shop's own policies ignore it.
            seed: The seed of the visitors. Equal seeds give the same visitors and random numbers for every policy.
            gamma: The discount per list, for `Rollout.discounted` only.
            max_steps: The largest number of lists per session.
            progress: Called after every step with (sessions that have ended, sessions).
            first: Simulate only this many of the visitors, for slow policies. They are the same visitors, with the
                same random numbers, as the first ones of a roll-out of all sessions.
        """
        if sessions < 1:
            raise InputError(f"sessions must be at least 1; got {sessions}.")
        if first is not None and not 1 <= first <= sessions:
            raise InputError(f"first must be between 1 and the {sessions} sessions; got {first}.")
        if seed < 0:
            raise InputError(f"The seed of the visitors must be at least 0; got {seed}.")
        if not 0 <= gamma <= 1:
            raise InputError(f"gamma must be between 0 and 1; got {gamma}.")
        player = self.player(policy, play, skip_recent)
        totals = SessionTotals(sessions if first is None else first, gamma, self.dynamics.device)

        def watch(rows: Tensor, number: int, lists: Tensor, visitors: Visitors, result: Step) -> None:
            totals.add(rows, number, result)

        unfinished = self.run_sessions(player, sessions, seed, watch, max_steps, progress, first)
        rewards, discounted, lengths, steps, bought = totals.arrays()
        return Rollout(
            world=self.world.name,
            shop_seed=self.seed,
            k=self.world.k,
            policy=player.name,
            play=player.play,
            skip_recent=player.skip_recent,
            seed=seed,
            population=sessions,
            gamma=gamma,
            rewards=rewards,
            discounted=discounted,
            lengths=lengths,
            steps=steps,
            bought=bought,
            cut=len(unfinished) / len(rewards),
        )

    def run_sessions(
        self,
        player: Player,
        sessions: int,
        seed: int,
        watch: Watch,
        max_steps: int = MAX_STEPS,
        progress: Progress | None = None,
        first: int | None = None,
    ) -> Tensor:
        """Simulate sessions as `rollout.run_sessions` does, with the limit of this shop; see there.

        Returns:
            The sessions that had not ended after `max_steps`. A session that reaches the shop's own limit has ended.
        """
        limit = max_steps if self.max_steps is None else min(max_steps, self.max_steps)
        remaining = run_sessions(self.dynamics, player, sessions, seed, limit, watch, progress, first)
        return remaining[:0] if limit == self.max_steps else remaining
