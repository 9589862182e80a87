"""`offrec shop`: simulate a shop and write its log."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, registered, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    import torch

    from offrec.shop import Shop
    from offrec.shop.log import ServedPolicy


@dataclass(frozen=True)
class WriteShop:
    """Simulate a shop with its logging policy, or with a trained policy, and write the log.

    events.parquet contains the events, for `offrec prepare`. full.parquet contains every served list with its exact
    probability. items.parquet contains what a shop knows about its items, for `offrec prepare --items`.

    Examples: offrec shop --world demo --sessions 20000 --out log
              offrec shop --policy runs/user-model --play blend --log-seed 1 --first-session 20000 --out log-1
              offrec prepare log/full.parquet log-1/full.parquet --format decisions --out data
    """

    out: Path
    """The folder for the files."""
    world: Annotated[str | None, registered("world", "The world. Default: demo, or the shop of --policy. One of")] = (
        None
    )
    sessions: int = 20_000
    """The number of visitors."""
    seed: Annotated[int | None, unset("INT")] = None
    """The seed of the items and of the visitors. Another seed gives another shop. Default: 0, or the shop of
    --policy."""
    log_seed: Annotated[int | None, unset("INT")] = None
    """Seed for the visitors only; use it to generate another log of the same shop. Default: --seed. With --policy, it
    is required, because the visitors should differ from those of the log that the policy was trained on."""
    first_session: int = 0
    """The number of the first session. Logs that are prepared together need sessions with different numbers."""
    k: Annotated[int | None, unset("INT"), tyro.conf.arg(aliases=["-k"])] = None
    """The length of a list. Default: that of the world, or of the log that the policy was trained on."""
    steps: Annotated[int | None, unset("N")] = None
    """End every session after N lists, even if the visitor would stay. 1 gives a log of independent decisions. Default:
    no limit, or the limit of the shop of --policy."""
    policy: Annotated[Path | None, unset("RUN")] = None
    """A run that makes the lists instead of the logging policy."""
    play: Literal["topk", "sample", "blend"] = "topk"
    """With --policy, how lists are made. `topk` takes the best k items. `sample` samples k items without replacement
    from the policy's probabilities. `blend` takes the best k items or, with probability --share, a list of the previous
    policy."""
    temperature: float = 1.0
    """Softmax temperature of `--play sample` and `--places-from policy`; a higher one explores more."""
    places: int = 0
    """With `topk` and `blend`: how many randomly chosen places of the policy's lists are filled with sampled items."""
    places_from: Literal["catalogue", "policy"] = "catalogue"
    """Sample these places uniformly from the catalogue, or from the policy's probabilities."""
    share: float = 0.1
    """With `blend`: the probability that the previous policy makes a list."""
    previous: Annotated[Path | None, unset("RUN")] = None
    """With `blend`: the previous policy. It samples its lists if it has probabilities. Default: the logging policy."""
    force: bool = False
    """Replace an existing log."""
    device: str = "cpu"
    """cpu, cuda …"""

    def run(self) -> None:
        from offrec.runs.loading import pick_device
        from offrec.shop import Shop
        from offrec.shop.log import write_log

        device = pick_device(self.device)
        if self.policy is None:
            self._check_without_policy()
            shop, served = Shop.open(self.world or "demo", self.seed or 0, self.k, device, self.steps), None
        else:
            shop, served = self._served_policy(self.policy, device)
        with console_for(False).counter("visitors done") as at:
            write_log(
                shop,
                self.sessions,
                self.out,
                seed=shop.seed if self.log_seed is None else self.log_seed,
                served=served,
                first_session=self.first_session,
                force=self.force,
                progress=at,
            )
        if served is not None and not served.exploration.is_random:
            console_for(False).line(
                "Every list has propensity 1: this log cannot tell what other items would earn; explore with "
                "--play blend or --places N."
            )
        console_for(False).line(
            f"Written: {self.out}. Next: offrec prepare {self.out}/full.parquet --format decisions --out data "
            f"(with the lists), or offrec prepare {self.out}/events.parquet --out data (picks alone)."
        )

    def _check_without_policy(self) -> None:
        """Refuse options that need --policy."""
        for option in fields(self):
            needs_policy = option.name in ("play", "temperature", "places", "places_from", "share", "previous")
            if needs_policy and getattr(self, option.name) != option.default:
                flag = option.name.replace("_", "-")
                raise InputError(f"--{flag} needs --policy RUN; the logging policy has its own way of making lists.")

    def _served_policy(self, run: Path, device: "torch.device") -> "tuple[Shop, ServedPolicy]":
        from offrec.runs.loading import load
        from offrec.shop import Shop
        from offrec.shop.exploration import Exploration
        from offrec.shop.log import ServedPolicy

        exploration = Exploration(self.play, self.temperature, self.places, self.places_from, self.share)
        if self.previous is not None and self.play != "blend":
            raise InputError(f"--previous has no effect with --play {self.play}; remove it or use --play blend.")
        if self.log_seed is None:
            raise InputError(
                "--policy needs --log-seed N; choose a seed that no log of the policy's training data has, so that the "
                "visitors are new."
            )
        policy = load(run, str(device))
        if policy.source_shop is None:
            raise InputError(f"{run} was not trained on a log of a simulated shop; train one on a log of offrec shop.")
        shop = Shop.from_meta(policy.source_shop, device)
        if self.world not in (None, shop.world.name) or self.seed not in (None, shop.seed):
            raise InputError(
                f"--world and --seed differ from the shop of {run}, which is {shop.world.name} with seed {shop.seed}; "
                "remove them."
            )
        if self.k is not None or self.steps is not None:
            world, steps = replace(shop.world, k=self.k or shop.world.k), self.steps or shop.max_steps
            shop = Shop(world, shop.seed, device=device, max_steps=steps)
        previous = None if self.previous is None else load(self.previous, str(device))
        skips = [0 if path is None else default_skip_recent(path) for path in (run, self.previous)]
        return shop, ServedPolicy(policy, exploration, skips[0], previous, skips[1])


def default_skip_recent(run: Path) -> int:
    """Return how many of the visitor's last picks the learner of a run skips by default."""
    from offrec.algorithms import LEARNERS
    from offrec.runs.folder import read_run

    return LEARNERS[read_run(run)["options"]["algorithm.name"]].skip_recent
