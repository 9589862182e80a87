"""`offrec simulate`: measure the true reward of policies in a simulated shop."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from offrec.commands.printing import console_for, print_json, print_table, registered, unset
from offrec.commands.shop import default_skip_recent
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.policy import Policy
    from offrec.shop import Mean, Rollout, Shop


@dataclass(frozen=True)
class Simulate:
    """Simulate policies in the shop that wrote their log and report the reward per session.

    All policies meet the same visitors. With several, the table also contains the difference of each one's reward from
    that of the first. The runs come first, then --policy, then --baseline.

    Examples: offrec simulate runs/sl
              offrec simulate runs/sl runs/user-model --policy logging
              offrec simulate --baseline recent --baseline markov --dataset data
              offrec simulate --policy oracle --world demo
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = ()
    """Runs that were trained on logs of the shop."""
    policy: Annotated[tuple[Literal["logging", "greedy", "oracle", "random", "informed"], ...], unset("NAME")] = ()
    """A policy of the shop: logging, greedy (most clicks now), oracle (knows the visitor's state and plans ahead),
    random, or informed (knows the items and infers the visitor's taste from lists and picks). May be repeated."""
    baseline: Annotated[
        tuple[str, ...],
        registered(
            "baseline",
            "A policy without training, which counts the training sessions of --dataset or of the first run's dataset. "
            "May be repeated. One of",
        ),
    ] = ()
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The dataset of the baselines, of a first run whose dataset was moved, or of the shop for --policy."""
    world: Annotated[str | None, registered("world", "The world for --policy. One of")] = None
    shop_seed: Annotated[int | None, unset("INT")] = None
    """The shop's seed for --policy. Default 0."""
    sessions: int = 10_000
    """The number of visitors."""
    play: Literal["topk", "sample"] = "topk"
    """How runs and baselines make lists: `topk` takes the best k items, `sample` samples k items without
    replacement."""
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
    """Print JSON: the figures of the first policy, and in `others` those of each other policy, with the `difference` of
    its reward per session from that of the first. Means have 95 % intervals (`low`, `high`)."""

    def run(self) -> None:
        from offrec.shop import paired_difference

        self._check()
        shop, dataset = self._shop()
        rollouts = {}
        for name, policy, skip_recent in self._policies(shop, dataset):
            with console_for(self.json).counter(f"{name}: visitors done") as at:
                rollouts[name] = shop.rollout(
                    policy,
                    self.sessions,
                    self.play,
                    skip_recent=skip_recent if self.skip_recent is None else self.skip_recent,
                    seed=self.seed,
                    gamma=self.gamma,
                    progress=at,
                )
        (first_name, first), *others = rollouts.items()
        differences = {name: paired_difference(rollout, first) for name, rollout in others}
        if self.json:
            trees: list[dict[str, Any]] = [{"name": name, **rollout.as_json()} for name, rollout in others]
            for tree in trees:
                tree["difference"] = differences[tree["name"]].as_json()
            print_json({"name": first_name, **first.as_json(), "others": trees})
        elif others:
            print_table(*_comparison_table(rollouts, differences))
        else:
            print_table(*_rollout_table(first))

    def _check(self) -> None:
        if not (self.runs or self.policy or self.baseline):
            raise InputError("No policy was given; pass RUN, --policy NAME with --world, or --baseline NAME.")
        names = [*map(str, self.runs), *self.policy, *self.baseline]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise InputError(f"{repeated[0]} was given twice; give each policy once.")
        if not (self.runs or self.baseline) and (self.play != "topk" or self.skip_recent is not None):
            option = "--play" if self.play != "topk" else "--skip-recent"
            raise InputError(
                f"{option} cannot be used with --policy; the shop's own policies define how they make lists."
            )
        if self.baseline and not self.runs and self.dataset is None:
            raise InputError("--baseline without runs needs --dataset DATASET.")
        if not self.runs and self.dataset is None and self.world is None:
            raise InputError("--policy without runs needs --world NAME or --dataset DATASET.")
        if (self.runs or self.dataset is not None) and (self.world is not None or self.shop_seed is not None):
            raise InputError(
                "--world and --shop-seed cannot be used with a dataset, which determines the shop; remove them."
            )

    def _shop(self) -> "tuple[Shop, Dataset | None]":
        """Return the shop, and the dataset that it comes from if there is one."""
        from offrec.data.dataset import Dataset
        from offrec.runs.loading import open_dataset, pick_device
        from offrec.shop import Shop

        device = pick_device(self.device)
        if self.runs:
            dataset = open_dataset(self.runs[0], self.dataset)
        elif self.dataset is not None:
            dataset = Dataset.open(self.dataset)
        else:
            return Shop.open(str(self.world), self.shop_seed or 0, device=device), None
        if "shop" not in dataset.meta:
            raise InputError(
                f"{dataset.path} was not written by a simulated shop, so the true reward is unknown; use estimate."
            )
        return Shop.from_meta(dataset.meta["shop"], device), dataset

    def _policies(self, shop: "Shop", dataset: "Dataset | None") -> "list[tuple[str, str | Policy, int]]":
        """Return the name of each policy, the policy and the number of last picks that it skips by default."""
        from offrec.baselines import BASELINES, baseline
        from offrec.runs.loading import load

        policies: list[tuple[str, str | Policy, int]] = []
        for run in self.runs:
            policy = load(run, self.device)
            try:
                shop.check_source_shop(policy.source_shop)
            except InputError as error:
                raise InputError(f"{run}: {error}") from error
            policies.append((str(run), policy, default_skip_recent(run)))
        policies += [(name, name, 0) for name in self.policy]
        for name in self.baseline:
            assert dataset is not None
            policies.append((name, baseline(name, dataset, device=shop.dynamics.device), BASELINES[name].skip_recent))
        return policies


