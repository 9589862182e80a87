"""Two policies on one log, compared twice: over seeds (paired t) and over test sessions or visitors (paired bootstrap).

A difference counts where both tests reject, so the p of a comparison is the larger of the two; where there is one seed
alone, it is the bootstrap's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from offrec.evaluation.metrics import METRICS
from offrec.reports.reading import PolicyResults, RunResult, StudyResults
from offrec.reports.statistics import Doubles, bootstrap, holm, paired_t, resampled

KS = (5, 10, 20)
RANKING = tuple(f"{name}@{k}" for k in KS for name in ("HR", "NDCG"))


@dataclass(frozen=True)
class Comparison:
    """By how much a figure of one policy is above another's."""

    gain: float
    relative: float | None  # as a share of the other's
    low: float | None  # 95 % over sessions or visitors
    high: float | None
    p_seeds: float | None
    p_sessions: float | None
    seeds: int
    corrected: float | None = None  # Holm's, within its family

    @property
    def p(self) -> float | None:
        known = [p for p in (self.p_seeds, self.p_sessions) if p is not None]
        return max(known) if known else None

    def verdict(self, level: float = 0.05) -> str:
        """ "more", "less" or "unclear"."""
        if self.corrected is None or self.corrected > level:
            return "unclear"
        return "more" if self.gain > 0 else "less"


class Comparer:
    """Resamples a log's sessions once for all that is asked of it."""

    def __init__(self, reading: StudyResults) -> None:
        self.reading = reading
        self._logs: dict[tuple[str, str], _Resampled] = {}

    def compare(self, mine: PolicyResults, other: PolicyResults, behaviour: str, figure: str) -> Comparison | None:
        a, b = mine.values(behaviour, figure), other.values(behaviour, figure)
        if not a or not b:
            return None
        one, two = _paired(mine, a, other, b)
        base = float(np.mean(list(b.values())))
        gain = float(np.mean(list(a.values()))) - base
        drawn = self._drawn(mine.group.log, figure).difference(mine, other, behaviour, figure)
        interval = bootstrap(drawn) if drawn is not None else None
        return Comparison(
            gain,
            gain / base if base else None,
            interval.low if interval else None,
            interval.high if interval else None,
            paired_t(one, two),
            interval.p if interval else None,
            len(one),
        )

    def family(
        self, entries: Sequence[PolicyResults], others: Sequence[PolicyResults | None], behaviour: str, figure: str
    ) -> list[Comparison | None]:
        """Each entry against its other, corrected for how many there are."""
        found = [
            None if other is None or other is mine else self.compare(mine, other, behaviour, figure)
            for mine, other in zip(entries, others, strict=True)
        ]
        corrected = holm([one.p if one else None for one in found])
        return [one and replace(one, corrected=p) for one, p in zip(found, corrected, strict=True)]

    def _drawn(self, log: str, figure: str) -> "_Resampled":
        kind = figure if figure in ("reward", "value") else "ranks"
        if (log, kind) not in self._logs:
            entries = [entry for entry in self.reading.entries if entry.group.log == log and entry.results]
            self._logs[log, kind] = _Resampled(entries, kind, ["all", *self.reading.behaviours(log)])
        return self._logs[log, kind]


def _paired(
    mine: PolicyResults, a: dict[int, float], other: PolicyResults, b: dict[int, float]
) -> tuple[list[float], list[float]]:
    """Repeat by repeat. A policy without a seed is the same in each."""
    if mine.group.kind != "learner" and len(a) == 1:
        a = dict.fromkeys(b, next(iter(a.values())))
    if other.group.kind != "learner" and len(b) == 1:
        b = dict.fromkeys(a, next(iter(b.values())))
    common = sorted(set(a) & set(b))
    return [a[seed] for seed in common], [b[seed] for seed in common]


class _Resampled:
    """The figures of all policies on a log in every resample of its sessions (or of the shop's visitors)."""

    def __init__(self, entries: Sequence[PolicyResults], kind: str, behaviours: Sequence[str]) -> None:
        self.entries, self.kind, self.behaviours = entries, kind, behaviours
        self.column: dict[tuple[int, str, str], int] = {}

    def difference(self, mine: PolicyResults, other: PolicyResults, behaviour: str, figure: str) -> Doubles | None:
        key = behaviour if self.kind == "ranks" else "all"
        drawn = self._drawn
        try:
            one, two = (self.column[id(entry), key, figure] for entry in (mine, other))
        except KeyError:
            return None
        return np.asarray(drawn[:, one] - drawn[:, two])

    @cached_property
    def _drawn(self) -> Doubles:
        sums: list[Doubles] = []
        counts: list[Doubles] = []
        for entry in self.entries:
            for key, (top, bottom) in self._of(entry).items():
                self.column[id(entry), *key] = len(sums)
                sums.append(top)
                counts.append(bottom)
        if not sums:
            return np.zeros((0, 0))
        return resampled(np.stack(sums, 1), np.stack(counts, 1))

    def _of(self, entry: PolicyResults) -> dict[tuple[str, str], tuple[Doubles, Doubles]]:
        """(behaviour, figure) → what each session adds, and how many events it has; means over seeds."""
        results = [result for result in entry.results if result.facts.get("shop" if self.kind == "reward" else "test")]
        if not results or self.kind == "value":
            return {}
        if self.kind == "reward":
            earned = np.stack([result.array("rewards") for result in results]).astype(np.float64).mean(0)
            return {("all", "reward"): (earned, np.ones_like(earned))}
        parts: dict[tuple[str, str], list[tuple[Doubles, Doubles]]] = {}
        for dataset in dict.fromkeys(result.run.dataset for result in self._every()):
            for key, part in self._of_dataset(dataset, [r for r in results if r.run.dataset == dataset]).items():
                parts.setdefault(key, []).append(part)
        return {key: (_joined(found, 0), _joined(found, 1)) for key, found in parts.items()}

    def _of_dataset(self, dataset: str, mine: list[RunResult]) -> dict[tuple[str, str], tuple[Doubles, Doubles]]:
        """Zero where the policy has no run on it."""
        session, behaviour = next(result for result in self._every() if result.run.dataset == dataset).events
        found: dict[tuple[str, str], tuple[Doubles, Doubles]] = {}
        n = int(session.max()) + 1
        ranks = np.stack([result.array("ranks") for result in mine]).astype(np.int64) if mine else None
        for index, name in enumerate(self.behaviours, start=-1):  # "all" comes first
            chosen = np.flatnonzero(behaviour == index) if index >= 0 else np.arange(len(session))
            events = np.bincount(session[chosen], minlength=n).astype(np.float64)
            for figure in RANKING:
                kind, k = figure.split("@")
                if ranks is None:
                    found[name, figure] = (np.zeros(n), np.zeros(n))
                    continue
                gained = METRICS[kind].compute(ranks[:, chosen], int(k)).mean(0)
                summed = np.bincount(session[chosen], weights=gained, minlength=n).astype(np.float64)
                found[name, figure] = (summed, events)
        return found

    def _every(self) -> list[RunResult]:
        return [result for entry in self.entries for result in entry.results if result.facts.get("test")]


def _joined(parts: list[tuple[Doubles, Doubles]], which: int) -> Doubles:
    return np.concatenate([part[which] for part in parts])
