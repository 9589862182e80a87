"""Compare functions over a sharded head with the same functions over the whole head. Each check runs on every rank."""

from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue import (
    Head,
    Noise,
    gumbel_softmax,
    log_prob,
    logsumexp,
    maximum,
    rank,
    rank_and_top_k,
    reduce,
    sample_k,
    top_k,
)
from offrec.catalogue.head import MASKED, Support
from offrec.catalogue.reduction import reduce_with_detached
from offrec.catalogue.shard import Shard, random_rows

ROWS, WIDTH = 6, 3
SIZES = (3, 29)  # below the largest world, and not divisible
KINDS = ("plain", "replaced", "bonus", "one shard", "masked shard", "supported")


def make(random: torch.Generator, items: int, kind: str, dtype: torch.dtype) -> Head:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.double).to(dtype)

    head = Head(draw(ROWS, WIDTH), draw(items, WIDTH), draw(items))
    where = torch.randint(0, items + 2, (ROWS, 5), generator=random)
    if kind in ("replaced", "bonus"):
        return replace(head, items=where, values=draw(ROWS, 5), replaces_base=kind == "replaced")
    if kind == "one shard":  # every correction is an item of the first rank
        return replace(head, items=torch.zeros(ROWS, 2, dtype=torch.long), values=draw(ROWS, 2))
    if kind == "masked shard" and items > 1:
        return head.mask(torch.arange(items // 2).expand(ROWS, -1))
    if kind == "supported":
        other = Head(draw(ROWS, WIDTH), draw(items, WIDTH))
        return replace(head, support=Support(other, maximum(other)[0] - 1.0))
    return head


def parts(head: Head, shard: Shard | None) -> dict[str, Tensor]:
    """Return the leaves of a head: those of this rank's items, or the whole."""
    rows = slice(None) if shard is None else shard.rows()
    leaves = {"state": head.state, "table": head.table[rows], "values": head.values}
    leaves["bias"] = None if head.bias is None else head.bias[rows]
    return {name: one.detach().clone().requires_grad_() for name, one in leaves.items() if one is not None}


def build(head: Head, leaves: dict[str, Tensor], shard: Shard | None) -> Head:
    support = head.support
    if support is not None and shard is not None:
        other = support.head
        support = Support(Head(other.state, other.table[shard.rows()], shard=shard), support.bound)
    return replace(head, **leaves, support=support, shard=shard)


def losses(heads: list[Head], actions: Tensor, weight: Tensor, noise: Noise) -> dict[str, Tensor]:
    """Compute every differentiable function, with weights per row."""
    pi, q, b = heads
    bound = logsumexp(b).detach() - 1.5
    sums = reduce(pi, [(1.0, q), (-0.3, pi), (0.2, b.detach())], below=(b, bound))
    both, detached = reduce_with_detached(pi, [(1.0, q)], [(0.5, b)], b)
    hard = gumbel_softmax(pi, [(1.0, q), (-0.3, pi)], temperature=0.7, noise=noise, hard=True)
    terms = {
        "lse": sums.lse,
        "mean": sums.mean,
        "mass": sums.mass,
        "both": both.mean * detached.mean + both.lse * detached.lse,
        "log_prob": log_prob(pi, actions).sum(1),
        "at": q.at(actions).square().sum(1),
        "gumbel": gumbel_softmax(pi, [(1.0, q)], temperature=0.7, noise=noise),
        "hard": hard,
    }
    return {name: (weight * term.clamp(min=-1e6)).sum() for name, term in terms.items()}


def searches(head: Head, target: Tensor, noise: Noise) -> dict[str, Tensor]:
    position, values, items = rank_and_top_k(head, target, 4)
    return {
        "rank": rank(head, target),
        "position": position,
        "top_k": top_k(head, 5)[1],
        "items": items,
        "values": values,
        "maximum": maximum(head)[1],
        "sampled": maximum(head, noise)[1],
        "sample_k": sample_k(head, 3, torch.Generator().manual_seed(7)),
    }


def compare(shard_of: Any, items: int, kind: str, dtype: torch.dtype) -> dict[str, float]:
    """Return the largest relative error of losses and gradients, and the number of different search results."""
    random = torch.Generator().manual_seed(items)
    whole = [make(random, items, one, dtype) for one in (kind, "bonus", "plain")]
    actions = torch.randint(0, items, (ROWS, 4), generator=random)
    weight = torch.rand(ROWS, generator=random, dtype=torch.double).to(dtype)
    noise, shard = Noise(torch.tensor(0x1234567890ABCDEF)), shard_of(items)
    results = {}
    for name, one in (("whole", None), ("sharded", shard)):
        leaves = [parts(head, one) for head in whole]
        heads = [build(head, own, one) for head, own in zip(whole, leaves, strict=True)]
        terms = losses(heads, actions, weight, noise)
        torch.stack(list(terms.values())).sum().backward()
        gradients = [{key: leaf.grad for key, leaf in own.items()} for own in leaves]
        results[name] = terms, gradients, [searches(heads[0].detach(), actions[:, 0], noise)]
    errors = {"loss": 0.0, "gradient": 0.0, "search": 0.0}
    for key, expected in results["whole"][0].items():
        errors["loss"] = max(errors["loss"], _error(results["sharded"][0][key], expected))
    for own, expected in zip(results["sharded"][1], results["whole"][1], strict=True):
        for key, value in own.items():
            rows = shard.rows() if key in ("table", "bias") else slice(None)
            whole_value = None if expected[key] is None else expected[key][rows]
            errors["gradient"] = max(errors["gradient"], _error(value, whole_value))
    for own, expected in zip(results["sharded"][2], results["whole"][2], strict=True):
        for key, value in own.items():
            different = _error(value, expected[key]) > 1e-5 if key == "values" else (value != expected[key]).any()
            errors["search"] += float(different)
    return errors


def _error(value: Tensor | None, expected: Tensor | None) -> float:
    zero = torch.zeros(())
    value, expected = zero if value is None else value, zero if expected is None else expected
    if not (value.numel() and expected.numel()):
        return 0.0
    value, expected = value.detach(), expected.detach()
    finite = expected.abs().clamp(max=abs(MASKED))
    return float(((value - expected).abs() / (1.0 + finite)).max())


def check_functions(rank_: int, world: int) -> dict[str, dict[str, float]]:
    """Return the largest errors by dtype."""
    worst: dict[str, dict[str, float]] = {}
    cases = [*product([torch.double], SIZES, KINDS), *product([torch.float], SIZES[-1:], KINDS[1:3])]
    for dtype, items, kind in cases:
        errors = compare(lambda n: Shard(n, rank_, world), items, kind, dtype)
        known = worst.setdefault(str(dtype), {"loss": 0.0, "gradient": 0.0, "search": 0.0})
        worst[str(dtype)] = {key: max(known[key], value) for key, value in errors.items()}
    return worst


def check_lookup(rank_: int, world: int) -> float:
    """Return the error of a lookup and of its gradient; the last rank has the start row."""
    error = 0.0
    for n in SIZES:
        table, shard = torch.randn(n + 1, 4, generator=torch.Generator().manual_seed(1)), Shard(n, rank_, world)
        tokens = torch.randint(0, n + 1, (3, 5), generator=torch.Generator().manual_seed(2))
        own, whole = table[shard.rows(1)].clone().requires_grad_(), table.clone().requires_grad_()
        weight = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(3))
        for rows in (shard.lookup(tokens, own), whole[tokens]):
            (rows * weight).sum().backward()
        assert whole.grad is not None
        gradient = torch.zeros_like(own) if own.grad is None else own.grad
        error = max(error, _error(shard.lookup(tokens, own), whole[tokens]))
        error = max(error, _error(gradient, whole.grad[shard.rows(1)]))
    return error


def check_random_rows(rank_: int, world: int) -> bool:
    """Return whether the rows of all ranks are those of one process."""
    for n, width in ((1, 1), (3, 2), (17, 5), (40, 16), (1000, 3)):
        torch.manual_seed(5)
        whole = torch.randn(n + 1, width), torch.randn(2)
        torch.manual_seed(5)
        shard = Shard(n, rank_, world)
        own = random_rows(n + 1, width, shard), torch.randn(2)
        if not (torch.equal(own[0], whole[0][shard.rows(1)]) and torch.equal(own[1], whole[1])):
            return False
    return True
