"""From a policy and a dataset to what an estimate is made from: a pass over the states, streaming the catalogue."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from offrec import logging_policy
from offrec.algorithms.diagnostics import RARE
from offrec.catalogue import Head, logsumexp, reduce, top_k
from offrec.console import Console
from offrec.data.dataset import Dataset, SplitName
from offrec.data.transitions import Floats
from offrec.errors import InputError
from offrec.estimation.list_policy import ListPolicy, log_prob_of_lists
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.marginal import CLUSTERS, clusters, log_marginal
from offrec.estimation.trajectories import Trajectories
from offrec.models.network import Network, NetworkOptions
from offrec.training.loop import TrainingOptions
from offrec.types import Batch

BATCH_SIZE = 1024
LEAST = 1e-30  # what an item never shown counts as, when shares of what was shown are compared

Progress = Callable[[int, int], None]  # (decisions done, decisions)


@dataclass(frozen=True)
class LoggingModel:
    """The policy that made the log: what is known of it."""

    network: Network | None  # π̂_b, where the log has no propensities
    shown: Tensor | None  # [A] log share of the places of all training lists, where it has
    calibration: dict[str, float]

    def head(self, batch: Batch) -> Head:
        """How often it takes what: π̂_b(·|s), or how often the log shows an item at all."""
        if self.network is not None:
            found: Head = self.network(batch)
            return found
        assert self.shown is not None
        nothing = self.shown.new_zeros(len(batch), 0)
        return Head(nothing, self.shown.new_zeros(len(self.shown), 0), self.shown)

    def clusters(self) -> Tensor:
        """[A] items that it takes for alike."""
        assert self.network is not None
        table = self.network.table
        return clusters(table, min(CLUSTERS, len(table)))


def load_logging_model(
    dataset: Dataset,
    network: NetworkOptions,
    training: TrainingOptions,
    device: torch.device,
    console: Console,
    seed: int = 0,
) -> LoggingModel:
    """From the log's propensities or, where it has none, fitted to the training split: kept beside the dataset."""
    decisions = LoggedDecisions.load(dataset, "train")
    if decisions.has_lists:
        shown = np.bincount(decisions.lists.ravel(), minlength=dataset.n_items + 1)[: dataset.n_items]
        share = torch.from_numpy(shown / max(1, shown.sum())).float()
        return LoggingModel(None, share.clamp(min=LEAST).log().to(device), {})
    found = logging_policy.load_or_fit(dataset, network, training, seed, device, console, need="network")
    names = {name.removeprefix("network."): value for name, value in found.calibration.items()}
    return LoggingModel(found.network, None, names)


def check(played: ListPolicy, dataset: Dataset) -> None:
    """Another log than its own will do, as long as items have the same numbers."""
    policy = played.policy
    if policy.data_hash == dataset.meta["data_hash"]:
        return
    if policy.vocabulary != dataset.vocabulary:
        raise InputError(
            f"{policy.name} knows other items than {dataset.path} ({dataset.fingerprint}), or by other numbers; "
            "prepare that log with --catalogue and the policy's run."
        )


@torch.no_grad()
def collect_trajectories(
    played: ListPolicy,
    dataset: Dataset,
    split: SplitName,
    rewards: Floats,
    logging: LoggingModel | None,
    *,
    grouped: bool = False,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Trajectories:
    """All but Q and V. A policy that is played by its best k has no weights: log_pi is None. `logging`: None where only
    rewards and the policy's own chances are wanted. `grouped`: also weights over clusters of items, which cost two
    more passes and need π̂_b.
    """
    check(played, dataset)
    decisions, device = LoggedDecisions.load(dataset, split), played.policy.device
    steps = reward_trajectories(decisions, rewards)
    first, sampled = decisions.inside.start, played.play == "sample"
    lists = torch.from_numpy(decisions.lists).to(device)
    mdp = decisions.mdp(rewards, 0.0)
    replay = decisions.replay(mdp, played.policy.history, "exact", device)
    found = np.zeros((4, steps.decisions))
    cluster = None
    if grouped and sampled and logging is not None and logging.network is not None:
        cluster = logging.clusters()
    done = 0
    for batch in replay.batches(batch_size):
        row = batch.event - first
        columns = _columns(played, batch, lists[row], logging, cluster)
        found[:, row.cpu().numpy()] = columns.cpu().numpy()
        done += len(batch)
        if progress is not None:
            progress(done, steps.decisions)
    log_pi, log_b, rare, ratio = found
    if decisions.has_lists:
        log_b = np.asarray(decisions.decisions.log_propensity[decisions.inside])
    known = decisions.has_lists or logging is not None
    assert known or played.blend == 1  # else there is nothing to blend with
    return replace(
        steps,
        log_pi=played.blended(log_pi, log_b) if sampled else None,
        log_b=log_b if known else None,
        rare=None if logging is None else played.blend * rare,
        log_marginal=None if cluster is None else played.blended(ratio, np.zeros_like(ratio)),
    )


def reward_trajectories(decisions: LoggedDecisions, rewards: Floats) -> Trajectories:
    """The decisions and what they earned."""
    earned, parts = decisions.rewards(rewards)
    offsets = np.asarray(decisions.decisions.offsets) - decisions.inside.start
    return Trajectories(offsets.astype(np.int64), earned, by=parts)


def _columns(
    played: ListPolicy, batch: Batch, lists: Tensor, logging: LoggingModel | None, cluster: Tensor | None
) -> Tensor:
    """[4, B] log π and log π̂_b of the logged list, π's mass on what the log hardly supports, the clusters' ratio."""
    pi, sampled = played.head(batch), played.play == "sample"
    log_b = rare = ratio = nothing = torch.zeros(len(batch), dtype=torch.double, device=lists.device)
    if logging is None:
        return torch.stack([log_prob_of_lists(pi, lists) if sampled else nothing, log_b, rare, ratio])
    b = logging.head(batch)
    whole = logsumexp(b)
    bound = whole + math.log(RARE)
    if logging.network is not None:
        log_b = (b.at(batch.action[:, None])[:, 0] - whole).double()
    if cluster is not None:
        ratio = log_marginal(pi, b, batch.action, cluster)
    if not sampled:
        rare = (b.at(top_k(pi, played.k)[1]) <= bound[:, None]).double().mean(1)
        return torch.stack([nothing, log_b, rare, ratio])
    found = reduce(pi, below=(b, bound))  # one pass for both
    return torch.stack([log_prob_of_lists(pi, lists, found.lse), log_b, found.mass.double(), ratio])
