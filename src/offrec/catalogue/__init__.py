"""The whole catalogue without the [rows × items] matrix: heads, and what can be asked of them."""

from offrec.catalogue.backend import MOST_WIDTH, chosen, has_triton, using
from offrec.catalogue.head import GONE, MASKED, Below, Head, Linear, Within
from offrec.catalogue.lists import Lists, best_lists, drawn_lists, log_places
from offrec.catalogue.noise import Noise, gumbel_noise
from offrec.catalogue.order import rank, rank_and_top_k, sample_k, top_k
from offrec.catalogue.reduction import (
    DetachedSums,
    Reduced,
    gumbel_softmax,
    log_prob,
    logsumexp,
    maximum,
    reduce,
    reduce_with_detached,
)
from offrec.catalogue.slots import compare, compared, scored

__all__ = [
    "GONE", "MASKED", "MOST_WIDTH", "Below", "DetachedSums", "Head", "Linear", "Lists", "Noise", "Reduced", "Within",
    "best_lists", "chosen", "compare", "compared", "drawn_lists", "gumbel_noise", "gumbel_softmax", "has_triton",
    "log_places", "log_prob", "logsumexp", "maximum", "rank", "rank_and_top_k", "reduce", "reduce_with_detached",
    "sample_k", "scored", "top_k", "using",
]  # fmt: skip
