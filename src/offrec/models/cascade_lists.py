"""Choose lists for visitors who look at one place after the other until they pick.

They pick the item at a place with the probability σ(u + p), where u is its utility beyond that of picking nothing and p
the effect of the place. A list of items with values e is worth v₁ to a type of visitors, with

    v_j = σ(u_j + p_j) e_j + (1 − σ(u_j + p_j)) v_{j+1},   v_{k+1} = 0
"""

from statistics import fmean

import torch
from torch import Tensor

SWEEPS = 2  # over the places of a list


def best_cascade_lists(utility: Tensor, earns: Tensor, share: Tensor, excluded: Tensor, effects: list[float]) -> Tensor:
    """Return the indices [n, k] of the candidates on the lists.

    First the best list for visitors who all have the mean chance of picking each candidate. Then each place, from the
    first to the last, gets the item that is best for the types, given the other places.

    Args:
        utility: u of each candidate for each type of visitors, [n, C, M].
        earns: e of each candidate, [n, C, M].
        share: The share of each type, [n, C].
        excluded: Which candidates must not be chosen, [n, M].
        effects: p of each place.
    """
    lists = _best_for_mean_visitor(utility + fmean(effects), earns, share, excluded, len(effects))
    excluded = excluded.scatter(1, lists, True)
    for _ in range(SWEEPS):
        _improve(lists, utility, earns, share, excluded, effects)
    return lists


def _best_for_mean_visitor(utility: Tensor, earns: Tensor, share: Tensor, excluded: Tensor, k: int) -> Tensor:
    """Return the list [n, k] that is best if all visitors have the mean chance c and the mean value e of a pick.

    An item before places of value v is worth c · e + (1 − c) · v, so the best list is sorted by e. A dynamic programme
    goes through the sorted candidates from the last to the first and finds, for each number of places, the best list of
    candidates from there on.
    """
    picked = utility.sigmoid()
    chance, gain = ((share[:, None] @ part)[:, 0] for part in (picked, picked * earns))
    order = (gain / chance.clamp(min=1e-12)).masked_fill(excluded, -torch.inf).argsort(1, descending=True)
    chance, gain, candidates = chance.gather(1, order), gain.gather(1, order), order.shape[1]
    allowed = (~excluded).sum(1, keepdim=True)  # they come first
    places = torch.arange(1, k + 1, device=chance.device)
    value, takes = gain.new_zeros(len(chance), k + 1), []
    for j in reversed(range(candidates)):
        after = allowed - j - 1  # candidates that can still be chosen
        taken = gain[:, j : j + 1] + (1 - chance[:, j : j + 1]) * value[:, :-1]
        takes.append((after >= places - 1) & ((after < places) | (taken > value[:, 1:])))
        value = torch.cat([value[:, :1], torch.where(takes[-1], taken, value[:, 1:])], 1)
    left = torch.full((len(chance), 1), k, device=chance.device)
    is_chosen = []
    for take in reversed(takes):
        is_chosen.append(take.gather(1, (left - 1).clamp(min=0)) & (left > 0))
        left = left - is_chosen[-1].long()
    first = torch.cat(is_chosen, 1).to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :k]
    return order.gather(1, first)


def _improve(
    lists: Tensor, utility: Tensor, earns: Tensor, share: Tensor, excluded: Tensor, effects: list[float]
) -> None:
    """Choose the item at each place of `lists` [n, k] again, given the others. Changes `lists` and `excluded`."""
    index = lists[:, None].expand(-1, utility.shape[1], -1)
    picked, earned = (utility.gather(2, index) + utility.new_tensor(effects)).sigmoid(), earns.gather(2, index)
    after = [torch.zeros_like(share)]  # the value of the places after the last one, the one before it, …
    for place in range(len(effects) - 1, 0, -1):
        after.append(picked[..., place] * (earned[..., place] - after[-1]) + after[-1])
    reach = share  # of visitors of each type who look at the place
    for place, effect in enumerate(effects):
        excluded.scatter_(1, lists[:, place : place + 1], False)
        value = after[len(effects) - 1 - place]
        by_type = (utility + effect).sigmoid() * (earns - value[..., None]) + value[..., None]
        item = (reach[:, None] @ by_type)[:, 0].masked_fill_(excluded, -torch.inf).argmax(1, keepdim=True)
        lists[:, place : place + 1] = item
        excluded.scatter_(1, item, True)
        new = utility.gather(2, item[:, None].expand(-1, utility.shape[1], 1))[..., 0] + effect
        reach = reach * (-new).sigmoid()
