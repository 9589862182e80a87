"""Rank the logged items in a policy's ordering of the whole catalogue, and compute metrics from the ranks."""

from offrec.evaluation.metrics import METRICS, MetricRecord, MetricValues, compute_metrics, register_metric
from offrec.evaluation.ranking import Evaluation, Ranks, ScoredEvents, evaluate, ranks

__all__ = [
    "METRICS",
    "Evaluation",
    "MetricRecord",
    "MetricValues",
    "Ranks",
    "ScoredEvents",
    "compute_metrics",
    "evaluate",
    "ranks",
    "register_metric",
]
