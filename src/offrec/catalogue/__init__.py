"""Heads over the whole catalogue, and functions of heads that never materialise the [rows × items] matrix."""

from offrec.catalogue.allowed_items import restrict
from offrec.catalogue.backend import use_backend
from offrec.catalogue.head import Head
from offrec.catalogue.lowered_items import rank_last
from offrec.catalogue.noise import Noise
from offrec.catalogue.ranking import rank, rank_and_top_k, sample_k, top_k
from offrec.catalogue.reduction import gumbel_softmax, log_prob, logsumexp, maximum, reduce

__all__ = [
    "Head",
    "Noise",
    "gumbel_softmax",
    "log_prob",
    "logsumexp",
    "maximum",
    "rank",
    "rank_and_top_k",
    "rank_last",
    "reduce",
    "restrict",
    "sample_k",
    "top_k",
    "use_backend",
]
