"""The user model behind the interface of an agent: loss, ranking by plans, and the state of running sessions."""

import math

import torch
from torch import Tensor

from offrec.algorithms import LossTerms
from offrec.algorithms.user_model import UserModel, UserSymbols, leaving_log_likelihood
from offrec.catalogue import Head
from offrec.catalogue.shard import Shard, sum_over_batch
from offrec.data.list_log import ListBatch, ListLog
from offrec.models.item_features import ItemFeatures
from offrec.models.item_prior import add_evidence, update_precisions
from offrec.models.joint_prior import shrink_item_effects
from offrec.models.leaving_fit import fit_leaving
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.planner import Planner
from offrec.models.user_model import UserModelNetwork
from offrec.types import Batch

CALIBRATIONS = 4  # simulations; each one uses the statistics of the one before
LEAST_NONE = 0.05  # u₀ starts at this share of lists without a pick if the log has fewer
VALIDATED = 16_384  # validation sessions that select the model of leaving
VALIDATED_CHOICES = 2048  # the first of them, whose choices are validated


class UserModelAgent(UserModelNetwork):
    """A user model that ranks items by planning.

    `forward` ranks the planned list first and all other items by a linear score. `start_sessions` returns the state of
    running sessions, which also learns from lists that were shown and ignored.
    """

    lists_in_log = 1  # set before training
    _planner: tuple[object, Planner] | None = None

    def loss(self, batch: ListBatch) -> LossTerms:
        """Return the loss terms of a batch, one number per session."""
        symbols = self.symbols(batch, self.lists_in_log)
        add_evidence(self, batch, symbols)
        return self.learner.loss(symbols)

    def start(self, log: ListLog, rewards: Tensor, *, policy_reads_log: bool = False) -> None:
        """Prepare for training: exposure from the counts of what was shown, and the rewards that plans maximise.

        Args:
            log: The training lists.
            rewards: Mean reward [behaviours], or [A, behaviours] of each item that this process stores.
            policy_reads_log: Whether the policy that wrote the log knew only the picks and lists in the log.
        """
        self.learns_exposure &= not (policy_reads_log and self.learner.exposure == "auto")
        offered, rows = log.rows.offered.flatten(), len(self.shown)
        offered = offered if self.shard is None else self.shard.local(offered)
        counts = sum_over_batch(torch.bincount(offered[offered < rows], minlength=rows))
        self.set_exposure(counts)
        self.set_rewards(rewards.to(self.reward))
        self.lists_in_log = max(1, int(sum_over_batch(counts.new_tensor(len(log.rows)))))

    @torch.no_grad()
    def start_choice(self, log: ListLog) -> None:
        """Set u₀ such that visitors pick nothing as often as in the log, if all items are alike.

        Adam moves u₀ slowly from 0. Until then the effects of items explain what u₀ should, and more so for choice
        place by place, where u₀ is far from 0.
        """
        if not self.has_lists:
            return
        rows = log.rows
        parts = ((rows.place == 0).sum(), (rows.offered < self.n_items).sum(), rows.place.new_tensor(len(rows)))
        nothing, offered, lists = sum_over_batch(torch.stack(parts).double()).tolist()
        share = min(max(nothing / max(1.0, lists), LEAST_NONE), 1 - LEAST_NONE)
        length = max(1.0, offered / max(1.0, lists))
        if self.is_cascade:
            passed = share ** (1 / length)  # the probability of passing over a place
            self.none.fill_(math.log(passed / (1 - passed)))
        else:
            self.none.fill_(math.log(length * share / (1 - share)))

    def after_update(self) -> None:
        """Do nothing: the model has no state outside the optimiser."""

    @property
    def list_length(self) -> int:
        """The length of planned lists."""
        return self.learner.list_length or (self.k if self.has_lists else 10)

    def planner(self) -> Planner:
        """Return the planner for the current parameters."""
        key = (self.x.device, *(tensor._version for tensor in (*self.parameters(), *self.buffers())))
        if self._planner is None or self._planner[0] != key:
            self._planner = (key, Planner(self, self.list_length, self.learner.horizon != 0))
        return self._planner[1]

    @torch.no_grad()
    def choice_likelihood(self, log: ListLog) -> float:
        """Return the mean log-likelihood of choices and conversions, per list of validation sessions."""
        batch = _validated(log)
        return _choice_likelihood(self.symbols(batch, 1), batch)

    @torch.no_grad()
    def finish(self, log: ListLog, validation: ListLog) -> None:
        """Fit leaving and the effects of items to the whole training log, after the last update."""
        update_precisions(self)
        fit_leaving(self, log, (lambda: self._leaving_likelihood(validation)) if validation.sessions else None)
        self._select_leaving(validation)
        learner = self.learner
        if learner.item_prior == "joint" and learner.attractiveness_precision is learner.conversion_precision is None:
            shrink_item_effects(self, log)

    @torch.no_grad()
    def validate(self, log: ListLog, last: bool, seed: int) -> dict[str, float]:
        """Return figures of validation sessions; select the model of leaving, or calibrate the planner after `finish`.

        Args:
            log: Validation lists.
            last: Whether this is the last epoch, so that `finish` has been called.
            seed: Seed of the simulation.

        Returns:
            Log-likelihoods per list of validation sessions and, after the last epoch, the reward per session that
            the planner expects.
        """
        if not last:
            update_precisions(self)
            self._select_leaving(log)
        figures = dict(zip(("attractiveness precision", "conversion precision"), self.precision.tolist(), strict=True))
        if log.sessions:
            figures |= {
                "choice log-likelihood": self.choice_likelihood(log),
                "leaving log-likelihood": float(self._leaving_likelihood(log)[self.best]),
            }
        if last:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(CALIBRATIONS):
                statistics, value = self.planner().simulate(generator)
                self.statistics.copy_(statistics)
            figures["planned reward"] = value
        return figures

    def _select_leaving(self, log: ListLog) -> None:
        if log.sessions:
            self.best.copy_(self._leaving_likelihood(log).argmax())

    def _leaving_likelihood(self, log: ListLog) -> Tensor:
        """[G] mean log-likelihood of leaving, per list. The candidates differ little, so many sessions are needed.

        All processes evaluate the same sessions. Kernels of a GPU may sum in another order on each of them, and all
        must select the same candidate, so this is the mean over the processes.
        """
        total, lists, last = torch.zeros_like(self.leave_base, dtype=torch.double), 0, min(VALIDATED, log.sessions)
        for first in range(0, last, VALIDATED_CHOICES):
            sessions = torch.arange(first, min(first + VALIDATED_CHOICES, last), device=log.first.device)
            batch = log.batch(sessions)
            outcome = leaving_log_likelihood(
                self.leave_logits_after(batch), self.impatience(), self.log_share, batch.leaves, batch.session
            )
            total += outcome.sum(0)
            lists += len(batch)
        sums = self._sum_over_processes(torch.cat([total, total.new_full((1,), float(lists))]))
        return sums[:-1] / sums[-1]

    def _sum_over_processes(self, part: Tensor) -> Tensor:
        """Return the sum over the processes that store other items, and over those that read other sessions."""
        return sum_over_batch(self.sum_items(part))

    def forward(self, batch: Batch) -> Head:
        """Return the head that ranks the planned list first. It knows the picks of each row, but not the lists."""
        planner = self.planner()
        recent = batch.recent[:, : self.options.history]
        picks = (batch.recent < self.n_items).sum(1)
        patience = planner.patience_after_picks(recent) if planner.look_ahead else None
        return self.planned_head(planner.after_picks(recent), self.last_picks(batch.recent), picks, patience=patience)

    def last_picks(self, recent: Tensor) -> Tensor:
        """[n, memory] the last picks, of picks [n, h], most recent first; missing ones are n_items."""
        missing = self.learner.memory - recent.shape[1]
        return torch.nn.functional.pad(recent[:, : self.learner.memory], (0, max(0, missing)), value=self.n_items)

    def planned_head(
        self,
        posterior: Tensor,
        memory: Tensor,
        picks: Tensor,
        allowed: Tensor | None = None,
        patience: Tensor | None = None,
        excluded: Tensor | None = None,
    ) -> Head:
        """Return the head of visitors with a log posterior, last picks, pick counts and a log posterior of impatience.

        Lists are planned among the items that `allowed` [A] marks, without those of the row in `excluded` [n, h]; the
        scores of other items are not masked.
        """
        planner = self.planner()
        lists = planner.plan(posterior, memory, picks, allowed, patience, excluded)
        state = self.taste((posterior.softmax(1) @ self.types)[:, None], memory)[:, 0]
        state = state * (1 + planner.slopes.zeta * self.match_conversion)
        bias = planner._item_score()
        # No other item has a higher score.
        bound = state.norm(dim=1) * self._largest(planner.x.norm(dim=1)) + self._largest(bias)
        order = torch.arange(lists.shape[1], 0, -1, device=lists.device)
        return Head(state, planner.x, bias, lists, bound[:, None] + order, replaces_base=True, shard=self.shard)

    def _largest(self, values: Tensor) -> Tensor:
        return values.max() if self.shard is None else self.shard.maximum(values)

    def start_sessions(self, rows: int, recent: Tensor | None = None) -> "UserSessions":
        """Return the state of `rows` sessions after picks [rows, h], most recent first; None for new sessions."""
        return UserSessions(self, rows, recent)


