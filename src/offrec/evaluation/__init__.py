"""Ranking figures: where the logged items stand in a policy's ranking of the whole catalogue."""

from offrec.evaluation.metrics import Figures, figures
from offrec.evaluation.ranking import Evaluation, Ranks, evaluate, ranks

__all__ = ["Evaluation", "Figures", "Ranks", "evaluate", "figures", "ranks"]
