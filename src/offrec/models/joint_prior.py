"""Shrink the effects of items towards their joint distribution, which is estimated from the log (empirical Bayes).

Item i has the effects θ_i = (a_i, q_i, w_i): on choice, on conversion and on staying. Around the current θ_i, the data
of the item have the gradient g_i and the Fisher information I_i of their log-likelihood. So up to a constant they say

    log P(data_i|θ) = h_iᵀθ − ½ θᵀ diag(I_i) θ,   h_i = I_i θ_i + g_i

The prior is a mixture of normal distributions, Σ_j π_j N(μ_j, Σ_j). Component j has

    Λ_ij = Σ_j⁻¹ + diag(I_i),   b_ij = Σ_j⁻¹ μ_j + h_i,   m_ij = Λ_ij⁻¹ b_ij          posterior N(m_ij, Λ_ij⁻¹)
    log z_ij = ½ (b_ijᵀ m_ij − μ_jᵀ Σ_j⁻¹ μ_j − log|Σ_j| − log|Λ_ij|)                  evidence

and the responsibility r_ij ∝ π_j z_ij. EM maximises Σ_i log Σ_j π_j z_ij ("extreme deconvolution": Bovy, Hogg and
Roweis 2011), plus the logarithm of a prior of each Σ_j, −½ n (log|Σ_j| + s tr Σ_j⁻¹), which acts like n more items of
variance s. Then θ_i becomes its posterior mean Σ_j r_ij m_ij.

A single normal distribution would say that what is known about one effect informs the others by a linear rule. Items of
different kinds, such as good ones and ones that only attract, make the rule bend; a mixture follows it. The number of
components is that with the largest likelihood, minus the number of parameters (Akaike 1974).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue.noise import Noise, hash_bits
from offrec.catalogue.shard import batch_group, sum_over_batch
from offrec.data.list_log import ListLog
from offrec.models.item_prior import Sum, choice_evidence, conversion_evidence, same
from offrec.models.leaving_fit import LeavingFit, chunks
from offrec.models.user_model import UserModelNetwork

COMPONENTS = 3  # the largest number of components that is tried
ITERATIONS, TOLERANCE = 200, 0.05  # of EM: at most, and the gain in nats of the whole log that ends it
PSEUDO_ITEMS, PSEUDO_VARIANCE = 5.0, 0.01  # n and s: keep the variances of components with few items above 0
SAMPLE = 20_000  # the mixture is fitted to about this many items
ITEMS_AT_ONCE, LISTS_AT_ONCE = 1 << 16, 1 << 12  # whose intermediate results are in memory at once
EFFECTS = 3  # a, q, w


@dataclass(frozen=True)
class Evidence:
    """What the log says about the effects of items, in double precision."""

    h: Tensor  # [A, 3]
    information: Tensor  # [A, 3]

    def __getitem__(self, items: Any) -> "Evidence":
        return Evidence(self.h[items], self.information[items])

    def __len__(self) -> int:
        return len(self.h)


@dataclass(frozen=True)
class Mixture:
    """A mixture of J normal distributions of the effects."""

    share: Tensor  # [J] π
    mean: Tensor  # [J, 3] μ
    covariance: Tensor  # [J, 3, 3] Σ

    @property
    def parameters(self) -> int:
        """The number of free parameters."""
        components, effects = self.mean.shape
        return components * (1 + effects + effects * (effects + 1) // 2) - 1

    @property
    def log_prior(self) -> float:
        """The logarithm of the prior of the covariances, up to a constant. It keeps variances above 0."""
        trace = torch.linalg.inv(self.covariance).diagonal(dim1=1, dim2=2).sum(1)
        return -PSEUDO_ITEMS / 2 * float((torch.logdet(self.covariance) + PSEUDO_VARIANCE * trace).sum())

    def posterior(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the log evidence [A], responsibilities [A, J], means [A, J, 3] and covariances [A, J, 3, 3]."""
        precision = torch.linalg.inv(self.covariance)
        weighted = (precision @ self.mean[..., None])[..., 0]  # Σ⁻¹ μ
        after = precision + torch.diag_embed(evidence.information)[:, None]  # Λ
        b = weighted + evidence.h[:, None]
        covariance = torch.linalg.inv(after)
        mean = (covariance @ b[..., None])[..., 0]
        log_z = (b * mean).sum(2) - (self.mean * weighted).sum(1)
        log_z = (log_z - torch.logdet(self.covariance) - torch.logdet(after)) / 2
        joint = self.share.log() + log_z
        total = joint.logsumexp(1)
        return total, (joint - total[:, None]).exp(), mean, covariance

    def split(self) -> "Mixture":
        """Return a mixture with one more component: the largest one is divided along its main axis."""
        largest = int(self.share.argmax())
        values, axes = torch.linalg.eigh(self.covariance[largest])
        axis = axes[:, -1]
        step = values[-1].sqrt() * axis * axis[axis.abs().argmax()].sign()  # eigenvectors have no sign of their own
        means = torch.stack([self.mean[largest] - step, self.mean[largest] + step])
        halves = self.share[largest].div(2).expand(2)
        rest = torch.arange(len(self.share), device=self.share.device) != largest
        return Mixture(
            torch.cat([self.share[rest], halves]),
            torch.cat([self.mean[rest], means]),
            torch.cat([self.covariance[rest], self.covariance[largest].expand(2, -1, -1)]),
        )


