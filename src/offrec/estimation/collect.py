"""Collect the trajectories of a policy: one pass over the logged states that streams the catalogue."""

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
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.estimation.list_policy import ListPolicy, log_prob_of_lists
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.marginal import CLUSTERS, cluster_items, log_cluster_ratio
from offrec.estimation.trajectories import MAX_LOG_WEIGHT, Trajectories
from offrec.models.network import Network, NetworkOptions
from offrec.training.loop import TrainingOptions
from offrec.types import Batch, Doubles, Floats, Longs

BATCH_SIZE = 1024
MIN_SHARE = 1e-30  # assumed share of an item that the log never shows

Progress = Callable[[int, int], None]  # (decisions processed, total)


@dataclass(frozen=True)
class LoggingModel:
    """The logging policy: its estimate π̂_b or, if the log has propensities, the share of each item."""

    network: Network | None  # π̂_b, if the log has no propensities
    log_share: Tensor | None  # [A] log share of each item in the training lists, if the log has propensities
    calibration: dict[str, float]  # of π̂_b

    def head(self, batch: Batch) -> Head:
        """Return the head of π̂_b(·|s), or of the overall share of each item in the lists."""
        if self.network is not None:
            head: Head = self.network(batch)
            return head
        assert self.log_share is not None
        empty = self.log_share.new_zeros(len(batch), 0)
        return Head(empty, self.log_share.new_zeros(len(self.log_share), 0), self.log_share)


def load_logging_model(
    dataset: Dataset,
    network: NetworkOptions,
    training: TrainingOptions,
    device: torch.device,
    console: Console,
    seed: int = 0,
) -> LoggingModel:
    """Count the shares of items in served lists or, for a log of picks, load or fit π̂_b."""
    decisions = LoggedDecisions.load(dataset, "train")
    if decisions.has_lists:
        count = np.bincount(decisions.lists.ravel(), minlength=dataset.n_items + 1)[: dataset.n_items]
        share = torch.from_numpy(count / max(1, count.sum())).float()
        return LoggingModel(None, share.clamp(min=MIN_SHARE).log().to(device), {})
    fitted = logging_policy.load_or_fit(dataset, network, training, seed, device, console, need="network")
    calibration = {name.removeprefix("network."): value for name, value in fitted.calibration.items()}
    return LoggingModel(fitted.network, None, calibration)


