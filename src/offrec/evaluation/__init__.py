"""Rank the logged items in a policy's ordering of the whole catalogue, and compute metrics from the ranks."""

from offrec.evaluation.metrics import METRICS, MetricRecord, MetricValues, compute_metrics, register_metric
from offrec.evaluation.ranking import Evaluation, evaluate, ranks
from offrec.evaluation.ranks import Ranks
from offrec.evaluation.scored_events import EvaluationSplit, ScoredEvents

__all__ = [
    "METRICS",
    "Evaluation",
    "EvaluationSplit",
    "MetricRecord",
    "MetricValues",
    "Ranks",
    "ScoredEvents",
    "compute_metrics",
    "evaluate",
    "ranks",
    "register_metric",
]
