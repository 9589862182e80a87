"""The estimates of all policies on one log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrec.estimation import value_at_5
from offrec.estimation.certify import Certification
from offrec.estimation.interval import Interval
from offrec.estimation.mean_rank import order_by_mean_rank
from offrec.estimation.options import EstimateOptions
from offrec.estimation.sharpe_ratio import sharpe_ratios
from offrec.estimation.trajectories import Trajectories
from offrec.estimation.verdict import Assessment
from offrec.evaluation import EvaluationSplit


@dataclass(frozen=True)
class PolicyEstimate:
    """The estimates of one policy."""

    name: str
    play: str  # "sample", "topk" or, for probabilities from a table, "column"
    k: int | None  # items per list; None for probabilities from a table
    trajectories: Trajectories
    assessments: dict[str, Assessment]  # by estimator
    differences: dict[str, Interval]  # by estimator: difference from the logging policy, paired over sessions
    value_at_5: float | None = None


@dataclass(frozen=True)
class EstimateResult:
    """The estimates of all policies on one log."""

    source: Path  # the log: a dataset folder or a table
    fingerprint: str  # of the dataset; empty for a table
    notes: tuple[str, ...]  # about data that was excluded when the log was prepared
    options: EstimateOptions
    has_propensities: bool
    calibration: dict[str, float]  # of π̂_b, if the log has no propensities
    logged: Interval  # what the logging policy earned per session
    sessions: int
    split: EvaluationSplit  # the sessions that were used; "all" for a table
    sessions_note: str  # why they were used
    policies: list[PolicyEstimate]
    certification: Certification | None = None  # the shares of the traffic, if they were requested

    @property
    def suggested_order(self) -> dict[str, int]:
        """Place of each policy, starting at 1, by its mean rank under value@5 and the direct method.

        Maps names to places. Contains the policies that have both numbers and whose direct estimate is not withheld.
        Empty if fewer than two policies qualify.
        """
        direct = [policy.assessments.get("direct") for policy in self.policies]
        estimates = [np.nan if one is None or one.is_withheld else one.interval.estimate for one in direct]
        values = [np.nan if policy.value_at_5 is None else policy.value_at_5 for policy in self.policies]
        places = zip(self.policies, order_by_mean_rank(values, estimates), strict=True)
        order = {policy.name: place for policy, place in places if place is not None}
        return order if len(order) > 1 else {}

    @property
    def sharpe_ratios(self) -> dict[str, dict[int, float | None]]:
        """SharpeRatio@k by estimator and k, of the policies whose estimates are shown; see `sharpe_ratio`.

        Contains the estimators with at least two such policies. Values are the estimates themselves.
        """
        ratios = {}
        for name in dict.fromkeys(name for policy in self.policies for name in policy.assessments):
            known = [policy.assessments[name] for policy in self.policies if name in policy.assessments]
            values = [one.interval.estimate for one in known if self.is_shown(one)]
            if len(values) > 1:
                ratios[name] = sharpe_ratios(values, values, self.logged.estimate)
        return ratios

    def has_interval(self, estimator: str) -> bool:
        """Return whether the interval is meaningful: without refits the direct method ignores the error of Q."""
        return estimator != "direct" or self.options.refits > 0

    def is_shown(self, assessment: Assessment) -> bool:
        """Return whether the numbers are shown: not withheld, or the estimator was chosen by name."""
        return not assessment.is_withheld or assessment.estimator in self.options.named_estimators

    def as_json(self) -> dict[str, Any]:
        """Return everything that `offrec estimate --json` prints. Infinite numbers become None."""
        options = self.options
        tree: dict[str, Any] = _finite(
            {
                "source": str(self.source),
                "fingerprint": self.fingerprint or None,
                "split": self.split,
                "sessions_note": self.sessions_note,
                "gamma": options.gamma,
                "temperature": options.temperature,
                "blend": options.blend,
                "propensities": "logged" if self.has_propensities else "estimated",
                "propensity_calibration": self.calibration,
                "logging_policy": {"sessions": self.sessions, **self.logged.as_json()},
                "policies": [self._policy_as_json(policy) for policy in self.policies],
                "sharpe_ratio": {
                    name: {str(k): ratio for k, ratio in by_k.items()} for name, by_k in self.sharpe_ratios.items()
                },
                "certification": self.certification and self.certification.as_json(),
            }
        )
        return tree

    def _policy_as_json(self, policy: PolicyEstimate) -> dict[str, Any]:
        estimates = {}
        for name, assessment in policy.assessments.items():
            is_shown = self.is_shown(assessment)
            missing = {} if self.has_interval(name) else dict.fromkeys(("low", "high", "standard_error"))
            difference = {**policy.differences[name].as_json(), **missing} if is_shown else None
            numbers = assessment.as_json(always_show=is_shown)
            estimates[name] = {**numbers, **missing, "difference_to_logging_policy": difference}
        return {
            "name": policy.name,
            "play": policy.play,
            "k": policy.k,
            value_at_5.METRIC: policy.value_at_5,
            "suggested_order": self.suggested_order.get(policy.name),
            "estimates": estimates,
        }


def _finite(tree: Any) -> Any:
    """Replace infinite numbers with None, because JSON cannot represent them."""
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree
