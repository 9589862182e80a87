"""Ranking figures: where the logged items stand in a policy's ranking of the whole catalogue."""

from offrec.evaluation.metrics import Figures, figures
from offrec.evaluation.ranking import Evaluation, Ranks, Scored, evaluate, ranks

__all__ = ["Evaluation", "Figures", "Ranks", "Scored", "evaluate", "figures", "ranks"]
