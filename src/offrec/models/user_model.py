"""The parameters of the user model and its likelihood. `offrec.algorithms.user_model` has the equations."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from offrec.algorithms import Needs
from offrec.algorithms.user_model import UserModel, UserSymbols
from offrec.catalogue import Head, logsumexp
from offrec.catalogue.head import MASKED
from offrec.catalogue.initial_values import compute_unless_meta
from offrec.catalogue.shard import Shard, random_rows, sum_over_batch
from offrec.data.list_log import ListBatch
from offrec.models.item_features import FeatureMap, ItemFeatures
from offrec.models.network import NetworkOptions

PRECISIONS = (3.0, 10.0, 40.0, 160.0)  # of the prior of ε′, the item's own effect on leaving
DECAYS = (0.3, 0.5, 0.6, 0.7, 0.8)  # of the weights of earlier picks in leaving
WITHOUT_VALIDATION = (10.0, 0.6)  # the precision and decay of logs without validation sessions
LEVELS = 5  # of impatience: the nodes of Gauss–Hermite quadrature
FIRST_PRECISION = 2.0  # of a and ε in the first epoch, if they are estimated
FIRST_FADING = 3.0  # φ starts at .95
STEPS = 12  # numbers of picks with an effect on leaving of their own; the last is for all larger numbers
MAX_LOGIT = 60.0  # e⁶⁰ is a finite float32, also if several are added
SEEN = 3  # effects of an item that is in memory 0, 1, or more times
ITEM_PARAMETERS = ("x", "attractiveness", "conversion_effect", "exposed", "leave_effect")


class UserModelNetwork(nn.Module):
    """How visitors choose, convert and leave.

    Args:
        n_items: Size of the catalogue.
        learner: The options.
        k: Length of the lists in the log.
        rewards: Reward of each behaviour. `set_rewards` sets those of items, if the log has a reward column.
        has_lists: Whether the log has lists; otherwise exposure is unknown, and so is how often nothing is picked.
        options: Network options, of which only `history` is read.
        features: The features of the items, or None. A linear map of them is the prior mean of x, a, ε and ε′.
        shard: The range of items that this process stores; None: all. `[A]` then means this range.
    """

    stochastic = False
    # Parameters of leaving, with one entry per candidate in the last dimension.
    leaving_parameters = (
        *("leave_effect", "leave_slopes", "leave_base", "leave_picks"),
        *("leave_missing", "leave_idle", "leave_same", "log_impatience"),
    )
    frozen_items: Tensor | None = None
    # From the options and the log; a warm start does not copy them.
    from_log = ("reward", "item_reward", "shown", "evidence")
    # Tensors with one row per item, and the number of their further rows.
    item_rows = dict.fromkeys((*ITEM_PARAMETERS, "item_reward", "shown", "evidence"), 0)
    best: Tensor
    statistics: Tensor
    precision: Tensor
    evidence: Tensor
    reward: Tensor
    item_reward: Tensor
    grid_precision: Tensor
    grid_log_weight: Tensor
    level: Tensor
    log_share: Tensor
    shown: Tensor
    is_cascade: Tensor

    def __init__(
        self,
        n_items: int,
        learner: UserModel,
        k: int,
        rewards: list[float],
        has_lists: bool = True,
        options: NetworkOptions | None = None,
        features: ItemFeatures | None = None,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        self.n_items, self.learner, self.k, self.has_lists = n_items, learner, k, has_lists
        self.shard, rows = shard, n_items if shard is None else shard.size
        self.learns_exposure = has_lists and learner.exposure != "off"  # "auto" is resolved before training
        self.options = options or NetworkOptions()
        self.needs: Needs = learner.needs
        self.actor = self.critic = self.target = self.prior = None  # the networks of other agents
        types, width, memory, others = learner.types, learner.width, learner.memory, max(1, len(rewards) - 1)

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape))

        self.x = nn.Parameter(random_rows(n_items, width, shard, 0.3))
        self.types = nn.Parameter(random_rows(types, width, None, 0.5))  # U
        self.type_logit = zeros(types)  # log π, up to a constant
        self.attractiveness = zeros(rows)  # a
        self.none = zeros()  # u₀
        self.lag = nn.Parameter(torch.full((memory,), 0.05))  # g
        self.seen_choice, self.seen_conversion = zeros(SEEN - 1), zeros(SEEN - 1)  # s, s′
        self.place = zeros(k)  # p
        self.match_conversion = nn.Parameter(torch.ones(()))  # κ
        self.conversion_effect, self.conversion_slope = zeros(rows), zeros()  # ε, ρ
        self.behaviour_base = nn.Parameter(torch.full((others,), -3.0))  # α
        self.behaviour_slope = nn.Parameter(torch.ones(others))  # β
        self.exposed_types = nn.Parameter(random_rows(types, width, None, 0.5))  # Y
        self.exposed = zeros(rows)  # e
        grid = list(product(PRECISIONS, DECAYS))
        count = len(grid)
        self.leave_effect = zeros(rows, count)  # ε′
        self.leave_slopes = zeros(2, count)  # ρ₁, ρ₂
        self.leave_base = nn.Parameter(torch.full((count,), -2.0))  # h₀
        self.leave_picks = zeros(STEPS, count)  # h
        self.leave_missing, self.leave_idle, self.leave_same = zeros(count), zeros(count), zeros(count)
        self.log_impatience = nn.Parameter(torch.full((count,), -0.5))  # log σ
        self.fading = nn.Parameter(torch.full((), FIRST_FADING))  # log-odds of φ
        self.prior_mean = None if features is None else _prior_mean(features, width + 2 + count)
        self.known_items = n_items  # a has mean 0 over these; items after them are new
        self._means: tuple[Tensor, ...] | None = None

        def log_weight() -> Tensor:
            weight = torch.tensor([decay for _, decay in grid])[None] ** torch.arange(memory)[:, None]
            return (weight / weight.sum(0)).log()

        self.register_buffer("grid_precision", torch.tensor([precision for precision, _ in grid]), persistent=False)
        self.register_buffer("grid_log_weight", compute_unless_meta((memory, count), log_weight), persistent=False)
        level, share = hermegauss(LEVELS)  # E[f(z)] ≈ Σ share · f(level) for v ~ N(0, 1)
        self.register_buffer("level", torch.tensor(level, dtype=torch.float), persistent=False)
        log_share = np.log(share / share.sum())
        self.register_buffer("log_share", torch.tensor(log_share, dtype=torch.float), persistent=False)
        self.register_buffer("reward", torch.tensor(rewards))
        self.register_buffer("item_reward", torch.zeros(rows, len(rewards)))  # of each item, minus `reward`
        self.register_buffer("best", torch.tensor(grid.index(WITHOUT_VALIDATION)))  # the selected leave model
        self.register_buffer("is_cascade", torch.tensor(has_lists and learner.choice == "cascade"))
        self.register_buffer("shown", torch.full((rows,), 1.0 / n_items))  # share of each item in what was shown
        self.register_buffer("precision", torch.full((2,), FIRST_PRECISION))  # of a and ε
        self.set_given_precisions()
        self.register_buffer("evidence", torch.zeros(rows, 4))  # about a and ε, see `offrec.models.item_prior`
        self.register_buffer("statistics", torch.tensor([0.0, 0.0, 0.5]))  # reward, effect on leaving, none share

    def set_given_precisions(self) -> None:
        """Set the precisions that the options give; the others are estimated."""
        for number, given in enumerate((self.learner.attractiveness_precision, self.learner.conversion_precision)):
            if given is not None:
                self.precision[number] = given

    def set_exposure(self, shown: Tensor) -> None:
        """Initialise exposure with the number of times each item was shown."""
        with torch.no_grad():
            self.shown.copy_((shown / self.sum_items(shown.sum())).to(self.shown))
            self.exposed.copy_((shown + 1).log().to(self.exposed))

    def set_rewards(self, rewards: Tensor) -> None:
        """Set the mean reward [behaviours] of events, or [A, behaviours] of each item's events."""
        self.reward.copy_(self.mean_of_items(rewards) if rewards.ndim > 1 else rewards)
        self.item_reward.copy_(rewards - self.reward)

    def freeze_items(self, frozen: Tensor) -> None:
        """Keep the parameters of some items [A], such as those of an earlier run about which the log says nothing.

        Without data, the gradient of the prior alone would move them to 0 within an epoch, because Adam scales it up.
        """
        self.frozen_items, is_trained = frozen, ~frozen
        for parameter in (getattr(self, name) for name in ITEM_PARAMETERS):
            rows = is_trained.to(parameter).reshape(-1, *[1] * (parameter.ndim - 1))
            parameter.register_hook(rows.mul)

    # ---- parts of the equations; items at or above n_items are padding

    def _mapped(self) -> tuple[Tensor, ...] | None:
        """Return the prior means of x [A, d], a [A], ε [A] and ε′ [A, G]; None without features."""
        if self.prior_mean is None or self._means is not None:
            return self._means
        width = self.x.shape[1]
        means = self.prior_mean()[0][: len(self.x)]
        return means[:, :width], means[:, width], means[:, width + 1], means[:, width + 2 :]

    @contextmanager
    def map_once(self) -> Iterator[None]:
        """Map the features once for all parts of the equations inside a `with` block."""
        before, self._means = self._means, self._mapped()
        try:
            yield
        finally:
            self._means = before

    def vectors(self) -> Tensor:
        """[A, d] x."""
        means = self._mapped()
        return self.x if means is None else self.x + means[0]

    def centred(self) -> Tensor:
        """[A] a, with mean 0."""
        means = self._mapped()
        a = self.attractiveness if means is None else self.attractiveness + means[1]
        return a - self.mean_of_items(a, self.known_items)

    def interest(self) -> Tensor:
        """[A] q."""
        means = self._mapped()
        effect = self.conversion_effect if means is None else self.conversion_effect + means[2]
        (slope,) = self._for_own_items(self.conversion_slope)
        return effect + slope * self.centred()

    def worth(self) -> Tensor:
        """[A, G] w, the reduction of the log-odds of leaving."""
        (slopes,), means = self._for_own_items(self.leave_slopes), self._mapped()
        # Leaving must not change what is learned from choices and conversions, so a and q are detached.
        return (
            (self.leave_effect if means is None else self.leave_effect + means[3])
            + self.centred().detach()[:, None] * slopes[0]
            + self.interest().detach()[:, None] * slopes[1]
        )

    def at(self, table: Tensor, items: Tensor) -> Tensor:
        """Return rows of a table; 0 for padding."""
        if self.shard is not None:
            rows = self.shard.lookup(items, table if table.ndim > 1 else table[:, None])
            return rows if table.ndim > 1 else rows[..., 0]
        is_item = (items < self.n_items).to(table.dtype)
        values = table[items.clamp(max=self.n_items - 1)]
        return values * is_item.reshape(*items.shape, *[1] * (table.ndim - 1))

    def sum_items(self, part: Tensor) -> Tensor:
        """Return the sum over all items, given the sum over the items that this process stores."""
        return part if self.shard is None else self.shard.sum(part)

    def mean_of_items(self, values: Tensor, known: int | None = None) -> Tensor:
        """Return the mean over all items of values [A, …], or over the first `known` items."""
        if self.shard is None:
            return values[:known].mean(0)
        (mean,) = self._for_own_items(self.shard.sum(values.sum(0)) / self.n_items)
        return mean

    def _for_own_items(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return tensors that this process applies to its own items. Their gradients are summed over all items."""
        if self.shard is None:
            return tensors
        copies = self.shard.replicate(*tensors)
        return tuple(copy for copy in copies if copy is not None)

    def taste(self, types: Tensor, memory: Tensor) -> Tensor:
        """[n, C, d] φⁿ U_c + Σ_l g_l x_{m_l} for visitors with taste U [n, C, d] when they arrive."""
        shift = torch.einsum("nm,nmd->nd", self.lag.expand(memory.shape), self.at(self.vectors(), memory))
        share = self.first_taste_left()[(memory < self.n_items).sum(1)]
        return share[:, None, None] * types + shift[:, None]

    def first_taste_left(self) -> Tensor:
        """[m + 1] φⁿ, the share of the first taste that is left after n = 0, 1, …, m picks in memory."""
        return self.fading.sigmoid() ** torch.arange(self.learner.memory + 1, device=self.fading.device)

    def times_seen(self, memory: Tensor, items: Tensor) -> Tensor:
        """[n, c] how often each of the items [n, c] is in memory, at most SEEN − 1."""
        return (items[:, :, None] == memory[:, None, :]).sum(-1).clamp(max=SEEN - 1)

    def match(self, types: Tensor, memory: Tensor, items: Tensor) -> Tensor:
        """[n, C, c] x_i·(φⁿ U_c + Σ_l g_l x_{m_l}) for types [n, C] and items [n, c]."""
        return torch.einsum("ncd,nid->nci", self.taste(self.types[types], memory), self.at(self.vectors(), items))

    def utility_and_interest(self, types: Tensor, memory: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return u without the effect of the place, and z, for types [n, C] and items [n, c]: [n, C, c] each."""
        match, seen = self.match(types, memory, items), self.times_seen(memory, items)
        utility = self.at(self.centred(), items) + _level(self.seen_choice, seen)
        interest = self.at(self.interest(), items) + _level(self.seen_conversion, seen)
        utility = utility.masked_fill(items >= self.n_items, MASKED)
        return match + utility[:, None], self.match_conversion * match + interest[:, None]

    def slopes(self) -> Tensor:
        """[b − 1] β, with mean square 1: otherwise large β and small ε would avoid the prior of ε."""
        if len(self.behaviour_slope) == 1:
            return self.behaviour_slope.sign()  # without gradients, which would be rounding errors
        return self.behaviour_slope / self.behaviour_slope.square().mean().sqrt().clamp(min=1e-6)

    def behaviour_logits(self, interest: Tensor) -> Tensor:
        """[…, b] logits of the behaviours for z [...]. The first behaviour is the reference."""
        others = self.behaviour_base + self.slopes() * interest[..., None]
        logits = torch.cat([torch.zeros_like(interest)[..., None], others], -1)
        return logits[..., : len(self.reward)]

    def expected_reward(self, interest: Tensor, own: Tensor | None = None) -> Tensor:
        """[…] expected reward of a pick with z […].

        Args:
            interest: z.
            own: `item_reward` of the items […, behaviours]; None if all items have the same rewards.
        """
        # A softmax over the short dimension of behaviours would take most of the time of a plan on CPUs.
        earned, total, slopes = torch.zeros_like(interest), torch.zeros_like(interest), self.slopes()
        for number, reward in enumerate(self.reward):
            reward = reward if own is None else reward + own[..., number]
            if number == 0:  # the reference
                earned, total = earned + reward, total + 1
                continue
            logit = self.behaviour_base[number - 1] + slopes[number - 1] * interest
            odds = logit.clamp(max=MAX_LOGIT).exp()
            earned, total = earned + reward * odds, total + odds
        return earned / total

    def place_effects(self, k: int) -> Tensor:
        """[k] p; places after the log's last one have its effect."""
        return torch.cat([self.place, self.place[-1:].expand(max(0, k - len(self.place)))])[:k]

    def log_choice(self, utility: Tensor) -> Tensor:
        """[…, 1 + k] log-probabilities of picking nothing and each item of a list with u […, k], without p."""
        utility = utility + self.place_effects(utility.shape[-1])
        if not self.is_cascade:
            return torch.cat([self.none.expand(*utility.shape[:-1], 1), utility], -1).log_softmax(-1)
        passed = logsigmoid(self.none - utility).cumsum(-1)  # log-probability of passing over this place and all before
        before = torch.cat([torch.zeros_like(passed[..., :1]), passed[..., :-1]], -1)
        return torch.cat([passed[..., -1:], before + logsigmoid(utility - self.none)], -1)

    def similarity(self, memory: Tensor) -> Tensor:
        """[n] mean over memory of the largest cosine similarity of each pick with an earlier one, at least 0."""
        vectors = normalize(self.at(self.vectors().detach(), memory), dim=-1)
        return (vectors @ vectors.transpose(1, 2)).tril(-1).relu().amax(2).sum(1) / memory.shape[1]

    def impatience(self) -> Tensor:
        """[V, G] levels of v."""
        return self.log_impatience.exp() * self.level[:, None]

    def leave_logits(self, memory: Tensor, picked: Tensor, picks: Tensor) -> Tensor:
        """[n, G] log-odds of leaving after a list at v = 0. `memory` includes the pick, `picks` does not."""
        missing = (memory >= self.n_items).to(self.leave_missing.dtype)[..., None] * self.leave_missing
        satisfaction = ((self.at(self.worth(), memory) + missing) * self.grid_log_weight.exp()).sum(1)
        idle = (~picked).to(satisfaction.dtype)[:, None] * self.leave_idle
        same = self.similarity(memory)[:, None] * self.leave_same
        return self.leave_base + self.leave_picks[picks.clamp(max=STEPS - 1)] - satisfaction + idle + same

    def leave_logits_after(self, batch: ListBatch) -> Tensor:
        """[D, G] log-odds of leaving after each list of a batch."""
        return self.leave_logits(*self.memory_after(batch), batch.picks)

    def memory_after(self, batch: ListBatch) -> tuple[Tensor, Tensor]:
        """Return the last picks after each list [D, m], and whether it had a pick [D]."""
        picked = batch.place > 0
        shifted = torch.cat([batch.picked_item[:, None], batch.memory[:, :-1]], 1)
        return torch.where(picked[:, None], shifted, batch.memory), picked

    # ---- likelihood

    def symbols(self, batch: ListBatch, lists: int) -> UserSymbols:
        """Compute the symbols of the loss. The priors are divided by `lists`, the number of lists in the log."""
        with self.map_once():
            return self._symbols(batch, lists)

    def _symbols(self, batch: ListBatch, lists: int) -> UserSymbols:
        offered, count = batch.offered, len(self.types)
        types = torch.arange(count, device=offered.device).expand(len(offered), -1)
        utility, interest = self.utility_and_interest(types, batch.memory, offered)
        if self.is_cascade:
            choice = _at(self.log_choice(utility), batch.place)
            utility = utility + self.place
        else:  # without lists, every row has a pick, and how often nothing is picked is unknown
            none = self.none if self.has_lists else torch.full_like(self.none, MASKED)
            utility = utility + self.place if self.has_lists else utility
            choice = _log_softmax_at(torch.cat([none.expand_as(utility[..., :1]), utility], -1), batch.place)
        picked = batch.place > 0
        behaviours = self.behaviour_logits(_at(interest, (batch.place - 1).clamp(min=0)))
        conversion = _log_softmax_at(behaviours, batch.behaviour) * picked.to(choice.dtype)[:, None]
        return UserSymbols(
            log_prior=self.type_logit.log_softmax(0),
            utility=utility.detach(),
            choice=choice,
            conversion=conversion,
            exposure=self._exposure(batch) if self.learns_exposure else torch.zeros_like(choice),
            leave_logit=self.leave_logits_after(batch),
            impatience=self.impatience(),
            log_share=self.log_share,
            leaves=batch.leaves,
            session=batch.session,
            penalty=self._penalty() / lists,
            lists_per_session=choice.new_tensor(_lists_per_session(batch)),
        )

    def _exposure(self, batch: ListBatch) -> Tensor:
        """[D, K] log P(list|c). Items in memory do not count: many shops show them again to everybody."""
        offered = batch.offered
        counts = (offered < self.n_items) & (self.times_seen(batch.memory, offered) == 0)
        vectors = self.at(self.vectors(), offered)
        shown = torch.einsum("nid,kd->nki", vectors, self.exposed_types) + self.at(self.exposed, offered)[:, None]
        total = logsumexp(Head(self.exposed_types, self.vectors(), self.exposed, shard=self.shard))
        return ((shown - total[:, None]) * counts[:, None]).sum(-1)

    def _penalty(self) -> Tensor:
        options = self.learner
        vectors = options.vector_precision * self.x.square().sum()
        centred = self.attractiveness - self.mean_of_items(self.attractiveness)
        effects = [self.types, self.exposed_types]
        effects += [] if self.prior_mean is None else [self.prior_mean.categories, self.prior_mean.dense]
        shared = options.effect_precision * sum(
            (effect.square().sum() for effect in effects), torch.zeros_like(vectors)
        )
        effects_of_items = torch.stack([centred.square().sum(), self.conversion_effect.square().sum()])
        leaving = (self.grid_precision * self.leave_effect.square()).sum()
        shared = shared + self.log_impatience.square().sum()
        return (self.sum_items(vectors + self.precision @ effects_of_items + leaving) + shared) / 2


def _prior_mean(features: ItemFeatures, width: int) -> FeatureMap:
    """Return a map of features that is 0 before training. It has no bias."""
    made = FeatureMap(features, width, dropout=0.0)
    for weights in made.parameters():
        nn.init.zeros_(weights)
    for bias in (made.category_bias, made.dense_bias):
        bias.requires_grad_(False)
    return made


def _lists_per_session(batch: ListBatch) -> float:
    """Return the mean number of lists in the sessions of a batch, of which other ranks may have a part.

    A rank without sessions in a batch has one with weight 0, which does not count.
    """
    counts = torch.tensor([len(batch), len(batch.weight)], dtype=torch.double, device=batch.weight.device)
    lists, sessions = sum_over_batch(counts * (batch.weight > 0).any()).tolist()
    return float(lists / sessions)


def _level(effects: Tensor, level: Tensor) -> Tensor:
    """Return the effect of each level; level 0 has none."""
    return torch.cat([effects.new_zeros(1), effects])[level]


def _at(table: Tensor, index: Tensor) -> Tensor:
    """[n, C] entries of table [n, C, c] at index [n]."""
    return table.gather(2, index[:, None, None].expand(-1, table.shape[1], 1))[..., 0]


def _log_softmax_at(logits: Tensor, index: Tensor) -> Tensor:
    """[n, C] log softmax over the last dimension of logits [n, C, c], at index [n]."""
    by_type = logits.transpose(1, 2).contiguous()  # a reduction over a short last dimension is slow on CPUs
    chosen = by_type.gather(1, index[:, None, None].expand(-1, 1, by_type.shape[2]))[:, 0]
    return chosen - by_type.logsumexp(1)
