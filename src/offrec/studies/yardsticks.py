"""Yardsticks on logs of the simulated shop: its own policies, how policies are played, and twins without look-ahead."""

from dataclasses import replace

from offrec.algorithms import LEARNERS
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.studies.study import RunGroup

SHOP_POLICIES = ("random", "logging", "greedy", "informed", "oracle")
SYMBOLS = {"gamma": "γ"}


def shop_groups(log: str, dataset: Dataset, informed_visitors: int) -> list[RunGroup]:
    """Return the shop's own policies, or nothing if no shop wrote the log. `informed` needs visitors."""
    names = [name for name in SHOP_POLICIES if name != "informed" or informed_visitors]
    return [RunGroup(f"{log}.{name}", log, "shop", name) for name in names] if "shop" in dataset.meta else []


def played(group: RunGroup, dataset: Dataset, skip_recent: int | None) -> RunGroup:
    """Return the group with the number of last picks that it skips in the shop.

    Args:
        group: A learner or a baseline.
        dataset: Its dataset.
        skip_recent: The number for all policies; None: the number in the policy's record.
    """
    if "shop" not in dataset.meta:
        return group
    if skip_recent is None:
        skip_recent = _record_skip_recent(group)
    return replace(group, skip_recent=skip_recent)


def _record_skip_recent(group: RunGroup) -> int:
    if group.kind == "learner":
        return LEARNERS[group.policy].skip_recent
    from offrec.baselines import BASELINES  # imported here: a sweep needs no scipy

    return BASELINES[group.policy].skip_recent


def twin_label(label: str, learner: str) -> str:
    """Return the label of a learner without look-ahead, for example "DC, γ = 0"."""
    settings = LEARNERS[learner].myopic or {}
    return ", ".join(
        [label, *(f"{SYMBOLS.get(key, key.split('.')[-1])} = {value:g}" for key, value in settings.items())]
    )


def check_visitors(visitors: int, informed_visitors: int) -> None:
    """Raise InputError if a number of visitors is impossible."""
    if visitors < 1:
        raise InputError(f"--visitors must be at least 1; got {visitors}.")
    if informed_visitors < 0:
        raise InputError(f"--informed-visitors must be at least 0; got {informed_visitors}.")
