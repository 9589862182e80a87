"""`offrec shop` and `offrec simulate`: simulated shops, in which the true reward of a policy can be measured."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, print_json, print_table, registered, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    import torch

    from offrec.policy import Policy
    from offrec.shop import Rollout, Shop
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
    world: Annotated[str | None, unset("NAME")] = None
    """tiny (an exact MDP), demo (1,000 items), medium (10,000) or large (1,000,000). Default: demo, or the shop of
    --policy."""
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
        skips = [0 if path is None else _default_skip_recent(path) for path in (run, self.previous)]
        return shop, ServedPolicy(policy, exploration, skips[0], previous, skips[1])


def _default_skip_recent(run: Path) -> int:
    """Return how many of the visitor's last picks the learner of a run skips by default."""
    from offrec.algorithms import LEARNERS
    from offrec.runs.folder import read_run

    return LEARNERS[read_run(run)["options"]["algorithm.name"]].skip_recent


@dataclass(frozen=True)
class Simulate:
    """Simulate a policy in the shop that wrote its log and report the reward per session.

    Examples: offrec simulate runs/sl
              offrec simulate --baseline recent --dataset data
              offrec simulate --policy oracle --world demo
    """

    run_: Annotated[
        Path | None, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN", help_behavior_hint="")
    ] = None
    """A run that was trained on a log of the shop."""
    policy: Annotated[Literal["logging", "greedy", "oracle", "random", "informed"] | None, unset("NAME")] = None
    """A policy of the shop instead of a run: logging, greedy (most clicks now), oracle (knows the visitor's state and
    plans ahead), random, or informed (knows the items and infers the visitor's taste from lists and picks)."""
    baseline: Annotated[
        str | None, registered("baseline", "A policy without training instead of a run, with --dataset. One of")
    ] = None
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The dataset of the baseline, of a run whose dataset was moved, or of the shop for --policy."""
    world: Annotated[str | None, unset("NAME")] = None
    """The world for --policy: one of those of `offrec shop`."""
    shop_seed: Annotated[int | None, unset("INT")] = None
    """The shop's seed for --policy. Default 0."""
    sessions: int = 10_000
    """The number of visitors."""
    play: Literal["topk", "sample"] = "topk"
    """How to make lists: `topk` takes the best k items, `sample` samples k items without replacement."""
    skip_recent: Annotated[int | None, unset("N")] = None
    """Rank the visitor's last N picks below all other items. Default: the better of 0 and 8 for the learner or the
    baseline, measured in other simulated shops."""
    seed: int = 1_000_000
    """The seed of the visitors; it should differ from that of the log. Equal seeds give every policy the same
    visitors."""
    gamma: float = 1.0
    """The discount per list of the discounted reward, which is also reported."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        shop, policy, skip_recent = self._shop_and_policy()
        with console_for(self.json).counter("visitors done") as at:
            rollout = shop.rollout(
                policy,
                self.sessions,
                self.play,
                skip_recent=skip_recent if self.skip_recent is None else self.skip_recent,
                seed=self.seed,
                gamma=self.gamma,
                progress=at,
            )
        if self.json:
            print_json(rollout.as_json())
        else:
            print_table(*_rollout_table(rollout))

    def _shop_and_policy(self) -> "tuple[Shop, str | Policy, int]":
        """Return the shop, the policy and the number of last picks that it skips by default."""
        from offrec.baselines import BASELINES, baseline
        from offrec.data.dataset import Dataset
        from offrec.runs.loading import load, open_dataset, pick_device
        from offrec.shop import Shop

        if sum(chosen is not None for chosen in (self.run_, self.policy, self.baseline)) != 1:
            raise InputError("Give exactly one of RUN, --policy NAME with --world, or --baseline NAME with --dataset.")
        if self.policy is not None and (self.play != "topk" or self.skip_recent is not None):
            option = "--play" if self.play != "topk" else "--skip-recent"
            raise InputError(
                f"{option} cannot be used with --policy; the shop's own policies define how they make lists."
            )
        if self.run_ is None and self.dataset is None:
            if self.policy is None or self.world is None:
                raise InputError(
                    "--baseline needs --dataset DATASET, and --policy needs --world NAME or --dataset DATASET."
                )
            device = pick_device(self.device)
            return Shop.open(self.world, self.shop_seed or 0, device=device), self.policy, 0
        if self.world is not None or self.shop_seed is not None:
            raise InputError(
                "--world and --shop-seed cannot be used with a dataset, which determines the shop; remove them."
            )
        dataset = Dataset.open(self.dataset) if self.run_ is None else open_dataset(self.run_, self.dataset)  # type: ignore[arg-type]
        if "shop" not in dataset.meta:
            raise InputError(
                f"{dataset.path} was not written by a simulated shop, so the true reward is unknown; use estimate."
            )
        device = pick_device(self.device)
        shop = Shop.from_meta(dataset.meta["shop"], device)
        if self.policy is not None:
            return shop, self.policy, 0
        if self.run_ is not None:
            return shop, load(self.run_, self.device), _default_skip_recent(self.run_)
        policy = baseline(str(self.baseline), dataset, device=device)
        return shop, policy, BASELINES[str(self.baseline)].skip_recent


def _rollout_table(rollout: "Rollout") -> tuple[str, list[str], list[list[str]]]:
    shop = f"{rollout.world}, seed {rollout.shop_seed}, lists of {rollout.k}"
    skipped = f", skipping the last {rollout.skip_recent} picks" if rollout.skip_recent else ""
    title = f"{rollout.policy} ({rollout.play}{skipped}) in {shop}, {len(rollout):,} visitors"
    rows = [
        [name, f"{mean.mean:.4f}", f"{mean.low:.4f} … {mean.high:.4f}"]
        for name, mean in (
            ("reward", rollout.reward),
            *([(f"discounted by {rollout.gamma:g} per list", rollout.discount)] if rollout.gamma < 1 else []),
            ("picks", rollout.length),
            ("purchases", rollout.purchases),
        )
    ]
    return title, ["per session", "mean", "95 % interval"], rows
