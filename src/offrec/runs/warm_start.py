"""Start a run from the weights of an earlier run, on a newer log with another catalogue.

Items are matched by id. Vanished items are dropped, and new items start from the items that occur near them
(`models/item_transfer.py`). The options are those of the earlier run, with a shorter schedule. The optimiser starts
with an empty state.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from offrec.algorithms.user_model import UserModel
from offrec.data.dataset import Dataset
from offrec.data.item_properties import FeatureColumn
from offrec.errors import InputError
from offrec.logging_policy import FitStart
from offrec.models.agent import Agent
from offrec.models.item_features import feature_scaling
from offrec.models.item_transfer import (
    ItemMatch,
    ItemTensors,
    find_item_tensors,
    match_items,
    transfer_categories,
    transfer_weights,
)
from offrec.models.network import Network, NetworkOptions
from offrec.models.user_agent import UserModelAgent
from offrec.plugins import Settings
from offrec.runs.folder import FREE
from offrec.runs.loading import StoredRun, read_stored_run
from offrec.runs.options import RunOptions, build_options, logging_training
from offrec.runs.plan import RunPlan
from offrec.training.checkpoint import Tensors
from offrec.training.loop import TrainingOptions

PRIOR = "prior."  # the tensors of π̂_b in an agent; a warm run gets its own π̂_b
FLAGS = {"algorithm.name": "--algorithm", "network.backbone": "--backbone", "preset": "--preset"}
# Options that decide what the weights mean. Dropout is not one of them.
NETWORK_KEYS = tuple(f"network.{one.name}" for one in fields(NetworkOptions) if one.name != "dropout")
CRITIC_KEYS = tuple(f"critic.{name}" for name in ("backbone", "width", "layers", "repeat"))
FEATURES = "network.features"
FEW_SHARED = 0.5  # of the items of the log; a smaller share gets a warning
RATE_FACTOR, EPOCHS_FACTOR, PATIENCE = 0.5, 0.25, 2  # compared in benchmarks/warm_start.py


@dataclass(frozen=True)
class WarmStart:
    """An earlier run to start from."""

    stored: StoredRun

    @staticmethod
    def read(run: str | Path) -> "WarmStart":
        """Read the earlier run.

        Raises:
            InputError: The folder is not a run or is damaged.
        """
        return WarmStart(read_stored_run(Path(run)))

    @property
    def path(self) -> Path:
        """The folder of the earlier run."""
        return self.stored.path

    def settings(self, given: Mapping[str, Any]) -> Settings:
        """Return the settings of the new run: those of the earlier run, a shorter schedule, and the given ones.

        Args:
            given: Settings under dotted keys. They override all others.

        Raises:
            InputError: A given setting does not fit the weights of the earlier run.
        """
        before = self._settings_before()
        for key in ("algorithm.name", "preset"):
            if given.get(key, before[key]) != before[key]:
                raise self._conflict(key, given[key], before[key])
        settings = {**before, **warm_schedule(build_options(before)), **given}
        now = build_options(settings).settings()
        for key in (*NETWORK_KEYS, *CRITIC_KEYS):
            is_still_off = key == FEATURES and self.stored.features is None and now[key] == "off"
            if now.get(key) != before.get(key) and not is_still_off:
                raise self._conflict(key, now.get(key), before.get(key))
        return settings

    def _settings_before(self) -> Settings:
        """Return the settings of the earlier run. If it was a warm run too, its schedule is that of the first run."""
        start = self.stored.facts.get("start") or {}
        settings = {**self.stored.facts["options"], **start.get("replaced", {})}
        return {key: value for key, value in settings.items() if key not in FREE}

    def _conflict(self, key: str, now: Any, before: Any) -> InputError:
        return InputError(
            f"{FLAGS.get(key, key)} is {now}, but --from {self.path} was trained with {before}; omit it, or train "
            "without --from."
        )

    def match(self, dataset: Dataset) -> ItemMatch:
        """Match the items of the earlier run with those of a dataset.

        Raises:
            InputError: No item is in both.
        """
        match = match_items(self.stored.vocabulary, dataset.vocabulary, dataset.split("train"))
        if not match.matched:
            raise InputError(f"--from {self.path} and {dataset.path} have no item id in common; train without --from.")
        return match

    def adapt(self, dataset: Dataset) -> Dataset:
        """Return the dataset as the weights of the earlier run expect it.

        A user model has parameters per behaviour, so the behaviours of the earlier run come first, whether the new log
        contains them or not. Item features are standardised as in the earlier run.
        """
        if isinstance(self.stored.options.learner, UserModel):
            dataset = dataset.with_behaviours(self.stored.facts["behaviours"])
        return self._scale_features(dataset)

    def _scale_features(self, dataset: Dataset) -> Dataset:
        """A column whose values were all equal or unknown has no trained weights, so it is standardised anew."""
        before, now = self.stored.properties, dataset.item_properties
        if before is None or now is None or before.scaling is None or before.feature_columns != now.feature_columns:
            return dataset
        scaling = np.where(before.scaling[1] > 0, before.scaling, feature_scaling(now))
        return replace(dataset, item_properties=replace(now, scaling=scaling))

    def load_into(self, agent: Agent | UserModelAgent, match: ItemMatch, plan: RunPlan) -> None:
        """Load the weights of the earlier run into an agent of the new catalogue, except π̂_b.

        Raises:
            InputError: The agent has other tensors than the earlier run, because of its options or of its log.
        """
        self._check_lists(agent, plan.dataset)
        item_tensors = find_item_tensors(self.stored.build, self.stored.facts["items"])
        counted = agent.exposed.detach().cpu().clone() if isinstance(agent, UserModelAgent) else None
        weights = self._weights_for(plan)
        if isinstance(agent, UserModelAgent):
            weights = _add_new_behaviours(agent, weights)
        self._transfer(agent, weights, match, item_tensors, skip=PRIOR)
        if isinstance(agent, UserModelAgent) and counted is not None:
            agent.set_given_precisions()
            _set_exposure_of_new_items(agent, counted, match)
            is_unshown = agent.shown == 0
            agent.freeze_items(is_unshown & torch.from_numpy(match.old_index >= 0).to(is_unshown.device))

    def _transfer(
        self, module: nn.Module, weights: Tensors, match: ItemMatch, item_tensors: ItemTensors, skip: str = ""
    ) -> None:
        try:
            transfer_weights(module, weights, match, item_tensors, skip)
        except ValueError as error:
            raise InputError(
                f"--from {self.path} does not fit the options of this run ({error}); give algorithm.* the values that "
                "it was trained with, or train without --from."
            ) from error

    def _weights_for(self, plan: RunPlan) -> Tensors:
        """Return the weights of the earlier run, with the categories of a dataset's items.

        Raises:
            InputError: The items of the dataset have other columns than those of the earlier run.
        """
        dataset = plan.dataset
        before, now = self.stored.properties, dataset.item_properties
        columns = [] if before is None or self.stored.features is None else before.feature_columns
        columns_now = [] if now is None or plan.options.network.features == "off" else now.feature_columns
        if columns == columns_now:
            if not columns or before is None or now is None:
                return self.stored.weights
            return transfer_categories(self.stored.weights, before, now)
        if not columns:
            raise InputError(
                f"--from {self.path} was trained without item features, but {dataset.path} has {_listed(columns_now)}; "
                f"add --set {FEATURES}=off, or train without --from."
            )
        raise InputError(
            f"--from {self.path} was trained with the item features {_listed(columns)}, but {dataset.path} has "
            f"{_listed(columns_now)}; prepare it with the same --items columns, or train without --from."
        )

    def _check_lists(self, agent: Agent | UserModelAgent, dataset: Dataset) -> None:
        """A user model has parameters per place of a list."""
        if not isinstance(agent, UserModelAgent):
            return
        length, now_length = self.stored.shape.list_length, agent.k if agent.has_lists else 0
        if length != now_length:
            raise InputError(
                f"--from {self.path} was trained on lists of {length} items, but those of {dataset.path} have "
                f"{now_length}; user-model needs the same length. Train without --from."
            )

    def logging_start(self, plan: RunPlan, match: ItemMatch) -> FitStart | None:
        """Return the weights from which π̂_b is fitted, if the run needs π̂_b and the earlier run contains it.

        Raises:
            InputError: As in `load_into`.
        """
        options, dataset = plan.options, plan.dataset
        stored = self._weights_for(plan)
        weights = {name.removeprefix(PRIOR): tensor for name, tensor in stored.items() if name.startswith(PRIOR)}
        if plan.logging is None or not weights:
            return None
        features = plan.shared.features(options, plan.device)

        def build(items: int) -> Network:
            return Network(items, options.network, features=features)

        with torch.random.fork_rng():
            network = build(dataset.n_items)
        self._transfer(network, weights, match, find_item_tensors(build, self.stored.facts["items"]))
        training = logging_training(self.cold_options(options), dataset.protocol.format)
        return FitStart(network.state_dict(), replace(training, **warm_training(training, is_last=False)))

    def cold_options(self, options: RunOptions) -> RunOptions:
        """Return the options of a warm run with the schedule of a run from random weights, for fits that have no start.

        Values that the user has changed stay as they are.
        """
        before, now = self._settings_before(), options.settings()
        schedule = warm_schedule(build_options(before))
        return build_options(now | {key: before[key] for key, value in schedule.items() if now[key] == value})

    def describe(self, match: ItemMatch, options: RunOptions) -> dict[str, Any]:
        """Return what run.json says about the start. It contains no path."""
        before, now = self._settings_before(), options.settings()
        schedule = warm_schedule(build_options(before))
        return {
            "run": self.stored.id,
            "fingerprint": self.stored.facts["fingerprint"],
            "items": {"matched": match.matched, "new": match.new, "vanished": match.vanished},
            "replaced": {key: before[key] for key in schedule if before[key] != now[key]},
        }

    def sentence(self, match: ItemMatch) -> str:
        """Return the line that `offrec train` prints."""
        return (
            f"Starting from {self.path} ({self.stored.facts['fingerprint']}): {match.matched:,} items matched, "
            f"{match.new:,} new, {match.vanished:,} vanished"
        )

    def warnings(self, match: ItemMatch, dataset: Dataset) -> list[str]:
        """Return sentences about an earlier run that has little to do with a dataset."""
        sentences, before, now = [], self.stored.facts.get("shop"), dataset.meta.get("shop")
        if before is not None and now is not None and _shop(before) != _shop(now):
            sentences.append(
                f"{self.path} was trained on a log of the shop {_shop(before)}, but {dataset.path} is one of "
                f"{_shop(now)}: equal ids are different items; train without --from"
            )
        share = match.matched / max(1, dataset.n_items)
        if share < FEW_SHARED:
            sentences.append(
                f"{self.path} knows only {share:.1%} of the {dataset.n_items:,} items of {dataset.path}; if they have "
                "nothing to do with each other, train without --from"
            )
        return sentences


def _shop(meta: dict[str, Any]) -> str:
    return f"{meta['world']} with seed {meta['seed']}"


def _listed(columns: list[FeatureColumn]) -> str:
    return ", ".join(map(str, columns)) or "none"


def warm_schedule(options: RunOptions) -> Settings:
    """Return the default schedule of a warm run, given the options of a run from random weights."""
    training = warm_training(options.training, options.select == "last" or options.training.schedule == "linear")
    return {f"training.{key}": value for key, value in training.items()}


def warm_training(training: TrainingOptions, is_last: bool) -> dict[str, Any]:
    """Return the training options that a warm run changes.

    Args:
        training: The options of a run from random weights.
        is_last: Whether all epochs are trained, without early stopping.
    """
    if is_last:  # the learning rate falls to 0 within the epochs
        return {"epochs": max(1, math.ceil(EPOCHS_FACTOR * training.epochs))}
    patience = min(PATIENCE, training.patience)
    return {"learning_rate": RATE_FACTOR * training.learning_rate, "warmup": 0, "patience": patience}


def _add_new_behaviours(agent: UserModelAgent, weights: Tensors) -> Tensors:
    """Return the weights of an earlier run; behaviours that are new in this log start as in a new model."""
    added = dict(weights)
    for name in ("behaviour_base", "behaviour_slope"):
        trained, fresh = weights[name], getattr(agent, name).detach().cpu()
        added[name] = torch.cat([trained, fresh[len(trained) :]])
    return added


@torch.no_grad()
def _set_exposure_of_new_items(agent: UserModelAgent, counted: torch.Tensor, match: ItemMatch) -> None:
    """How often a new item was shown is known from its counts: shift them to the level of the trained values."""
    is_new = torch.from_numpy(match.old_index < 0)
    trained = agent.exposed.cpu()
    shift = (trained - counted)[~is_new].mean()
    agent.exposed.copy_(torch.where(is_new, counted + shift, trained))