@torch.no_grad()
def collect_trajectories(
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    logging: LoggingModel | None,
    *,
    with_clusters: bool = False,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Trajectories:
    """Compute all columns of the trajectories except Q and V.

    Args:
        list_policy: The policy to evaluate. If it shows its top k, `log_pi` is None.
        decisions: The logged decisions of a split.
        rewards: Reward of every event of the dataset.
        logging: The logging policy; None if only rewards and the policy's own probabilities are needed.
        with_clusters: Whether to compute the ratios of item clusters too. They need π̂_b and two more passes.
        batch_size: Decisions per batch.
        progress: Called after every batch.

    Returns:
        The trajectories.

    Raises:
        InputError: If the policy and the log have different catalogues.
    """
    _check_catalogue(list_policy, decisions.dataset)
    trajectories = reward_trajectories(decisions, rewards)
    device, is_sampled = list_policy.policy.device, list_policy.play == "sample"
    lists = torch.from_numpy(decisions.lists).to(device)
    replay = decisions.replay(decisions.transitions(rewards, 0.0), list_policy.policy.history, "exact", device)
    cluster = None
    if with_clusters and is_sampled and logging is not None and logging.network is not None:
        table = logging.network.table
        cluster = cluster_items(table, min(CLUSTERS, len(table)))
    columns, done = np.zeros((4, trajectories.decisions)), 0
    for batch in replay.batches(batch_size):
        row = batch.event - decisions.first
        values = _batch_columns(list_policy, batch, lists[row], logging, cluster)
        columns[:, row.cpu().numpy()] = values.cpu().numpy()
        done += len(batch)
        if progress is not None:
            progress(done, trajectories.decisions)
    log_pi, log_b, rare_mass, log_ratio = columns
    if decisions.has_lists:
        log_b = decisions.log_propensity
    is_known = decisions.has_lists or logging is not None
    assert is_known or list_policy.blend == 1  # a blend needs the logging policy
    blend = list_policy.blend_log_probabilities
    log_pi = blend(log_pi, log_b) if is_sampled else log_pi
    rare_mass = list_policy.blend * rare_mass
    if logging is not None and decisions.has_lists and is_sampled:
        rare_mass = rare_beyond_logging(log_pi, log_b, (decisions.lists < decisions.dataset.n_items).sum(1))
    return replace(
        trajectories,
        log_pi=log_pi if is_sampled else None,
        log_b=log_b if is_known else None,
        rare_mass=None if logging is None else rare_mass,
        log_cluster_ratio=None if cluster is None else blend(log_ratio, np.zeros_like(log_ratio)),
    )


def rare_beyond_logging(log_pi: Doubles, log_b: Doubles, lengths: Longs) -> Doubles:
    """[D] values whose mean is the probability of π for rare lists, beyond that of the logging policy.

        E_b[(ρ − 1)₊ 1[b ≤ RARE^k]] + (1 − E_b[ρ])₊        ρ = π / b, lists of k items

    The second term is the probability of lists that the log does not contain at all. The policy that served the log
    has 0, however rare its lists are.

    Args:
        log_pi: [D] log π of the logged lists.
        log_b: [D] their log propensities.
        lengths: [D] their numbers of items.
    """
    ratio = np.exp(np.minimum(log_pi - log_b, MAX_LOG_WEIGHT))
    is_rare = log_b <= lengths * math.log(RARE)
    missing = max(0.0, 1.0 - float(ratio.mean())) if len(ratio) else 0.0
    return np.asarray(np.where(is_rare, np.maximum(ratio - 1, 0.0), 0.0) + missing)


def reward_trajectories(decisions: LoggedDecisions, rewards: Floats) -> Trajectories:
    """Return the decisions and their rewards, without any column that depends on a policy."""
    reward, by_behaviour = decisions.rewards(rewards)
    return Trajectories(decisions.offsets, reward, reward_by_behaviour=by_behaviour)


def _check_catalogue(list_policy: ListPolicy, dataset: Dataset) -> None:
    """Raise `InputError` unless the policy and the dataset number their items in the same way."""
    policy = list_policy.policy
    if policy.data_hash != dataset.meta["data_hash"] and policy.vocabulary != dataset.vocabulary:
        raise InputError(
            f"{dataset.path} ({dataset.fingerprint}) has a different catalogue than {policy.name}; "
            "prepare the log again with --catalogue RUN."
        )


def _batch_columns(
    list_policy: ListPolicy, batch: Batch, lists: Tensor, logging: LoggingModel | None, cluster: Tensor | None
) -> Tensor:
    """[4, B] log π and log π̂_b of the logged list, π's mass on rare items, and the log ratio of the cluster."""
    pi, is_sampled = list_policy.head(batch), list_policy.play == "sample"
    log_b = rare = ratio = zeros = torch.zeros(len(batch), dtype=torch.double, device=lists.device)
    if logging is None:
        return torch.stack([log_prob_of_lists(pi, lists) if is_sampled else zeros, log_b, rare, ratio])
    b = logging.head(batch)
    lse = logsumexp(b)
    bound = lse + math.log(RARE)
    if logging.network is not None:
        log_b = (b.at(batch.action[:, None])[:, 0] - lse).double()
    if cluster is not None:
        ratio = log_cluster_ratio(pi, b, batch.action, cluster)
    if not is_sampled:
        rare = (b.at(top_k(pi, list_policy.k)[1]) <= bound[:, None]).double().mean(1)
        return torch.stack([zeros, log_b, rare, ratio])
    sums = reduce(pi, below=(b, bound))  # one pass gives the logsumexp and the mass
    return torch.stack([log_prob_of_lists(pi, lists, sums.lse), log_b, sums.mass.double(), ratio])
