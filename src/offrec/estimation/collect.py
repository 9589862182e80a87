"""Collect the trajectories of a policy: one pass over the logged states that streams the catalogue."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from offrec import logging_policy
from offrec.algorithms.diagnostics import RARE
from offrec.catalogue import Head, logsumexp, reduce, top_k
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import Replay
from offrec.errors import InputError
from offrec.estimation.list_policy import ListPolicy, log_prob_of_lists
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.marginal import CLUSTERS, cluster_items, log_cluster_ratio
from offrec.estimation.state_classes import classify_states
from offrec.estimation.trajectories import MAX_LOG_WEIGHT, Trajectories, blended
from offrec.models.network import Network, NetworkOptions
from offrec.policy import Policy
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


def check_logging_splits(dataset: Dataset) -> None:
    """Raise `InputError` if a split that π̂_b is fitted to has no events."""
    for split in ("train", "validation"):
        if not dataset.split(split).events:
            raise InputError(
                f"The {split} split of {dataset.path} has no events, so its propensities cannot be fitted; prepare a "
                "larger log, or one with propensities."
            )


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


@dataclass(frozen=True)
class ColumnPass:
    """A pass over the logged states that computes the columns of trajectories, batch by batch.

    Args:
        list_policy: The policy to evaluate.
        decisions: The logged decisions of a split.
        logging: The logging policy, if it is needed.
        cluster: [A] the cluster of each item, if ratios of clusters are needed.
        planned: [D, k] the policy's lists, if they depend on more than the picks.
        batch_size: Decisions per batch.
    """

    list_policy: ListPolicy
    decisions: LoggedDecisions
    logging: LoggingModel | None
    cluster: Tensor | None = None
    planned: Tensor | None = None
    batch_size: int = BATCH_SIZE

    @cached_property
    def replay(self) -> Replay:
        """The logged states."""
        policy = self.list_policy.policy
        return self.decisions.replay(self.decisions.transitions(None, 0.0), policy.history, "exact", policy.device)

    @cached_property
    def batches(self) -> list[Longs]:
        """The states of each batch."""
        return list(self.replay.plan_by_length(self.batch_size))

    @torch.no_grad()
    def run(self, numbers: Iterable[int]) -> Iterator[tuple[Longs, Doubles]]:
        """Yield the decisions and the columns [4, B] of some batches."""
        lists = torch.from_numpy(self.decisions.lists).to(self.list_policy.policy.device)
        for number in numbers:
            batch = self.replay.batch(self.batches[number])
            row = batch.event - self.decisions.first
            best = None if self.planned is None else self.planned[row]
            values = _batch_columns(self.list_policy, batch, lists[row], self.logging, self.cluster, best)
            yield row.cpu().numpy(), values.cpu().numpy()


class Passes(Protocol):
    """Runs passes over the log: `offrec.estimation.passes` in this process, or on several machines."""

    def columns(self, one: ColumnPass, progress: Progress | None) -> Doubles: ...

    def best_lists(self, policy: Policy, decisions: LoggedDecisions, k: int) -> Tensor: ...


@torch.no_grad()
def collect_trajectories(
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    logging: LoggingModel | None,
    *,
    match_lists: bool = False,
    with_clusters: bool = False,
    with_states: bool = False,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
    passes: Passes | None = None,
) -> Trajectories:
    """Compute all columns of the trajectories except Q and V.

    Args:
        list_policy: The policy to evaluate. If it shows its top k, `log_pi` is None unless `match_lists`.
        decisions: The logged decisions of a split.
        rewards: Reward of every event of the dataset.
        logging: The logging policy; None if only rewards and the policy's own probabilities are needed.
        match_lists: Whether to compute the probabilities of a policy that shows its top k: `log_pi` is 0 for logged
            lists that equal its top k in the same order, and −∞ for all others. Blends need them.
        with_clusters: Whether to compute the ratios of item clusters too. They need π̂_b and two more passes.
        with_states: Whether to compute the classes of states too, which state-marginal weights need.
        batch_size: Decisions per batch.
        progress: Called after every batch.
        passes: Runs the passes over the log; by default in this process.

    Returns:
        The trajectories.

    Raises:
        InputError: If the policy and the log have different catalogues, or lists of different lengths where
            probabilities of top-k lists are needed.
    """
    if passes is None:
        from offrec.estimation.passes import LocalPasses  # it imports this module

        passes = LocalPasses()
    _check_catalogue(list_policy, decisions.dataset)
    trajectories = reward_trajectories(decisions, rewards)
    if with_states:
        state = classify_states(trajectories.offsets, decisions.picked_item, trajectories.reward)
        trajectories = replace(trajectories, state=state)
    is_sampled = list_policy.play == "sample"
    has_probabilities = is_sampled or match_lists or list_policy.blend < 1
    if has_probabilities and not is_sampled and list_policy.k != decisions.k:
        raise InputError(
            f"The probabilities of top-{list_policy.k} lists are unknown, because the logged lists have {decisions.k} "
            f"items; use -k {decisions.k}."
        )
    cluster = None
    if with_clusters and is_sampled and logging is not None and logging.network is not None:
        table = logging.network.table
        cluster = cluster_items(table, min(CLUSTERS, len(table)))
    planned = None
    if has_probabilities and not is_sampled and list_policy.policy.learns_from_lists:
        planned = passes.best_lists(list_policy.policy, decisions, list_policy.k)
    whole = ColumnPass(list_policy, decisions, logging, cluster, planned, batch_size)
    log_pi, log_b, rare_mass, log_ratio = passes.columns(whole, progress)
    if decisions.has_lists:
        log_b = decisions.log_propensity
    is_known = decisions.has_lists or logging is not None
    if logging is not None and decisions.has_lists and has_probabilities:
        rare_mass = rare_beyond_logging(log_pi, log_b, (decisions.lists < decisions.dataset.n_items).sum(1))
    alone = replace(
        trajectories,
        log_pi=log_pi if has_probabilities else None,
        log_b=log_b if is_known else None,
        rare_mass=None if logging is None else rare_mass,
        log_ratios={} if cluster is None else {"clusters": log_ratio},
    )
    return blended(alone, list_policy.blend)


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
    list_policy: ListPolicy,
    batch: Batch,
    lists: Tensor,
    logging: LoggingModel | None,
    cluster: Tensor | None,
    planned: Tensor | None = None,
) -> Tensor:
    """[4, B] log π and log π̂_b of the logged list, π's mass on rare items, and the log ratio of the cluster.

    `planned`: the policy's best lists [B, K], if they depend on more than the picks.
    """
    pi, is_sampled = list_policy.head(batch), list_policy.play == "sample"
    log_b = rare = ratio = torch.zeros(len(batch), dtype=torch.double, device=lists.device)
    best = planned if planned is not None or is_sampled else top_k(pi, list_policy.k)[1]
    shown = lists if best is None else best
    if logging is None:
        log_pi = log_prob_of_lists(pi, lists) if is_sampled else _log_match(shown, lists)
        return torch.stack([log_pi, log_b, rare, ratio])
    b = logging.head(batch)
    lse = logsumexp(b)
    bound = lse + math.log(RARE)
    if logging.network is not None:
        log_b = (b.at(batch.action[:, None])[:, 0] - lse).double()
    if cluster is not None:
        ratio = log_cluster_ratio(pi, b, batch.action, cluster)
    if not is_sampled:
        rare = (b.at(shown) <= bound[:, None]).double().mean(1)
        return torch.stack([_log_match(shown, lists), log_b, rare, ratio])
    sums = reduce(pi, below=(b, bound))  # one pass gives the logsumexp and the mass
    return torch.stack([log_prob_of_lists(pi, lists, sums.lse), log_b, sums.mass.double(), ratio])


def _log_match(shown: Tensor, lists: Tensor) -> Tensor:
    """[B] log probability of logged lists [B, K] under a policy that certainly shows `shown`: 0 or −∞."""
    if shown.shape != lists.shape:  # the caller does not need these probabilities
        return torch.zeros(len(lists), dtype=torch.double, device=lists.device)
    return torch.where((shown == lists).all(1), 0.0, -math.inf).double()