class UserSessions:
    """The posteriors of type and impatience, the last picks and the number of picks of running sessions."""

    @torch.no_grad()
    def __init__(self, agent: UserModelAgent, rows: int, recent: Tensor | None = None) -> None:
        self.agent, planner, device = agent, agent.planner(), agent.x.device
        if recent is None:
            recent = torch.full((rows, 1), agent.n_items, device=device)
        recent_picks = recent[:, : agent.options.history]
        self.posterior, self.patience = planner.after_picks(recent_picks), planner.start_patience(rows)
        if planner.look_ahead:
            self.patience = planner.patience_after_picks(recent_picks)
        self.memory, self.picks = agent.last_picks(recent), (recent < agent.n_items).sum(1)

    @torch.no_grad()
    def head(self, rows: Tensor, allowed: Tensor | None = None, excluded: Tensor | None = None) -> Head:
        """Return the head of some sessions, with lists planned as `planned_head` describes."""
        parts = self.posterior[rows], self.memory[rows], self.picks[rows]
        return self.agent.planned_head(*parts, allowed, self.patience[rows], excluded)

    @torch.no_grad()
    def observe(self, rows: Tensor, lists: Tensor, items: Tensor) -> None:
        """Update some sessions after lists [n, k] and picks [n]; n_items means that nothing was picked."""
        match, picked = lists == items[:, None], items < self.agent.n_items
        place = torch.where(match.any(1) & picked, match.int().argmax(1) + 1, 0)
        is_known = match.any(1) | ~picked  # a pick that was not on the list says nothing about the list
        planner = self.agent.planner()
        change = planner.after_list(lists, self.memory[rows], place)
        self.posterior[rows] += torch.where(is_known[:, None], change, 0.0)
        memory = self.memory[rows]
        self.memory[rows] = torch.where(picked[:, None], torch.cat([items[:, None], memory[:, :-1]], 1), memory)
        # The next list is planned only if the visitor stays.
        self.patience[rows] += planner.after_stay(self.memory[rows], picked, self.picks[rows])
        self.picks[rows] += picked


def _validated(log: ListLog) -> ListBatch:
    return log.batch(torch.arange(min(VALIDATED_CHOICES, log.sessions), device=log.first.device))


def _choice_likelihood(terms: UserSymbols, batch: ListBatch) -> float:
    sessions = torch.zeros(len(batch.weight), len(terms.log_prior), device=terms.choice.device)
    choices = terms.log_prior + sessions.index_add(0, batch.session, terms.choice + terms.conversion)
    return float(choices.logsumexp(1).sum() / len(batch))


def build_user_agent(
    n_items: int,
    learner: UserModel,
    network: NetworkOptions,
    shape: LogShape,
    features: ItemFeatures | None = None,
    shard: Shard | None = None,
) -> UserModelAgent:
    """Build a user model for logs of a shape. `start` or a checkpoint sets the rewards."""
    has_lists = shape.list_length > 0
    k = shape.list_length if has_lists else 1 + learner.negatives
    return UserModelAgent(n_items, learner, k, [0.0] * shape.behaviours, has_lists, network, features, shard)
