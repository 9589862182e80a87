"""Rank chosen items of each row below all other items."""

import torch
from torch import Tensor

from offrec.catalogue.head import ALL_MASKED, Head

LOWERED = -1e12  # far below any score, and far above MASKED: a lowered item is still returned if no other is left
STEP = 2.0**-12  # relative distance of two lowered items; float32 represents it exactly


@torch.no_grad()
def rank_last(head: Head, items: Tensor) -> Head:
    """Return the head with items ranked below all other items, in their own order.

    The lowered items have no probability unless a row has no other item. Masked items stay masked.

    Args:
        head: The logits of B rows. The result has no gradient through the lowered items.
        items: [B, n] items to lower; duplicates count once; indices from n_items on are padding.
    """
    if not items.shape[1]:
        return head
    items = items.sort(1).values  # the lower index comes first among equal scores, as in `top_k`
    items[:, 1:] = items[:, 1:].masked_fill(items[:, 1:] == items[:, :-1], head.n_items)
    is_padding = items >= head.n_items
    z = head.at(items.clamp(max=head.n_items - 1)).masked_fill(is_padding, ALL_MASKED)
    place = z.sort(dim=1, descending=True, stable=True).indices.argsort(1)
    values = LOWERED * (1 + STEP * place.to(z.dtype)) - z
    return head.with_corrections(items, values.masked_fill(z <= ALL_MASKED, 0.0))
