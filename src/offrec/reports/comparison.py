"""Compare two policies on one log: a paired t-test over seeds and a paired bootstrap over sessions or visitors.

A difference counts only if both tests reject. The p-value of a comparison is therefore the larger of the two; with one
seed it is the bootstrap's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from offrec.evaluation.metrics import METRICS
from offrec.reports.reading import PolicyResults, RunResult, StudyResults
from offrec.reports.statistics import Doubles, bootstrap_interval, holm, paired_t, resample

CUTOFFS = (5, 10, 20)
RANKING_METRICS = tuple(f"{name}@{k}" for k in CUTOFFS for name in ("HR", "NDCG"))
LEVEL = 0.05
Sign = Literal["more", "less", "unclear"]
PerSession = tuple[Doubles, Doubles]  # contribution of each session to a metric, and its number of events


@dataclass(frozen=True)
class Comparison:
    """Difference in a metric between two policies.

    Attributes:
        gain: The difference of the means.
        relative: The difference as a share of the other's mean.
        low: Lower end of the 95 % interval over sessions or visitors.
        high: Upper end of that interval.
        p_seeds: p-value of the t-test over seeds.
        p_sessions: p-value of the bootstrap over sessions or visitors.
        seeds: Number of seeds that both have.
        corrected: The larger p-value after Holm's correction within its family.
    """

    gain: float
    relative: float | None
    low: float | None
    high: float | None
    p_seeds: float | None
    p_sessions: float | None
    seeds: int
    corrected: float | None = None

    @property
    def p(self) -> float | None:
        known = [p for p in (self.p_seeds, self.p_sessions) if p is not None]
        return max(known) if known else None

    def sign(self, level: float = LEVEL) -> Sign:
        """Return whether the difference is significant, and its sign."""
        if self.corrected is None or self.corrected > level:
            return "unclear"
        return "more" if self.gain > 0 else "less"


class Comparer:
    """Compares policies. The sessions of a log are resampled once for all comparisons."""

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self._resampled: dict[tuple[str, str], _ResampledMetrics] = {}

    def compare(self, policy: PolicyResults, other: PolicyResults, behaviour: str, metric: str) -> Comparison | None:
        """Compare a metric of two policies of one log; None if the metric is missing for one of them."""
        a, b = policy.values(behaviour, metric), other.values(behaviour, metric)
        if not a or not b:
            return None
        first, second = _pair(policy, a, other, b)
        base = float(np.mean(list(b.values())))
        gain = float(np.mean(list(a.values()))) - base
        differences = self._metrics(policy.group.log, metric).difference(policy, other, behaviour, metric)
        interval = bootstrap_interval(differences) if differences is not None else None
        return Comparison(
            gain,
            gain / base if base else None,
            interval.low if interval else None,
            interval.high if interval else None,
            paired_t(first, second),
            interval.p if interval else None,
            len(first),
        )

    def compare_family(
        self,
        policies: Sequence[PolicyResults],
        others: Sequence[PolicyResults | None],
        behaviour: str,
        metric: str,
    ) -> list[Comparison | None]:
        """Compare each policy with its opponent and correct the p-values for the number of comparisons."""
        comparisons = [
            None if other is None or other is policy else self.compare(policy, other, behaviour, metric)
            for policy, other in zip(policies, others, strict=True)
        ]
        corrected = holm([one.p if one else None for one in comparisons])
        return [one and replace(one, corrected=p) for one, p in zip(comparisons, corrected, strict=True)]

    def _metrics(self, log: str, metric: str) -> "_ResampledMetrics":
        kind = metric if metric in ("reward", "value") else "ranks"
        if (log, kind) not in self._resampled:
            every = (*self.results.policies, *self.results.sampled)
            policies = [policy for policy in every if policy.group.log == log and policy.results]
            self._resampled[log, kind] = _ResampledMetrics(policies, kind, ["all", *self.results.behaviours(log)])
        return self._resampled[log, kind]


def _pair(
    policy: PolicyResults, a: dict[int, float], other: PolicyResults, b: dict[int, float]
) -> tuple[list[float], list[float]]:
    """Pair the values by seed. A policy without training has the same value for every seed."""
    if policy.group.kind != "learner" and len(a) == 1:
        a = dict.fromkeys(b, next(iter(a.values())))
    if other.group.kind != "learner" and len(b) == 1:
        b = dict.fromkeys(a, next(iter(b.values())))
    common = sorted(set(a) & set(b))
    return [a[seed] for seed in common], [b[seed] for seed in common]


class _ResampledMetrics:
    """The metrics of all policies of a log in every resample of its sessions, or of the shop's visitors."""

    def __init__(self, policies: Sequence[PolicyResults], kind: str, behaviours: Sequence[str]) -> None:
        self.policies, self.kind, self.behaviours = policies, kind, behaviours
        self.column: dict[tuple[int, str, str], int] = {}

    def difference(self, policy: PolicyResults, other: PolicyResults, behaviour: str, metric: str) -> Doubles | None:
        key = behaviour if self.kind == "ranks" else "all"
        resampled = self._resampled
        try:
            first, second = (self.column[id(one), key, metric] for one in (policy, other))
        except KeyError:
            return None
        return np.asarray(resampled[:, first] - resampled[:, second])

    @cached_property
    def _resampled(self) -> Doubles:
        sums: list[Doubles] = []
        counts: list[Doubles] = []
        for policy in self.policies:
            for key, (top, bottom) in self._per_session(policy).items():
                self.column[id(policy), *key] = len(sums)
                sums.append(top)
                counts.append(bottom)
        if not sums:
            return np.zeros((0, 0))
        return resample(np.stack(sums, 1), np.stack(counts, 1))

    def _per_session(self, policy: PolicyResults) -> dict[tuple[str, str], PerSession]:
        """Return the contribution of each session to each (behaviour, metric), averaged over seeds."""
        needed = "shop" if self.kind == "reward" else "test"
        results = [result for result in policy.results if result.facts.get(needed)]
        if not results or self.kind == "value":
            return {}
        if self.kind == "reward":
            if any(has_fewer_visitors(result) for result in results):
                return {}
            rewards = mean_rewards(results)
            return {("all", "reward"): (rewards, np.ones_like(rewards))}
        parts: dict[tuple[str, str], list[PerSession]] = {}
        for dataset in dict.fromkeys(result.run.dataset for result in self._all_results()):
            of_dataset = [result for result in results if result.run.dataset == dataset]
            for key, part in self._per_session_of_dataset(dataset, of_dataset).items():
                parts.setdefault(key, []).append(part)
        return {key: (_concatenate(several, 0), _concatenate(several, 1)) for key, several in parts.items()}

    def _per_session_of_dataset(self, dataset: str, results: list[RunResult]) -> dict[tuple[str, str], PerSession]:
        """Sum the metrics by session; zero if the policy has no run on the dataset."""
        session, behaviour = next(r for r in self._all_results() if r.run.dataset == dataset).events
        added: dict[tuple[str, str], PerSession] = {}
        n = int(session.max()) + 1
        ranks = np.stack([result.array("ranks") for result in results]).astype(np.int64) if results else None
        for index, name in enumerate(self.behaviours, start=-1):  # "all" comes first
            events = np.flatnonzero(behaviour == index) if index >= 0 else np.arange(len(session))
            counts = np.bincount(session[events], minlength=n).astype(np.float64)
            for metric in RANKING_METRICS:
                kind, k = metric.split("@")
                if ranks is None:
                    added[name, metric] = (np.zeros(n), np.zeros(n))
                    continue
                per_event = METRICS[kind].compute(ranks[:, events], int(k)).mean(0)
                sums = np.bincount(session[events], weights=per_event, minlength=n).astype(np.float64)
                added[name, metric] = (sums, counts)
        return added

    def _all_results(self) -> list[RunResult]:
        return [result for policy in self.policies for result in policy.results if result.facts.get("test")]


def has_fewer_visitors(result: RunResult) -> bool:
    """Return whether a shop policy served only the first of the visitors, as `informed` does."""
    shop = result.facts["shop"]
    return bool(shop["sessions"] < shop["population"])


def mean_rewards(results: Sequence[RunResult]) -> Doubles:
    """[visitors] rewards, averaged over seeds."""
    return np.asarray(np.stack([result.array("rewards") for result in results]).astype(np.float64).mean(0))


def _concatenate(parts: list[PerSession], which: int) -> Doubles:
    return np.concatenate([part[which] for part in parts])
