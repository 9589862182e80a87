"""Estimate policies from outside offrec: their probabilities of the logged decisions are columns of a table."""

from collections.abc import Sequence
from pathlib import Path

from offrec.console import Console
from offrec.data.decision_table import LoggedPolicy, TableColumns, read_decision_table
from offrec.errors import InputError
from offrec.estimation.estimate import certify_estimates, difference_to_log, logged_value
from offrec.estimation.estimators import ESTIMATORS, get_estimator
from offrec.estimation.options import ALL, WEIGHTED, EstimateOptions
from offrec.estimation.result import EstimateResult, PolicyEstimate
from offrec.estimation.trajectories import Trajectories, blended
from offrec.estimation.verdict import assess

NOTE = "All rows of the table are used. If a policy was trained on them, its estimate may be too high."


def estimate_table(
    paths: str | Path | Sequence[str | Path],
    probabilities: Sequence[str] = (),
    options: EstimateOptions | None = None,
    *,
    columns: TableColumns | None = None,
    policies: Sequence[LoggedPolicy] = (),
    console: Console | None = None,
) -> EstimateResult:
    """Estimate what policies would earn per session, from a table with their probabilities of the logged decisions.

    Args:
        paths: One or more tables (CSV, JSON lines or Parquet). Each row is a decision.
        probabilities: The columns with the probability that each policy gives to what was shown.
        options: Options of the estimate. Those about networks, lists and splits do not apply.
        columns: The names of the other columns.
        policies: Policies that are known from their own logs.
        console: Shows the progress; silent by default.

    Returns:
        For each policy and estimator the estimate, its interval, its diagnostics and a verdict.

    Raises:
        InputError: If a column does not exist, a value is missing or out of range, or an estimator needs more than
            probabilities.

    Example:
        >>> result = offrec.estimate_table("decisions.parquet", ["new_policy"])
        >>> result.policies[0].assessments["self_normalised"].verdict
        'trust'
    """
    options, console = options or EstimateOptions(), console or Console(quiet=True)
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    estimators = _estimators(options)
    table = read_decision_table(paths, probabilities, columns, dict(options.reward), policies)
    estimates = []
    for name, log_pi in table.log_probability.items():
        is_averaged = name in table.averaged
        alone = Trajectories(table.offsets, table.reward, log_pi, table.log_propensity, is_averaged=is_averaged)
        estimates.append(_estimate_policy(name, alone, estimators, options))
    certification = certify_estimates(estimates, options, console) if options.certify else None
    return EstimateResult(
        source=Path(paths[0]),
        fingerprint="",
        notes=table.notes,
        options=options,
        has_propensities=True,
        calibration={},
        logged=logged_value(Trajectories(table.offsets, table.reward), options),
        sessions=len(table.offsets) - 1,
        split="all",
        sessions_note=NOTE,
        policies=estimates,
        certification=certification,
    )


def _estimate_policy(
    name: str, alone: Trajectories, estimators: Sequence[str], options: EstimateOptions
) -> PolicyEstimate:
    steps = blended(alone, options.blend)
    assessments = {
        one: assess(one, steps, gamma=options.gamma, cap=options.cap, seed=options.seed) for one in estimators
    }
    differences = {one: difference_to_log(one, steps, options) for one in estimators}
    return PolicyEstimate(name, "column", None, steps, assessments, differences)


def _estimators(options: EstimateOptions) -> list[str]:
    """Return the estimators to use: those that need nothing but the probabilities of lists."""
    for name in options.named_estimators:
        if not _needs_only_lists(name):
            raise InputError(
                f"--estimator {name} needs more than the probabilities of a table; use one of "
                f"{', '.join(filter(_needs_only_lists, ESTIMATORS))}."
            )
    if ALL in options.estimators:
        return list(filter(_needs_only_lists, ESTIMATORS))
    return list(options.named_estimators) or [WEIGHTED]


def _needs_only_lists(name: str) -> bool:
    estimator = get_estimator(name)
    return estimator.weighting == "lists" and estimator.uses_weights and not (estimator.uses_q or estimator.last_ratios)


__all__ = ["LoggedPolicy", "TableColumns", "estimate_table"]
