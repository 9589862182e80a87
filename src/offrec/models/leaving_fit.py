"""Fit the model of leaving exactly, after the updates of training.

Given attractiveness and interest, leaving has few interactions, so its loss can be minimised over the whole log by
L-BFGS (Nocedal and Wright 2006, algorithm 7.4). The noise of stochastic updates is as large as the differences between
the candidates of shrinkage and decay, among which validation sessions select.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from offrec.algorithms.user_model import leaving_log_likelihood
from offrec.catalogue.shard import sum_over_batch
from offrec.data.list_log import ListBatch, ListLog
from offrec.models.user_model import STEPS, UserModelNetwork

CHUNK = 1 << 15  # lists whose activations are in memory at once
PAIRS = 1 << 24  # pairs of picks whose similarities are in memory at once
HISTORY = 10  # pairs of steps and gradient changes that approximate the curvature
HALVINGS = 12  # of a step that does not decrease the loss enough
DECREASE = 1e-4  # share of the decrease that the gradient promises (Armijo)
TOLERANCE = 0.01  # nats of the whole log; iterations end when they gain less
RIDGE = 0.01  # precision of the shared parameters; base and effects of the number of picks could move together
FIRST, FINAL, FINALISTS = 10, 40, 5  # iterations for all candidates, more iterations, candidates that get them

Evaluate = Callable[[Sequence[Tensor]], tuple[float, list[Tensor]]]
Dot = Callable[[Sequence[Tensor], Sequence[Tensor]], float]


def minimise(start: Sequence[Tensor], evaluate: Evaluate, dot: Dot, iterations: int) -> list[Tensor]:
    """Return the parameters after at most `iterations` of L-BFGS.

    Args:
        start: The first parameters.
        evaluate: Returns the loss and its gradients at some parameters.
        dot: Returns the inner product of two lists of tensors like the parameters.
        iterations: The number of steps.
    """
    x = [one.clone() for one in start]
    loss, gradient = evaluate(x)
    pairs: list[tuple[list[Tensor], list[Tensor], float]] = []
    for _ in range(iterations):
        direction = _direction(gradient, pairs, dot)
        slope = dot(gradient, direction)
        if slope >= 0.0:
            if not pairs:
                break
            pairs = []  # the curvature misleads: continue along the gradient
            continue
        step = 1.0 if pairs else min(1.0, 1.0 / max(1e-12, dot(gradient, gradient) ** 0.5))
        for _ in range(HALVINGS):
            moved = [one + step * part for one, part in zip(x, direction, strict=True)]
            new_loss, new_gradient = evaluate(moved)
            if new_loss <= loss + DECREASE * step * slope:
                break
            step /= 2
        else:
            if not pairs:
                break
            pairs = []
            continue
        change = [step * part for part in direction]
        gradient_change = [after - before for after, before in zip(new_gradient, gradient, strict=True)]
        curvature = dot(change, gradient_change)
        if curvature > 1e-10:
            pairs = [*pairs[-HISTORY + 1 :], (change, gradient_change, curvature)]
        gained, x, loss, gradient = loss - new_loss, moved, new_loss, new_gradient
        if gained < TOLERANCE:
            break
    return x


def _direction(
    gradient: Sequence[Tensor], pairs: list[tuple[list[Tensor], list[Tensor], float]], dot: Dot
) -> list[Tensor]:
    """Return −H·gradient, where H approximates the inverse of the Hessian matrix."""
    direction, shares = [-one for one in gradient], []
    for change, gradient_change, curvature in reversed(pairs):
        share = dot(change, direction) / curvature
        direction = [part - share * one for part, one in zip(direction, gradient_change, strict=True)]
        shares.append(share)
    if pairs:
        scale = pairs[-1][2] / dot(pairs[-1][1], pairs[-1][1])
        direction = [scale * part for part in direction]
    for (change, gradient_change, curvature), share in zip(pairs, reversed(shares), strict=True):
        other = dot(gradient_change, direction) / curvature
        direction = [part + (share - other) * one for part, one in zip(direction, change, strict=True)]
    return direction


@dataclass(frozen=True)
class _Rows:
    """What leaving depends on, for some lists of whole sessions."""

    memory: Tensor  # [D, m] with the pick of the list
    is_missing: Tensor  # [D, m]
    picks: Tensor  # [D] before the list
    is_idle: Tensor  # [D]
    similarity: Tensor  # [D]
    leaves: Tensor  # [D]
    session: Tensor  # [D]

    @staticmethod
    def of(model: UserModelNetwork, batch: ListBatch) -> "_Rows":
        memory, picked = model.memory_after(batch)
        parts = torch.split(memory, max(1, PAIRS // memory.shape[1] ** 2))
        return _Rows(
            memory,
            (memory >= model.n_items).double(),
            batch.picks.clamp(max=STEPS - 1),
            (~picked).double(),
            torch.cat([model.similarity(part) for part in parts]).double(),
            batch.leaves,
            batch.session,
        )


class LeavingFit:
    """The loss of one candidate of the model of leaving, over all lists of a log, in double precision.

    In single precision, the loss of a large log is too coarse for line searches.

    Args:
        model: The model. Its attractiveness, interest and item vectors are fixed.
        log: The training lists of this process.
    """

    @torch.no_grad()
    def __init__(self, model: UserModelNetwork, log: ListLog) -> None:
        self.model = model
        self.parts = [_Rows.of(model, log.batch(sessions)) for sessions in chunks(log, CHUNK)]
        self.a, self.q, means = model.centred().double(), model.interest().double(), model._mapped()
        self.mapped = None if means is None else means[3]  # [A, G] the part of w that comes from features of items
        self.level, self.log_share = model.level.double(), model.log_share.double()
        self.weight = model.grid_log_weight.double().exp()

    def fit(self, candidate: int, iterations: int) -> None:
        """Minimise the loss of a candidate, starting from its current parameters."""
        names = self.model.leaving_parameters
        start = [getattr(self.model, name).detach()[..., candidate].double() for name in names]
        fitted = minimise(start, lambda x: self.evaluate(candidate, x), self._dot, iterations)
        with torch.no_grad():
            for name, value in zip(names, fitted, strict=True):
                getattr(self.model, name)[..., candidate] = value

    def evaluate(self, candidate: int, parameters: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        """Return the loss over the whole log, with its prior, and its gradients."""
        effect, shared, log_impatience = parameters[0], parameters[1:-1], parameters[-1]
        precision = self.model.grid_precision[candidate]
        prior = self.model.sum_items(effect.square().sum()) * precision + log_impatience.square()
        prior = prior + RIDGE * torch.stack([one.square().sum() for one in shared]).sum()
        total = torch.zeros((), dtype=torch.double, device=effect.device)
        gradients = [torch.zeros_like(one) for one in parameters]
        for rows in self.parts:
            copies = [one.detach().requires_grad_(True) for one in parameters]
            with torch.enable_grad():
                loss = -self._log_likelihood(rows, candidate, copies).sum()
                parts = torch.autograd.grad(loss, copies)
            total += loss.detach()
            gradients = [one + part for one, part in zip(gradients, parts, strict=True)]
        total, *gradients = (sum_over_batch(one) for one in (total, *gradients))
        total, gradients[1:] = self._agreed(total), [self._agreed(one) for one in gradients[1:]]
        scales = [float(precision), *(RIDGE for _ in shared), 1.0]
        gradients = [one + scale * x for one, scale, x in zip(gradients, scales, parameters, strict=True)]
        if self.model.frozen_items is not None:
            gradients[0] = gradients[0] * ~self.model.frozen_items
        return float(total + prior / 2), gradients

    def evidence(self, candidate: int) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Fisher information of each item's w in the log-likelihood of leaving, [A] each.

        The information counts the levels of impatience by their posterior, as if they were known.
        """
        parameters = [
            getattr(self.model, name).detach()[..., candidate].double() for name in self.model.leaving_parameters
        ]
        _, gradients = self.evaluate(candidate, parameters)
        score = -(gradients[0] - self.model.grid_precision[candidate] * parameters[0])
        information, weight = torch.zeros_like(score), self.weight[:, candidate]
        for rows in self.parts:
            logit, impatience = self._logit(rows, candidate, parameters)
            by_level = logit + impatience[:, None]  # [V, D]
            outcome = logsigmoid(torch.where(rows.leaves, by_level, -by_level))
            sessions = outcome.new_zeros(len(outcome), int(rows.session[-1]) + 1).index_add(1, rows.session, outcome)
            share = (sessions + self.log_share[:, None]).softmax(0)[:, rows.session]
            chance = by_level.sigmoid()
            total = torch.zeros_like(rows.is_missing)  # [D, m] weight of all places of the item at each place
            for place, one in enumerate(weight):
                total += one * (rows.memory == rows.memory[:, place, None])
            slope = weight * total  # its sum over the places of an item is (Σ_l ω_l)²
            curvature = (share * chance * (1 - chance)).sum(0)[:, None] * slope
            own = rows.memory if self.model.shard is None else self.model.shard.local(rows.memory)
            is_item = own < len(information)
            information.index_add_(0, own[is_item], curvature[is_item])
        return score, sum_over_batch(information)

    def _agreed(self, replicated: Tensor) -> Tensor:
        """Return the same number on all processes that store a part of the items.

        Kernels of a GPU may sum in another order on each of them, and all must take the same steps.
        """
        shard = self.model.shard
        return shard.sum(replicated) / shard.count if shard is not None and replicated.is_cuda else replicated

    def _log_likelihood(self, rows: _Rows, candidate: int, parameters: Sequence[Tensor]) -> Tensor:
        """[S] log-likelihood of leaving in each session."""
        logit, impatience = self._logit(rows, candidate, parameters)
        levels = impatience[:, None]
        return leaving_log_likelihood(logit[:, None], levels, self.log_share, rows.leaves, rows.session)[:, 0]

    def _logit(self, rows: _Rows, candidate: int, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the log-odds of leaving at v = 0 after each list [D], and the levels of v [V]."""
        model = self.model
        effect, slopes, base, picks, missing, idle, same, log_impatience = parameters
        (own_slopes,) = model._for_own_items(slopes)
        w = effect + self.a * own_slopes[0] + self.q * own_slopes[1]
        w = w if self.mapped is None else w + self.mapped[:, candidate].double()
        effects = model.at(w, rows.memory) + rows.is_missing * missing
        logit = base + picks[rows.picks] - effects @ self.weight[:, candidate]
        logit = logit + rows.is_idle * idle + rows.similarity * same
        return logit, log_impatience.exp() * self.level

    def _dot(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        """Return the inner product; the effects of items may be divided over processes."""
        products = [(a * b).sum() for a, b in zip(one, other, strict=True)]
        return float(self.model.sum_items(products[0]) + torch.stack(products[1:]).sum())


def fit_leaving(model: UserModelNetwork, log: ListLog, likelihood: Callable[[], Tensor] | None) -> None:
    """Fit all candidates for some iterations, and the best of them until they converge.

    Args:
        model: The model.
        log: The training lists of this process.
        likelihood: Returns the log-likelihood [G] of validation sessions, equal on all processes; None if there are
            none, so that only the default candidate is fitted.
    """
    fit = LeavingFit(model, log)
    if likelihood is None:
        fit.fit(int(model.best), FIRST + FINAL)
        return
    for candidate in range(len(model.leave_base)):
        fit.fit(candidate, FIRST)
    with torch.no_grad():
        best = likelihood().topk(FINALISTS).indices.tolist()
    for candidate in sorted(best):
        fit.fit(candidate, FINAL)


def chunks(log: ListLog, lists: int) -> list[Tensor]:
    """Return the sessions of a log in parts of about this many lists."""
    if not log.sessions:
        return []
    number = (log.first[:-1] // lists).cpu()
    counts = torch.bincount(number)
    sessions = torch.arange(log.sessions, device=log.first.device)
    return list(torch.split(sessions, counts[counts > 0].tolist()))
