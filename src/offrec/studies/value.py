"""Estimate the value of a policy from the log: with a verdict for tables, and by value@5 for sweeps and tuning."""

from collections.abc import Mapping
from typing import Any, Literal

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards
from offrec.errors import InputError
from offrec.estimation import value_at_5
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import RECOMMENDED, EstimateOptions
from offrec.policy import Policy

UPDATES, REFITS = 1000, 2  # updates per fit of Q; refits for the interval (three fits per policy)
DEFAULT_LIST_LENGTH = 5  # for logs that do not record lists

VALUE_AT_5 = value_at_5.METRIC
PROGRESS_LABEL = "estimating its value"  # shown after the name of the run


def estimate_value(
    policy: Policy, dataset: Dataset, rewards: Mapping[str, float], console: Console | None = None
) -> dict[str, Any]:
    """Estimate the value of showing the policy's top-k lists, by the recommended estimator on test sessions.

    Args:
        policy: The policy.
        dataset: The dataset whose test sessions are used.
        rewards: Reward per behaviour, if it differs from the default.
        console: Shows progress.

    Returns:
        value, low and high (reward per session, None if withheld), verdict and reason, and `logged`, the reward of the
        logging policy in the same sessions.
    """
    options = EstimateOptions(
        play="topk",
        k=min(_list_length(dataset), dataset.n_items),
        reward=dict(rewards),
        refits=REFITS,
        value_at_5=False,
        values=ValueOptions(updates=UPDATES),
    )
    result = estimate({PROGRESS_LABEL: policy}, dataset, options, console)
    (row,) = result.as_json()["policies"]
    estimated = row["estimates"][RECOMMENDED]
    return {
        "value": estimated["estimate"],
        "low": estimated["low"],
        "high": estimated["high"],
        "logged": result.logged.estimate,
        "verdict": estimated["verdict"],
        "reason": "; ".join(reason["text"] for reason in estimated["reasons"]),
    }


def compute_value_at_5(
    policy: Policy,
    dataset: Dataset,
    rewards: Mapping[str, float],
    split: Literal["validation", "test"] = "validation",
    console: Console | None = None,
) -> float:
    """Compute value@5: the mean return that followed the policy's top five items in the log.

    Raises:
        InputError: If the split has no events to compute it from.
    """
    known = event_rewards(dataset, rewards)
    score = value_at_5.scorer_for(dataset, split, known, ValueOptions(), policy, console or Console(quiet=True))
    if score is None:
        raise InputError(f"{dataset.path} has too few {split} events to compute {VALUE_AT_5}; prepare a longer log.")
    return score(policy)


def _list_length(dataset: Dataset) -> int:
    """Return the list length of the shop or of the log, or the default."""
    if "shop" in dataset.meta:
        return int(dataset.meta["shop"]["k"])
    decisions = LoggedDecisions.load(dataset, "test")
    return decisions.k if decisions.has_lists else DEFAULT_LIST_LENGTH