def fit_mixture(evidence: Evidence, start: Mixture, sum_items: Sum = same) -> tuple[Mixture, float]:
    """Return the mixture after EM, and its log-likelihood.

    Args:
        evidence: What is known about the items.
        start: The first mixture.
        sum_items: Returns the sum over all items, given the sum over those of this process.
    """
    mixture, evaluated, likelihood, last = start, start, -math.inf, -math.inf
    components, effects = start.mean.shape
    for _ in range(ITERATIONS):
        total, share, mean, covariance = mixture.posterior(evidence)
        second = mean[..., None] * mean[..., None, :] + covariance
        moments = torch.stack(
            [
                total.sum(),
                *share.sum(0),
                *torch.einsum("aj,ajx->jx", share, mean).flatten(),
                *torch.einsum("aj,ajxy->jxy", share, second).flatten(),
            ]
        )
        sizes = [1, components, components * effects, components * effects**2]
        log_evidence, count, first, square = torch.split(sum_items(moments), sizes)
        evaluated, likelihood = mixture, float(log_evidence)
        objective = likelihood + mixture.log_prior
        if objective - last < TOLERANCE:
            break
        last, count = objective, count.clamp(min=1e-9)
        means = first.reshape(components, effects) / count[:, None]
        scatter = square.reshape(components, effects, effects) - count[:, None, None] * (
            means[:, :, None] * means[:, None, :]
        )
        ridge = PSEUDO_ITEMS * PSEUDO_VARIANCE * torch.eye(effects).to(scatter)
        mixture = Mixture(count / count.sum(), means, (scatter + ridge) / (count + PSEUDO_ITEMS)[:, None, None])
    return evaluated, likelihood


def select_mixture(evidence: Evidence, effects: Tensor, sum_items: Sum = same) -> Mixture:
    """Fit mixtures of 1 to COMPONENTS normal distributions and return the best one by Akaike's criterion.

    Args:
        evidence: What is known about the items.
        effects: The current estimates [A, 3], whose moments are the start of EM.
        sum_items: Returns the sum over all items, given the sum over those of this process.
    """
    squares = effects[:, :, None] * effects[:, None, :]
    moments = torch.cat([effects.new_full((1,), float(len(effects))), effects.sum(0), squares.sum(0).flatten()])
    count, mean, square = torch.split(sum_items(moments), [1, EFFECTS, EFFECTS**2])
    mean, square = mean / count, square.reshape(EFFECTS, EFFECTS) / count
    # Estimates vary less than the effects, because they are shrunk.
    covariance = 2 * (square - mean[:, None] * mean) + PSEUDO_VARIANCE * torch.eye(EFFECTS).to(mean)
    start = Mixture(torch.ones_like(count), mean[None], covariance[None])
    best, criterion = start, -math.inf
    for _ in range(COMPONENTS):
        fitted, likelihood = fit_mixture(evidence, start, sum_items)
        if likelihood - fitted.parameters > criterion:
            best, criterion = fitted, likelihood - fitted.parameters
        start = fitted.split()
    return best


@torch.no_grad()
def shrink_item_effects(model: UserModelNetwork, log: ListLog) -> None:
    """Replace the effects of items by their posterior means. Items without data get the mean of the prior.

    Args:
        model: The model, whose candidate of the model of leaving is selected.
        log: The training lists of this process.
    """
    with model.map_once():
        _shrink_item_effects(model, log)