def _rollout_table(rollout: "Rollout") -> tuple[str, list[str], list[list[str]]]:
    title = f"{_description(rollout)} in {_place(rollout)}"
    rows = [
        [name, f"{mean.mean:.4f}", _interval(mean)]
        for name, mean in (
            ("reward", rollout.reward),
            *([(f"discounted by {rollout.gamma:g} per list", rollout.discount)] if rollout.gamma < 1 else []),
            ("picks", rollout.length),
            ("purchases", rollout.purchases),
        )
    ]
    return title, ["per session", "mean", "95 % interval"], rows


def _comparison_table(
    rollouts: "dict[str, Rollout]", differences: "dict[str, Mean]"
) -> tuple[str, list[str], list[list[str]]]:
    """Return a table with one row per policy and the differences from the first one."""
    first, rows = next(iter(rollouts.values())), []
    for name, rollout in rollouts.items():
        difference = differences.get(name)
        compared = ["–", "–"] if difference is None else [f"{difference.mean:+.4f}", _interval(difference)]
        discounted = [f"{rollout.discount.mean:.4f}"] if first.gamma < 1 else []
        means = [f"{mean.mean:.4f}" for mean in (rollout.length, rollout.purchases)]
        label = _description(rollout) if name == rollout.policy else f"{name}: {_description(rollout)}"
        rows.append([label, f"{rollout.reward.mean:.4f}", _interval(rollout.reward), *compared, *discounted, *means])
    columns = ["per session", "reward", "95 % interval", "minus first", "95 % interval"]
    columns += [f"discounted by {first.gamma:g}"] if first.gamma < 1 else []
    return f"Policies in {_place(first)}", [*columns, "picks", "purchases"], rows


def _description(rollout: "Rollout") -> str:
    skipped = f", skipping the last {rollout.skip_recent} picks" if rollout.skip_recent else ""
    return f"{rollout.policy} ({rollout.play}{skipped})"


def _place(rollout: "Rollout") -> str:
    return f"{rollout.world}, seed {rollout.shop_seed}, lists of {rollout.k}, {len(rollout):,} visitors"


def _interval(mean: "Mean") -> str:
    return f"{mean.low:.4f} … {mean.high:.4f}"
