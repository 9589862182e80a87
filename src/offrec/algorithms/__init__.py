"""The learners, by the names the command line knows."""

from offrec.algorithms.supervised import Supervised
from offrec.algorithms.symbols import Learner, Symbols, Terms

ALGORITHMS: dict[str, type[Learner]] = {"sl": Supervised}

__all__ = ["ALGORITHMS", "Learner", "Symbols", "Terms"]
