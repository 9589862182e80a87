"""Ranking figures: where the logged items stand in a policy's ranking of the whole catalogue."""

from offrec.evaluation.metrics import MetricValues, compute_metrics
from offrec.evaluation.ranking import Evaluation, Ranks, ScoredEvents, evaluate, ranks

__all__ = ["Evaluation", "MetricValues", "Ranks", "ScoredEvents", "compute_metrics", "evaluate", "ranks"]
