"""What is kept of a run: figures, where each logged item stood, what the shop says, and what it took."""

import os
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
from offrec.data.transitions import reward_vector_or_none
from offrec.evaluation import Evaluation, evaluate
from offrec.evaluation.ranking import EvaluationSplit
from offrec.policy import Policy
from offrec.shop import Rollout, Shop
from offrec.studies import value
from offrec.studies.study import Study, write_json

VISITORS_SEED = 1_000_000  # other visitors than any log's
BEYOND = 21  # a rank that no figure at 20 or less tells from any larger one


@dataclass(frozen=True)
class Measurements:
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(
        default_factory=dict
    )  # "ranks" uint8 [events], "rewards" float32 [visitors]


def measure_policy(
    study: Study, policy: Policy, dataset: Dataset, rewards: Mapping[str, float], console: Console | None = None
) -> Measurements:
    """`rewards`: of behaviours, where the run was given any."""
    console = console or Console(quiet=True)
    facts: dict[str, Any] = {
        "validation": _figures(_ranked(policy, dataset, "validation", console), dataset, rewards),
    }
    arrays: dict[str, NDArray[Any]] = {}
    if study.test:
        found = _ranked(policy, dataset, "test", console)
        facts["test"] = _figures(found, dataset, rewards)
        arrays["ranks"] = np.minimum(found.ranks.rank, BEYOND).astype(np.uint8)
        _keep_events(study, dataset, found)
        if study.value and study.kind == "sweep":  # in default rewards: the run's own may be what is varied
            facts["test"]["all"][value.CHEAP] = value.cheap(policy, dataset, {}, "test", console)
        elif study.value and reward_vector_or_none(dataset.behaviours, dict(rewards)) is not None:
            console.line(value.UNDER_WAY)
            facts["value"] = value.value_of(policy, dataset, rewards, console)
    if study.question.get("objective") == value.CHEAP:
        facts["validation"]["all"][value.CHEAP] = value.cheap(policy, dataset, rewards, console=console)
    if study.test and "shop" in dataset.meta:
        earned = _shop(dataset, policy.device).rollout(policy, study.visitors, "topk", seed=VISITORS_SEED)
        facts["shop"], arrays["rewards"] = earned.as_json(), _kept(earned)
    return Measurements(facts, arrays)


def _ranked(policy: Policy, dataset: Dataset, split: EvaluationSplit, console: Console) -> Evaluation:
    with console.counter(f"ranking {split} events") as at:
        return evaluate(policy, dataset, split, progress=at)


def measure_shop_policy(study: Study, name: str, dataset: Dataset, device: torch.device) -> Measurements:
    """One of the shop's own policies, which rank no log."""
    earned = _shop(dataset, device).rollout(name, study.visitors, seed=VISITORS_SEED)
    return Measurements({"shop": earned.as_json()}, {"rewards": _kept(earned)})


def _kept(earned: Rollout) -> NDArray[np.float32]:
    return earned.rewards.astype(np.float32)


def store_result(study: Study, name: str, judged: Measurements) -> None:
    """The arrays first: a run is done when its JSON is there."""
    for kind, array in judged.arrays.items():
        _save(study.path("results", f"{name}.{kind}.npy"), array)
    write_json(study.path("results", f"{name}.json"), {"run": name, **judged.facts})


def _figures(found: Evaluation, dataset: Dataset, rewards: Mapping[str, float]) -> dict[str, dict[str, float]]:
    tables = {name: {"events": figures.events, **figures.values} for name, figures in found.metrics.items()}
    known = reward_vector_or_none(dataset.behaviours, dict(rewards))
    if known is not None:
        tables["all"]["reward@10"] = found.ranks.reward_ndcg(known, 10)
    return tables


def _keep_events(study: Study, dataset: Dataset, found: Evaluation) -> None:
    """Of each scored test event its session and its behaviour, once a dataset: what the ranks of all runs belong to."""
    path = study.path("results", f"{dataset.path.resolve().name}.events.npy")
    if not path.exists():
        session = np.searchsorted(np.asarray(dataset.sessions.offsets), found.ranks.event, side="right") - 1
        _save(path, np.stack([session - session.min(), found.ranks.behaviour]).astype(np.uint32))


def _save(path: Path, array: NDArray[Any]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with aside.open("wb") as file:
        np.save(file, array, allow_pickle=False)
    aside.replace(path)


def _shop(dataset: Dataset, device: torch.device) -> Shop:
    return _made(dataset.fingerprint, str(device), dataset.path)


@cache
def _made(fingerprint: str, device: str, path: Path) -> Shop:
    return Shop.from_meta(Dataset.open(path).meta["shop"], device)
