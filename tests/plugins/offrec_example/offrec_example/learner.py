"""SL with label smoothing: the loss of the logged item, plus a small loss of the whole catalogue."""

from dataclasses import dataclass

import offrec
from offrec.algorithms import LossTerms, Needs, Symbols
from offrec.catalogue import log_prob, logsumexp
from offrec.plugins import Range, option


@dataclass(frozen=True)
class Smoothed:
    smoothing: float = option(0.1, minimum=0.0, below=1.0)
    """Weight of the log-partition function."""

    needs = Needs()  # an actor and nothing else
    needs_reward = False

    def loss(self, x: Symbols) -> LossTerms:
        """−log π(a|s) + smoothing · log Σ exp(z)²: logits with a small partition function."""
        likelihood = -log_prob(x.pi, x.logged)[:, 0]
        return {"supervised": likelihood, "smoothing": self.smoothing * logsumexp(x.pi) ** 2}


offrec.register_learner(
    offrec.LearnerRecord(
        name="smoothed",
        label="Smoothed SL",
        learner=Smoothed,
        help="SL with a penalty on the partition function.",
        family="imitation",
        presets={"paper": {"algorithm.smoothing": 0.0}},
        search={"algorithm.smoothing": Range(0.001, 0.5)},
    )
)
