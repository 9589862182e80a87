"""Restrict all rows of a head to a set of items, such as those in stock."""

from dataclasses import replace

import torch
from torch import Tensor

from offrec.catalogue.head import MASKED, Head


@torch.no_grad()
def restrict(head: Head, allowed: Tensor) -> Head:
    """Return the head with all other items masked.

    The mask is a bias over the catalogue, so its cost does not depend on the number of masked items.

    Args:
        head: The logits of B rows.
        allowed: [A] bool, whether an item can be chosen.

    Returns:
        The head, without gradients through the mask.
    """
    bias = torch.zeros(head.n_items, dtype=head.dtype, device=allowed.device) if head.bias is None else head.bias
    bias = bias.masked_fill(~allowed, MASKED)
    full_precision = head.full_precision and restrict(head.full_precision, allowed)
    if head.items is None or head.values is None or not head.replaces_base:
        return replace(head, bias=bias, full_precision=full_precision)
    is_masked = (head.items < head.n_items) & ~allowed[head.items.clamp(max=head.n_items - 1)]
    values = head.values.masked_fill(is_masked, MASKED)  # these items have no base, and so no bias
    return replace(head, bias=bias, values=values, corrections_merged=False, full_precision=full_precision)
