"""Small random heads in double precision, with every kind of correction."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from offrec.catalogue import Head

KINDS = ("plain", "bonus", "replaced", "masked", "every")


def make_head(
    random: torch.Generator, rows: int, items: int, width: int, kind: str = "plain", *, bias: bool = True, many: int = 5
) -> Head:
    """Make a random head with one kind of corrections.

    Kinds "bonus" and "replaced" correct few items, with duplicates and padding; "every" corrects all items of a row,
    some of them twice; "masked" masks one item.
    """

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.double)

    head = Head(draw(rows, width), draw(items, width), draw(items) if bias else None)
    if kind == "plain":
        return head
    where = torch.randint(0, min(items, 4) + 2, (rows, many), generator=random)
    where = where.masked_fill(where >= min(items, 4), items + 1)
    if kind == "masked":
        return head.mask(where[:, :1].clamp(max=items))
    if kind == "every":
        where = torch.cat([torch.arange(items).expand(rows, -1), where], 1)
    return replace(head, items=where, values=draw(*where.shape), replaces_base=kind == "replaced")


def leaves(*heads: Head) -> dict[str, Tensor]:
    """Return copies of all tensors of the heads that can have a gradient, by name and number, with `requires_grad`."""
    tensors = {}
    for number, head in enumerate(heads):
        for name in ("state", "table", "bias", "values"):
            part = getattr(head, name)
            if part is not None:
                tensors[f"{name}{number}"] = part.detach().clone().requires_grad_()
    return tensors


def built(heads: list[Head], parts: dict[str, Tensor]) -> Iterator[Head]:
    """Yield the heads with other tensors; corrected items stay the same tensor."""
    for number, head in enumerate(heads):
        own = {name[:-1]: part for name, part in parts.items() if name.endswith(str(number))}
        yield replace(head, **own)
