"""Ratios of parts of lists for logs whose serving policy is available: see `list_ratios`.

The log has the propensity of each list, but not that of its parts. The policy that served it has: it is applied to the
logged states again, and its list probabilities must equal the logged propensities.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from offrec.catalogue.lists import position_log_probs
from offrec.catalogue.reference import logits
from offrec.data.replay import Replay
from offrec.errors import InputError
from offrec.estimation.cluster_ratios import expected_of_cluster, list_cluster_log_prob
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.list_ratios import MAX_SET, inclusion, prefix_log_ratio, set_log_prob, with_mean_1
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.types import Doubles, Longs

MAX_LOGITS = 4_000_000  # logits per batch
TOLERANCE = 0.01  # of logged log propensities, for rounding in the log and other devices


@dataclass(frozen=True)
class ListProbabilities:
    """Log-probabilities of the logged lists under one policy that samples without replacement."""

    places: Doubles  # [D, k] of each item given the items before it
    sets: Doubles | None  # [D] of the list in any order; None for long lists
    picks: Doubles  # [D] of the pick being in the list; 0 if nothing was picked
    included: Doubles  # [D, k] of each item being in the list
    clusters: Doubles | None = None  # [D] of the clusters of the list, place by place
    cluster_items: Doubles | None = None  # [D, k] log of the expected number of items of each item's cluster
    cluster: Tensor | None = None  # [A] the cluster of each item; without it the last two are None

    @property
    def lists(self) -> Doubles:
        """[D] log-probability of the ordered list."""
        return np.asarray(self.places.sum(1))


@dataclass(frozen=True)
class ProbabilityPass:
    """A pass over the logged states that computes the probabilities of the logged lists, batch by batch.

    Args:
        list_policy: The policy, which samples its lists.
        decisions: The logged decisions of a split; all lists have k items.
        cluster: [A] the cluster of each item, if probabilities of clusters are needed.
    """

    list_policy: ListPolicy
    decisions: LoggedDecisions
    cluster: Tensor | None = None

    @cached_property
    def replay(self) -> Replay:
        """The logged states."""
        policy = self.list_policy.policy
        return self.decisions.replay(self.decisions.transitions(None, 0.0), policy.history, "exact", policy.device)

    @cached_property
    def batches(self) -> list[Longs]:
        """The states of each batch."""
        return list(self.replay.plan_by_length(max(1, MAX_LOGITS // self.list_policy.policy.n_items)))

    @torch.no_grad()
    def run(self, numbers: Iterable[int]) -> Iterator[tuple[Longs, tuple[Doubles, ...]]]:
        """Yield the decisions of some batches, and the first fields of `ListProbabilities` for them."""
        k, lists = self.decisions.k, torch.from_numpy(self.decisions.lists)
        pick = torch.from_numpy(self.decisions.picked_item)
        for number in numbers:
            batch = self.replay.batch(self.batches[number])
            row = (batch.event - self.decisions.first).cpu()
            z = logits(self.list_policy.head(batch)).double().cpu()
            shown, item = lists[row], pick[row]
            others = z.scatter(1, shown, -torch.inf).logsumexp(1)
            places = position_log_probs(z.gather(1, shown), others)
            sets = set_log_prob(z.gather(1, shown), others) if k <= MAX_SET else torch.zeros(len(row)).double()
            included = inclusion(z, k)
            picks = torch.where(item >= 0, included.gather(1, item.clamp(min=0)[:, None])[:, 0].log(), 0.0)
            columns = [places, sets, picks, included.gather(1, shown).log()]
            if self.cluster is not None:
                expected = expected_of_cluster(included, shown, self.cluster)
                columns += [list_cluster_log_prob(z, shown, self.cluster), expected.log()]
            yield row.numpy(), tuple(column.numpy() for column in columns)

    def collect(self, results: Iterable[tuple[Longs, tuple[Doubles, ...]]]) -> ListProbabilities:
        """Put what `run` yields for all batches into the order of the log."""
        count, k = len(self.decisions), self.decisions.k
        columns = [np.zeros((count, k)), np.zeros(count), np.zeros(count), np.zeros((count, k))]
        if self.cluster is not None:
            columns += [np.zeros(count), np.zeros((count, k))]
        for row, values in results:
            for column, part in zip(columns, values, strict=True):
                column[row] = part
        places, sets, picks, included = columns[:4]
        one = ListProbabilities(places, sets if k <= MAX_SET else None, picks, included)
        if self.cluster is None:
            return one
        return replace(one, clusters=columns[4], cluster_items=columns[5], cluster=self.cluster)


def list_probabilities(
    list_policy: ListPolicy, decisions: LoggedDecisions, cluster: Tensor | None = None
) -> ListProbabilities:
    """Compute the probabilities of the logged lists and of their parts; arguments as in `ProbabilityPass`."""
    one = ProbabilityPass(list_policy, decisions, cluster)
    return one.collect(one.run(range(len(one.batches))))


def log_ratios(pi: ListProbabilities, b: ListProbabilities, decisions: LoggedDecisions) -> dict[str, Doubles]:
    """Return the log ratios of parts of lists by weighting, each [D]."""
    is_pick = decisions.lists == decisions.picked_item[:, None]
    place = np.where(is_pick.any(1), is_pick.argmax(1), -1)
    tensors = (torch.from_numpy(one) for one in (pi.places, b.places, place))
    ratios = {"prefixes": prefix_log_ratio(*tensors).numpy(), "picks": with_mean_1(pi.picks - b.picks)}
    if pi.sets is not None and b.sets is not None:
        ratios["sets"] = pi.sets - b.sets
    if pi.clusters is not None and b.clusters is not None:
        at_pick = np.take_along_axis(place_log_ratios(pi, b)["pick_clusters"], place.clip(min=0)[:, None], 1)[:, 0]
        ratios["clusters"] = pi.clusters - b.clusters
        ratios["pick_clusters"] = with_mean_1(np.where(place >= 0, at_pick, 0.0))
    return ratios


def place_log_ratios(pi: ListProbabilities, b: ListProbabilities) -> dict[str, Doubles]:
    """Return the log ratios of each place by weighting, each [D, k], for `control_variates`."""
    ratios = {"prefixes": np.cumsum(pi.places - b.places, 1), "picks": pi.included - b.included}
    if pi.cluster_items is not None and b.cluster_items is not None:
        ratios["pick_clusters"] = pi.cluster_items - b.cluster_items
    return ratios


def served_probabilities(
    served: ListPolicy,
    decisions: LoggedDecisions,
    compute: Callable[[ListPolicy, LoggedDecisions, Tensor | None], ListProbabilities] = list_probabilities,
    cluster: Tensor | None = None,
) -> ListProbabilities:
    """Compute the probabilities of the policy that served a log, and compare them with the logged propensities.

    Args:
        served: The policy that served the log.
        decisions: The logged decisions.
        compute: Computes the probabilities.
        cluster: [A] the cluster of each item, if probabilities of clusters are needed.

    Raises:
        InputError: If the log has no served lists of equal length, or its propensities are not those of the policy.
    """
    name = served.policy.name
    if not decisions.has_lists or (decisions.lists >= decisions.dataset.n_items).any():
        raise InputError(
            f"--served needs lists of equal length with propensities, which {decisions.dataset.path} lacks; omit it."
        )
    probabilities = compute(served, decisions, cluster)
    distance = np.abs(probabilities.lists - decisions.log_propensity)
    wrong = int((~(distance <= TOLERANCE)).sum())  # a list of items that the policy lacks may have NaN
    if wrong:
        raise InputError(
            f"--served {name}: {wrong} of {len(distance)} logged propensities differ from those of {name} sampled at "
            f"temperature {served.temperature:g}; name the policy that served this log, or omit --served."
        )
    return probabilities
