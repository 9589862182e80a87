"""What a policy would earn, estimated from the log alone: with its verdict for tables, cheaply for a search."""

from collections.abc import Mapping
from typing import Any, Literal

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.transitions import reward_vector
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import RECOMMENDED, EstimateOptions, estimate
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.policy import Policy

UPDATES, REFITS = 1000, 2  # of each fit of Q, and how often it is fitted again: three fits a policy
K = 5  # items on a list, where the log does not say

CHEAP = value_at_5.METRIC
UNDER_WAY = "estimating its value"  # what a person reads meanwhile, beside the name of the run


def value_of(
    policy: Policy, dataset: Dataset, rewards: Mapping[str, float], console: Console | None = None
) -> dict[str, Any]:
    """{"value": a session, "low": …, "high": …, "verdict": …, "reason": why} of its best k, as a shop would play it, by
    the recommended estimator on test sessions. The figures are None where there is too little to show one.
    """
    asked = EstimateOptions(
        play="topk",
        k=min(_length(dataset), dataset.n_items),
        reward=dict(rewards),
        refits=REFITS,
        value_at_5=False,
        values=ValueOptions(updates=UPDATES),
    )
    (one,) = estimate({UNDER_WAY: policy}, dataset, asked, console).as_json()["policies"]
    found = one["estimates"][RECOMMENDED]
    around = {"value": found["estimate"], "low": found["low"], "high": found["high"]}
    return {**around, "verdict": found["verdict"], "reason": found["reason"]}


def cheap(
    policy: Policy,
    dataset: Dataset,
    rewards: Mapping[str, float],
    split: Literal["validation", "test"] = "validation",
    console: Console | None = None,
) -> float:
    """value@5: what the policy's best five were worth to the log's visitors (`--select value`)."""
    of = reward_vector(dataset.behaviours, dict(rewards))
    value = value_at_5.scorer_for(dataset, split, of, ValueOptions(), policy, console or Console(quiet=True))
    if value is None:
        raise InputError(f"{dataset.path} has no {split} events that {CHEAP} could be judged by; prepare a longer log.")
    return value(policy)


def _length(dataset: Dataset) -> int:
    """Items on a list: the shop's, the log's, or five."""
    if "shop" in dataset.meta:
        return int(dataset.meta["shop"]["k"])
    decisions = LoggedDecisions.load(dataset, "test")
    return decisions.k if decisions.has_lists else K
