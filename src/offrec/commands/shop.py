"""`offrec shop` and `offrec simulate`: the simulated store, where what a policy earns is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, print_json, print_table, registered, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.policy import Policy
    from offrec.shop import Rollout, Shop


@dataclass(frozen=True)
class WriteShop:
    """Let the simulated store's own policy serve visitors, and write the log: events.parquet, which `offrec prepare`
    reads, and full.parquet, with every list that was shown and its exact probability.

    Example: offrec shop --world demo --sessions 20000 --out log
    """

    out: Path
    """The folder for both files."""
    world: str = "demo"
    """tiny (an exact MDP), demo (1,000 items), medium (10,000) or large (1,000,000)."""
    sessions: int = 20_000
    """How many visitors come."""
    seed: int = 0
    """Seed of the items and of the visitors: another seed is another shop."""
    log_seed: Annotated[int | None, unset("INT")] = None
    """Seed of the visitors alone, for a further log of the same shop. Default: the shop's."""
    k: Annotated[int | None, unset("INT"), tyro.conf.arg(aliases=["-k"])] = None
    """Items on a list; the world's own number if left out."""
    force: bool = False
    """Replace the folder if it exists."""
    device: str = "cpu"
    """cpu, cuda …"""

    def run(self) -> None:
        from offrec.runs.loading import pick_device
        from offrec.shop import Shop
        from offrec.shop.log import write_log

        shop = Shop.open(self.world, self.seed, self.k, pick_device(self.device))
        with console_for(False).counter("visitors gone") as at:
            seed = self.seed if self.log_seed is None else self.log_seed
            write_log(shop, self.sessions, self.out, seed=seed, force=self.force, progress=at)
        console_for(False).line(f"Written: {self.out}. Next: offrec prepare {self.out}/events.parquet --out data")


@dataclass(frozen=True)
class Simulate:
    """Play a policy to real (simulated) visitors until they leave, and count what it truly earned.

    Examples: offrec simulate runs/sl
              offrec simulate --baseline recent --dataset data
              offrec simulate --policy oracle --world demo
    """

    run_: Annotated[
        Path | None, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN", help_behavior_hint="")
    ] = None
    """A folder made by `offrec train`, on a log of the shop."""
    policy: Annotated[Literal["logging", "greedy", "oracle", "random", "informed"] | None, unset("NAME")] = None
    """A policy of the shop instead: logging, greedy (most clicks now), oracle (knows everything and looks ahead),
    random, or informed (knows the items and infers the visitor's taste from lists and picks)."""
    baseline: Annotated[
        str | None, registered("baseline", "A policy without training instead of a run, with --dataset. One of")
    ] = None
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The dataset of the baseline, of a run whose dataset has moved, or whose shop --policy is to be played in."""
    world: Annotated[str | None, unset("NAME")] = None
    """The world for --policy: tiny, demo, medium or large."""
    shop_seed: Annotated[int | None, unset("INT")] = None
    """The shop's seed for --policy. Default 0."""
    sessions: int = 10_000
    """How many visitors come."""
    play: Literal["topk", "sample"] = "topk"
    """The list: the policy's best k, or k drawn from it without replacement."""
    seed: int = 1_000_000
    """Seed of the visitors who come, another than that of a log. Equal seeds: the same visitors with the same luck."""
    gamma: float = 1.0
    """Discount a list of the discounted reward, which is reported beside the plain one."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        shop, policy = self._shop_and_policy()
        with console_for(self.json).counter("visitors gone") as at:
            found = shop.rollout(policy, self.sessions, self.play, seed=self.seed, gamma=self.gamma, progress=at)
        if self.json:
            print_json(found.as_json())
        else:
            print_table(*_rollout_table(found))

    def _shop_and_policy(self) -> "tuple[Shop, str | Policy]":
        from offrec.baselines import baseline
        from offrec.data.dataset import Dataset
        from offrec.runs.loading import load, open_dataset, pick_device
        from offrec.shop import Shop

        if sum(chosen is not None for chosen in (self.run_, self.policy, self.baseline)) != 1:
            raise InputError("Give one of: a run's folder, --policy NAME with --world, --baseline NAME with --dataset.")
        if self.policy is not None and self.play != "topk":
            raise InputError("--play is for a run; the shop's own policies play as they are.")
        if self.run_ is None and self.dataset is None:
            if self.policy is None or self.world is None:
                raise InputError("A baseline needs --dataset DATASET; a policy of the shop needs --world NAME.")
            device = pick_device(self.device)
            return Shop.open(self.world, self.shop_seed or 0, device=device), self.policy
        if self.world is not None or self.shop_seed is not None:
            raise InputError("The dataset says which shop it comes from; leave out --world and --shop-seed.")
        dataset = Dataset.open(self.dataset) if self.run_ is None else open_dataset(self.run_, self.dataset)  # type: ignore[arg-type]
        if "shop" not in dataset.meta:
            raise InputError(
                f"{dataset.path} comes from no simulated shop, so what a policy would truly earn is unknown."
            )
        device = pick_device(self.device)
        shop = Shop.from_meta(dataset.meta["shop"], device)
        if self.policy is not None:
            return shop, self.policy
        if self.run_ is not None:
            return shop, load(self.run_, self.device)
        return shop, baseline(str(self.baseline), dataset, device=device)


def _rollout_table(found: "Rollout") -> tuple[str, list[str], list[list[str]]]:
    place = f"{found.world}, seed {found.shop_seed}, lists of {found.k}"
    title = f"{found.policy} ({found.play}) in {place}, {len(found):,} visitors"
    rows = [
        [name, f"{mean.mean:.4f}", f"{mean.low:.4f} … {mean.high:.4f}"]
        for name, mean in (
            ("reward", found.reward),
            *([(f"discounted by {found.gamma:g} a list", found.discount)] if found.gamma < 1 else []),
            ("picks", found.length),
            ("purchases", found.purchases),
        )
    ]
    return title, ["a session", "mean", "95 % interval"], rows