def _shrink_item_effects(model: UserModelNetwork, log: ListLog) -> None:
    mapped, best = model._mapped(), int(model.best)
    current = torch.stack([model.centred(), model.interest(), model.worth()[:, best]], 1).double()
    evidence = _evidence(model, log, current)
    told = torch.zeros_like(current)  # effects that the features of items tell; the prior is about the others
    if mapped is not None:
        a, slopes = mapped[1], model.leave_slopes[:, best]
        q = mapped[2] + model.conversion_slope * a
        told = torch.stack([a, q, mapped[3][:, best] + slopes[0] * a + slopes[1] * q], 1).double()
        evidence = Evidence(evidence.h - evidence.information * told, evidence.information)
    is_free = torch.ones_like(model.shown, dtype=torch.bool) if model.frozen_items is None else ~model.frozen_items
    rows = (is_free & (evidence.information > 0).any(1)).nonzero()[:, 0]
    count = int(model.sum_items(torch.tensor(len(rows), device=rows.device)))
    if count <= EFFECTS:
        return
    sample = rows[_in_sample(rows + (0 if model.shard is None else model.shard.first), count)]
    mixture = select_mixture(evidence[sample], (current - told)[sample], model.sum_items)
    for part in torch.split(is_free.nonzero()[:, 0], ITEMS_AT_ONCE):
        _, share, mean, _ = mixture.posterior(evidence[part])
        current[part] = told[part] + (share[..., None] * mean).sum(1)
    _set_effects(model, current.to(model.attractiveness), mapped)


def _in_sample(items: Tensor, count: int) -> Tensor:
    """Return whether each of some items is among about SAMPLE of `count` items.

    A hash of its number decides, so the sample is the same however many processes store the items, and does not follow
    a pattern in their order.
    """
    zero = torch.zeros((), dtype=torch.long, device=items.device)
    unsigned = hash_bits(Noise(zero), zero, items).long() & 0xFFFFFFFF
    return unsigned * count < SAMPLE << 32


def _set_effects(model: UserModelNetwork, effects: Tensor, mapped: tuple[Tensor, ...] | None) -> None:
    """Set the parameters such that items have the effects [A, 3], apart from the mean of a, by which u₀ changes.

    In the other candidates of the model of leaving, w depends on a and q too. It stays as it was fitted.
    """
    best, (a, q, w) = int(model.best), effects.unbind(1)
    mean = model.mean_of_items(a, model.known_items)
    model.leave_effect.addr_(model.centred() - (a - mean), model.leave_slopes[0])
    model.leave_effect.addr_(model.interest() - q, model.leave_slopes[1])
    slopes = model.leave_slopes[:, best]
    model.attractiveness.copy_(a)
    model.none.sub_(mean)
    model.conversion_effect.copy_(q - model.conversion_slope * (a - mean))
    model.leave_effect[:, best] = w - slopes[0] * (a - mean) - slopes[1] * q
    if mapped is not None:
        model.attractiveness.sub_(mapped[1])
        model.conversion_effect.sub_(mapped[2])
        model.leave_effect[:, best].sub_(mapped[3][:, best])


def _evidence(model: UserModelNetwork, log: ListLog, effects: Tensor) -> Evidence:
    """Return what the log says about the items of this process, around their current effects [A, 3]."""
    fit = LeavingFit(model, log)
    part = torch.zeros(2, *effects.shape, dtype=effects.dtype, device=effects.device)  # g, I
    with batch_group(None), model.map_once():
        for sessions in chunks(log, LISTS_AT_ONCE):
            batch = log.batch(sessions)
            symbols = model.symbols(batch, 1)
            posterior = symbols.type_posterior()
            sources = (
                choice_evidence(model, batch, symbols, posterior),
                conversion_evidence(model, batch, posterior),
            )
            for column, (items, *values) in enumerate(sources):
                rows = items if model.shard is None else model.shard.local(items)
                own = rows < len(effects)
                for target, value in zip(part, values, strict=True):
                    target[:, column].index_add_(0, rows[own], value[own].to(target))
    score, information = sum_over_batch(part)
    score[:, 2], information[:, 2] = fit.evidence(int(model.best))
    return Evidence(score + information * effects, information)
