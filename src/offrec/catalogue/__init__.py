"""The whole catalogue without the [rows × items] matrix: heads, and what can be asked of them."""

from offrec.catalogue.head import MASKED, Head
from offrec.catalogue.order import rank, rank_and_top_k, sample_k, top_k
from offrec.catalogue.tiled import log_prob, logsumexp

__all__ = ["MASKED", "Head", "log_prob", "logsumexp", "rank", "rank_and_top_k", "sample_k", "top_k"]
