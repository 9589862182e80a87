"""Measure a policy and store the result of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.rewards import event_rewards_or_none
from offrec.evaluation import Evaluation, EvaluationSplit, evaluate
from offrec.policy import Policy, SkipRecent
from offrec.shop import Shop
from offrec.shop.players import Play
from offrec.studies import value
from offrec.studies.stored_results import RANK_CAP, SAMPLED
from offrec.studies.study import RunGroup, Study

VISITORS_SEED = 1_000_000  # no log is simulated with this seed, so these visitors are new


@dataclass(frozen=True)
class Measurements:
    """The stored measurements of a run.

    Attributes:
        facts: The content of <run>.json.
        arrays: "ranks" uint8 [events], "events" uint32 [2, events], "rewards" and, for SL, "rewards_sampled" float32
            [visitors].
    """

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)


def measure_policy(
    study: Study,
    group: RunGroup,
    policy: Policy,
    dataset: Dataset,
    rewards: Mapping[str, float],
    console: Console | None = None,
) -> Measurements:
    """Evaluate a policy on validation and test sessions, estimate its value and run it in the shop, as planned.

    The shop plays the top k items of the policy, and lists sampled from SL as well.

    Args:
        study: The study, which defines what is measured.
        group: How the shop plays the policy.
        policy: The policy.
        dataset: The dataset of the run.
        rewards: Reward per behaviour, if the run's options set it.
        console: Shows progress.
    """
    console = console or Console(quiet=True)
    facts: dict[str, Any] = {
        "validation": _metrics(_evaluate(policy, dataset, "validation", rewards, console)),
    }
    arrays: dict[str, NDArray[Any]] = {}
    if study.evaluate_test:
        evaluation = _evaluate(policy, dataset, "test", rewards, console)
        facts["test"] = _metrics(evaluation)
        arrays["ranks"] = np.minimum(evaluation.ranks.rank, RANK_CAP).astype(np.uint8)
        arrays["events"] = _events(dataset, evaluation)
        if study.estimate_value and study.kind == "sweep":  # default rewards: the sweep may vary the run's own rewards
            facts["test"]["all"][value.VALUE_AT_5] = value.compute_value_at_5(policy, dataset, {}, "test", console)
        elif study.estimate_value and event_rewards_or_none(dataset, rewards) is not None:
            console.line(value.PROGRESS_LABEL)
            in_shop = SkipRecent(policy, group.skip_recent) if group.skip_recent else policy
            facts["value"] = value.estimate_value(in_shop, dataset, rewards, console)
    if study.request.get("objective") == value.VALUE_AT_5:
        score = value.compute_value_at_5(policy, dataset, rewards, console=console)
        facts["validation"]["all"][value.VALUE_AT_5] = score
    if study.evaluate_test and "shop" in dataset.meta:
        shop = _shop(dataset, policy.device)
        plays: dict[str, Play] = {"": "topk", **({SAMPLED: "sample"} if _is_sl(group) else {})}
        for suffix, play in plays.items():
            rollout = shop.rollout(policy, study.visitors, play, skip_recent=group.skip_recent, seed=VISITORS_SEED)
            facts[f"shop{suffix}"] = rollout.as_json()
            arrays[f"rewards{suffix}"] = rollout.rewards.astype(np.float32)
    return Measurements(facts, arrays)


def measure_shop_policy(study: Study, name: str, dataset: Dataset, device: torch.device) -> Measurements:
    """Run one of the shop's own policies in the shop; it does not rank the items of a log."""
    first = study.informed_visitors if name == "informed" else None
    rollout = _shop(dataset, device).rollout(name, study.visitors, seed=VISITORS_SEED, first=first)
    return Measurements({"shop": rollout.as_json()}, {"rewards": rollout.rewards.astype(np.float32)})


def _is_sl(group: RunGroup) -> bool:
    return group.kind == "learner" and group.policy == "sl"


def _evaluate(
    policy: Policy, dataset: Dataset, split: EvaluationSplit, rewards: Mapping[str, float], console: Console
) -> Evaluation:
    with console.counter(f"ranking {split} events") as progress:
        return evaluate(policy, dataset, split, reward=rewards, progress=progress)


def _metrics(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    return {name: {"events": metrics.events, **metrics.values} for name, metrics in evaluation.metrics.items()}


def _events(dataset: Dataset, evaluation: Evaluation) -> NDArray[np.uint32]:
    """[2, events] the session and the behaviour of each scored test event. All ranks refer to them."""
    offsets = np.asarray(dataset.sessions.offsets)
    session = np.searchsorted(offsets, evaluation.ranks.event, side="right") - 1
    first = session.min(initial=len(offsets))
    return np.stack([session - first, evaluation.ranks.behaviour]).astype(np.uint32)


def _shop(dataset: Dataset, device: torch.device) -> Shop:
    return _open_shop(dataset.fingerprint, str(device), dataset.path)


@cache
def _open_shop(fingerprint: str, device: str, path: Path) -> Shop:
    return Shop.from_meta(Dataset.open(path).meta["shop"], device)
