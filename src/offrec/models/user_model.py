"""The parameters of the user model and its likelihood. `offrec.algorithms.user_model` has the equations."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from offrec.algorithms import Needs
from offrec.algorithms.user_model import UserModel, UserSymbols
from offrec.catalogue import Head, logsumexp
from offrec.catalogue.head import MASKED
from offrec.data.list_log import ListBatch
from offrec.models.item_features import FeatureMap, ItemFeatures
from offrec.models.network import NetworkOptions

PRECISIONS = (5.0, 10.0, 20.0, 40.0, 100.0, 1000.0)  # of the prior of ε′, the item's own effect on leaving
DECAYS = (0.3, 0.6, 0.75, 0.9)  # of the weights of earlier picks in leaving
STEPS = 12  # numbers of picks with an effect on leaving of their own; the last is for all larger numbers
MAX_LOGIT = 60.0  # e⁶⁰ is a finite float32, also if several are added
SEEN = 3  # effects of an item that is in memory 0, 1, or more times


class UserModelNetwork(nn.Module):
    """How visitors choose, convert and leave.

    Args:
        n_items: Size of the catalogue.
        learner: The options.
        k: Length of the lists in the log.
        rewards: Reward of each behaviour.
        has_lists: Whether the log has lists; otherwise exposure is unknown, and so is how often nothing is picked.
        options: Network options, of which only `history` is read.
        features: The features of the items, or None. A linear map of them is the prior mean of x, a, ε and ε′.
    """

    stochastic = False
    from_log = ("reward", "shown")  # from the options and the log; a warm start does not copy them
    best: Tensor
    statistics: Tensor
    reward: Tensor
    grid_precision: Tensor
    grid_log_weight: Tensor
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
    ) -> None:
        super().__init__()
        self.n_items, self.learner, self.k, self.has_lists = n_items, learner, k, has_lists
        self.learns_exposure = has_lists and learner.exposure != "off"  # "auto" is resolved before training
        self.options = options or NetworkOptions()
        self.needs: Needs = learner.needs
        self.actor = self.critic = self.target = self.prior = None  # the networks of other agents
        types, width, memory, others = learner.types, learner.width, learner.memory, max(1, len(rewards) - 1)

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape))

        self.x = nn.Parameter(0.3 * torch.randn(n_items, width))
        self.types = nn.Parameter(0.5 * torch.randn(types, width))  # U
        self.type_logit = zeros(types)  # log π, up to a constant
        self.attractiveness = zeros(n_items)  # a
        self.none = zeros()  # u₀
        self.lag = nn.Parameter(torch.full((memory,), 0.05))  # g
        self.seen_choice, self.seen_conversion = zeros(SEEN - 1), zeros(SEEN - 1)  # s, s′
        self.place = zeros(k)  # p
        self.match_conversion = nn.Parameter(torch.ones(()))  # κ
        self.conversion_effect, self.conversion_slope = zeros(n_items), zeros()  # ε, ρ
        self.behaviour_base = nn.Parameter(torch.full((others,), -3.0))  # α
        self.behaviour_slope = nn.Parameter(torch.ones(others))  # β
        self.exposed_types = nn.Parameter(0.5 * torch.randn(types, width))  # Y
        self.exposed = zeros(n_items)  # e
        grid = list(product(PRECISIONS, DECAYS))
        count = len(grid)
        self.leave_effect = zeros(n_items, count)  # ε′
        self.leave_slopes = zeros(2, count)  # ρ₁, ρ₂
        self.leave_base = nn.Parameter(torch.full((count,), -2.0))  # h₀
        self.leave_picks = zeros(STEPS, count)  # h
        self.leave_missing, self.leave_idle, self.leave_same = zeros(count), zeros(count), zeros(count)
        self.prior_mean = None if features is None else _prior_mean(features, width + 2 + count)
        self.known_items = n_items  # a has mean 0 over these; items after them are new
        self._means: tuple[Tensor, ...] | None = None
        weight = torch.tensor([decay for _, decay in grid])[None] ** torch.arange(memory)[:, None]
        self.register_buffer("grid_precision", torch.tensor([precision for precision, _ in grid]), persistent=False)
        self.register_buffer("grid_log_weight", (weight / weight.sum(0)).log(), persistent=False)
        self.register_buffer("reward", torch.tensor(rewards))
        self.register_buffer("best", torch.zeros((), dtype=torch.long))  # index of the selected leave model
        self.register_buffer("is_cascade", torch.tensor(has_lists and learner.choice == "cascade"))
        self.register_buffer("shown", torch.full((n_items,), 1.0 / n_items))  # share of each item in what was shown
        self.register_buffer("statistics", torch.tensor([0.0, 0.0, 0.5]))  # reward, effect on leaving, none share

    def set_exposure(self, shown: Tensor) -> None:
        """Initialise exposure with the number of times each item was shown."""
        with torch.no_grad():
            self.shown.copy_((shown / shown.sum()).to(self.shown))
            self.exposed.copy_((shown + 1).log().to(self.exposed))

    # ---- parts of the equations; items at or above n_items are padding

    def _mapped(self) -> tuple[Tensor, ...] | None:
        """Return the prior means of x [A, d], a [A], ε [A] and ε′ [A, G]; None without features."""
        if self.prior_mean is None or self._means is not None:
            return self._means
        width = self.x.shape[1]
        means = self.prior_mean()[0][: self.n_items]
        return means[:, :width], means[:, width], means[:, width + 1], means[:, width + 2 :]

    @contextmanager
    def _map_once(self) -> Iterator[None]:
        """Map the features once for all parts of the equations inside a `with` block."""
        self._means = self._mapped()
        try:
            yield
        finally:
            self._means = None

    def vectors(self) -> Tensor:
        """[A, d] x."""
        means = self._mapped()
        return self.x if means is None else self.x + means[0]

    def centred(self) -> Tensor:
        """[A] a, with mean 0."""
        means = self._mapped()
        a = self.attractiveness if means is None else self.attractiveness + means[1]
        return a - a[: self.known_items].mean()

    def interest(self) -> Tensor:
        """[A] q."""
        means = self._mapped()
        effect = self.conversion_effect if means is None else self.conversion_effect + means[2]
        return effect + self.conversion_slope * self.centred()

    def worth(self) -> Tensor:
        """[A, G] w, the reduction of the log-odds of leaving."""
        slopes, means = self.leave_slopes, self._mapped()
        # Leaving must not change what is learned from choices and conversions, so a and q are detached.
        return (
            (self.leave_effect if means is None else self.leave_effect + means[3])
            + self.centred().detach()[:, None] * slopes[0]
            + self.interest().detach()[:, None] * slopes[1]
        )

    def at(self, table: Tensor, items: Tensor) -> Tensor:
        """Return rows of a table; 0 for padding."""
        is_item = (items < self.n_items).to(table.dtype)
        values = table[items.clamp(max=self.n_items - 1)]
        return values * is_item.reshape(*items.shape, *[1] * (table.ndim - 1))

    def taste_shift(self, memory: Tensor) -> Tensor:
        """[n, d] Σ_l g_l x_{m_l}."""
        return torch.einsum("nm,nmd->nd", self.lag.expand(memory.shape), self.at(self.vectors(), memory))

    def times_seen(self, memory: Tensor, items: Tensor) -> Tensor:
        """[n, c] how often each of the items [n, c] is in memory, at most SEEN − 1."""
        return (items[:, :, None] == memory[:, None, :]).sum(-1).clamp(max=SEEN - 1)

    def match(self, types: Tensor, memory: Tensor, items: Tensor) -> Tensor:
        """[n, C, c] x_i·(U_c + Σ_l g_l x_{m_l}) for types [n, C] and items [n, c]."""
        state = self.types[types] + self.taste_shift(memory)[:, None]
        return torch.einsum("ncd,nid->nci", state, self.at(self.vectors(), items))

    def utility_and_interest(self, types: Tensor, memory: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return u without the effect of the place, and z, for types [n, C] and items [n, c]: [n, C, c] each."""
        match, seen = self.match(types, memory, items), self.times_seen(memory, items)
        utility = self.at(self.centred(), items) + _level(self.seen_choice, seen)
        interest = self.at(self.interest(), items) + _level(self.seen_conversion, seen)
        utility = utility.masked_fill(items >= self.n_items, MASKED)
        return match + utility[:, None], self.match_conversion * match + interest[:, None]

    def behaviour_logits(self, interest: Tensor) -> Tensor:
        """[…, b] logits of the behaviours for z [...]. The first behaviour is the reference."""
        others = self.behaviour_base + self.behaviour_slope * interest[..., None]
        logits = torch.cat([torch.zeros_like(interest)[..., None], others], -1)
        return logits[..., : len(self.reward)]

    def expected_reward(self, interest: Tensor) -> Tensor:
        """[…] expected reward of a pick with z."""
        # A softmax over the short dimension of behaviours would take most of the time of a plan on CPUs.
        earned, total = self.reward[0].expand_as(interest).clone(), torch.ones_like(interest)
        for number in range(1, len(self.reward)):
            logit = self.behaviour_base[number - 1] + self.behaviour_slope[number - 1] * interest
            odds = logit.clamp(max=MAX_LOGIT).exp()
            earned = earned + self.reward[number] * odds
            total = total + odds
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

    def leave_logits(self, memory: Tensor, picked: Tensor, picks: Tensor) -> Tensor:
        """[n, G] log-odds of leaving after a list. `memory` includes the pick, `picks` does not."""
        missing = (memory >= self.n_items).to(self.leave_missing.dtype)[..., None] * self.leave_missing
        satisfaction = ((self.at(self.worth(), memory) + missing) * self.grid_log_weight.exp()).sum(1)
        idle = (~picked).to(satisfaction.dtype)[:, None] * self.leave_idle
        same = self.similarity(memory)[:, None] * self.leave_same
        return self.leave_base + self.leave_picks[picks.clamp(max=STEPS - 1)] - satisfaction + idle + same

    # ---- likelihood

    def symbols(self, batch: ListBatch, lists: int) -> UserSymbols:
        """Compute the symbols of the loss. The priors are divided by `lists`, the number of lists in the log."""
        with self._map_once():
            return self._symbols(batch, lists)

    def _symbols(self, batch: ListBatch, lists: int) -> UserSymbols:
        offered, count = batch.offered, len(self.types)
        types = torch.arange(count, device=offered.device).expand(len(offered), -1)
        utility, interest = self.utility_and_interest(types, batch.memory, offered)
        if self.is_cascade:
            choice = _at(self.log_choice(utility), batch.place)
        else:  # without lists, every row has a pick, and how often nothing is picked is unknown
            none = self.none if self.has_lists else torch.full_like(self.none, MASKED)
            utility = utility + self.place if self.has_lists else utility
            choice = _log_softmax_at(torch.cat([none.expand_as(utility[..., :1]), utility], -1), batch.place)
        picked = batch.place > 0
        behaviours = self.behaviour_logits(_at(interest, (batch.place - 1).clamp(min=0)))
        conversion = _log_softmax_at(behaviours, batch.behaviour) * picked.to(choice.dtype)[:, None]
        item = torch.where(picked, batch.picked_item, self.n_items)
        shifted = torch.cat([item[:, None], batch.memory[:, :-1]], 1)
        memory = torch.where(picked[:, None], shifted, batch.memory)
        return UserSymbols(
            log_prior=self.type_logit.log_softmax(0),
            choice=choice,
            conversion=conversion,
            exposure=self._exposure(batch) if self.learns_exposure else torch.zeros_like(choice),
            leave_logit=self.leave_logits(memory, picked, batch.picks),
            leaves=batch.leaves,
            session=batch.session,
            penalty=self._penalty() / lists,
            lists_per_session=choice.new_tensor(len(batch) / len(batch.weight)),
        )

    def _exposure(self, batch: ListBatch) -> Tensor:
        """[D, K] log P(list|c). Items in memory do not count: many shops show them again to everybody."""
        offered = batch.offered
        counts = (offered < self.n_items) & (self.times_seen(batch.memory, offered) == 0)
        vectors = self.at(self.vectors(), offered)
        shown = torch.einsum("nid,kd->nki", vectors, self.exposed_types) + self.at(self.exposed, offered)[:, None]
        total = logsumexp(Head(self.exposed_types, self.vectors(), self.exposed))
        return ((shown - total[:, None]) * counts[:, None]).sum(-1)

    def _penalty(self) -> Tensor:
        options = self.learner
        vectors = options.vector_precision * self.x.square().sum()
        attractiveness = self.attractiveness - self.attractiveness.mean()
        effects = [self.types, self.exposed_types, attractiveness, self.conversion_effect]
        effects += [] if self.prior_mean is None else [self.prior_mean.categories, self.prior_mean.dense]
        shared = options.effect_precision * sum(
            (effect.square().sum() for effect in effects), torch.zeros_like(vectors)
        )
        leaving = (self.grid_precision * self.leave_effect.square()).sum()
        return (vectors + shared + leaving) / 2


def _prior_mean(features: ItemFeatures, width: int) -> FeatureMap:
    """Return a map of features that is 0 before training. It has no bias."""
    made = FeatureMap(features, width, dropout=0.0)
    for weights in made.parameters():
        nn.init.zeros_(weights)
    for bias in (made.category_bias, made.dense_bias):
        bias.requires_grad_(False)
    return made


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
