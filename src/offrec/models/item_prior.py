"""Estimate how strongly item effects vary, from the log itself (empirical Bayes).

Item i has an effect θ_i with the prior N(0, 1/τ). Around the current θ_i, the log-likelihood of the item's data has the
gradient g_i and the Fisher information I_i. So the data are about as informative as one observation y_i = θ_i + g_i/I_i
with variance 1/I_i. Given τ, y_i is distributed as N(0, 1/τ + 1/I_i). Up to a constant, the logarithm of the likelihood
of all y is

    L(τ) = Σ_i −½ log(1 + I_i/τ) + ½ h_i² / (I_i + τ),   h_i = I_i θ_i + g_i

The maximum has τ = Σ_i I_i/(I_i + τ) / Σ_i θ̂_i², where θ̂_i = h_i/(I_i + τ) is the posterior mean: MacKay's update
("Bayesian interpolation", 1992). Items without data do not count.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from offrec.algorithms.user_model import UserSymbols
from offrec.catalogue.head import MASKED
from offrec.catalogue.shard import sum_over_batch
from offrec.data.list_log import ListBatch
from offrec.models.user_model import UserModelNetwork

LOWEST, HIGHEST, CANDIDATES = -2.0, 4.0, 121  # logarithms to base 10 of the candidates of τ, and their number
Sum = Callable[[Tensor], Tensor]


def same(part: Tensor) -> Tensor:
    """Return the sum over all items if this process stores all of them."""
    return part


def estimate_precision(h: Tensor, information: Tensor, default: Tensor, sum_items: Sum = same) -> Tensor:
    """Return the precision τ with the largest likelihood.

    Args:
        h: [A] I θ + g of each item.
        information: [A] I, at least 0.
        default: [] the precision to return if no item has data.
        sum_items: Returns the sum over all items, given the sum over the items [A] that this process stores.
    """
    if not bool(sum_items(information.sum()) > 0):
        return default
    candidates = torch.logspace(LOWEST, HIGHEST, CANDIDATES, dtype=torch.double, device=h.device)
    h, information = h.double(), information.double()
    likelihood = [(h.square() / (information + tau)).sum() - (information / tau).log1p().sum() for tau in candidates]
    return candidates[sum_items(torch.stack(likelihood)).argmax()].to(default)


@torch.no_grad()
def add_evidence(model: UserModelNetwork, batch: ListBatch, symbols: UserSymbols) -> None:
    """Add h and I of a batch to the columns of `model.evidence`: of attractiveness a, then of the items' own effects ε.

    If sessions are divided over ranks, all of them add the evidence of the whole batch.
    """
    posterior, part = symbols.type_posterior(), torch.zeros_like(model.evidence)
    effects = (model.attractiveness - model.mean_of_items(model.attractiveness), model.conversion_effect)
    with model.map_once():
        choices = choice_evidence(model, batch, symbols, posterior)
        conversions = conversion_evidence(model, batch, posterior)
    for column, (effect, (items, score, information)) in enumerate(zip(effects, (choices, conversions), strict=True)):
        rows = items if model.shard is None else model.shard.local(items)
        own = rows < len(effect)
        rows, score, information = rows[own], score[own], information[own]
        part[:, 2 * column].index_add_(0, rows, score + information * effect[rows])
        part[:, 2 * column + 1].index_add_(0, rows, information)
    model.evidence += sum_over_batch(part * (batch.weight > 0).any())  # a rank without sessions has one with weight 0


@torch.no_grad()
def update_precisions(model: UserModelNetwork) -> None:
    """Estimate the precisions of a and ε from the evidence of an epoch, unless they are given."""
    given = (model.learner.attractiveness_precision, model.learner.conversion_precision)
    for column, (precision, known) in enumerate(zip(model.precision, given, strict=True)):
        if known is None:
            h, information = model.evidence[:, 2 * column : 2 * column + 2].unbind(1)
            precision.copy_(estimate_precision(h, information, precision, model.sum_items))
    model.evidence.zero_()


def choice_evidence(
    model: UserModelNetwork, batch: ListBatch, symbols: UserSymbols, posterior: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return items, and the derivatives g and I of the log-likelihood of choices with respect to their utilities."""
    share, utility = posterior[batch.session], symbols.utility
    place = torch.arange(1, utility.shape[2] + 1, device=share.device)
    is_pick = batch.place[:, None] == place
    if model.is_cascade:  # visitors who pick do not see the places after the pick
        chance = (utility - model.none).sigmoid()
        is_seen = (batch.place[:, None] == 0) | (place <= batch.place[:, None])
    else:
        none = model.none if model.has_lists else utility.new_tensor(MASKED)
        chance = (utility - torch.logaddexp(utility.logsumexp(2, keepdim=True), none)).exp()
        is_seen = torch.ones_like(is_pick)
    mean, square = (torch.einsum("nc,nci->ni", share, part) for part in (chance, chance.square()))
    is_seen = is_seen & (batch.offered < model.n_items)
    return batch.offered[is_seen], (is_pick.to(mean.dtype) - mean)[is_seen], (mean - square)[is_seen]


def conversion_evidence(model: UserModelNetwork, batch: ListBatch, posterior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return picks, and the derivatives g and I of the log-likelihood of their behaviours with respect to q."""
    picked = batch.place > 0
    items, share = batch.picked_item[picked], posterior[batch.session[picked]]
    types = torch.arange(len(model.types), device=items.device).expand(len(items), -1)
    interest = model.utility_and_interest(types, batch.memory[picked], items[:, None])[1][..., 0]
    probability = model.behaviour_logits(interest).softmax(-1)
    slopes = torch.cat([model.slopes().new_zeros(1), model.slopes()])[: probability.shape[-1]]
    mean = probability @ slopes
    information = (share * (probability @ slopes.square() - mean.square())).sum(1)
    return items, slopes[batch.behaviour[picked]] - (share * mean).sum(1), information
