"""Plan lists in a user model.

The value of a list ℓ for type c is Σ_{i∈ℓ} P(i|ℓ,c) · e(i,c), with

    e(i,c) = E[reward of i|c] + V(memory after i) − V(memory after no pick)

V is the expected reward of the rest of the session, over the posterior of the visitor's impatience: those who have
stayed for many lists are probably patient. V assumes that later lists earn a mean reward r̄ and that later picks have
a mean effect w̄ on leaving; both are measured by simulating the planner in the model. The planner adds the item that
increases the mean value over the posterior of c most, until the list is complete; if visitors choose place by place, it
starts from the best list for the mean visitor and improves it place by place.

Candidates come from heads over the catalogue, one per likely type: the logarithm of exp(u) · (e − λ), where λ is the
value of the list, is linearised in match, q and w around the lists that the planner makes for visitors of known type.
If items have rewards of their own, the logarithm of what they change in E[reward of i|c] is added.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, pad

from offrec.catalogue import Head, logsumexp, restrict, top_k
from offrec.catalogue.head import ALL_MASKED, MASKED
from offrec.models.cascade_lists import best_cascade_lists
from offrec.models.user_model import STEPS, UserModelNetwork

SIMULATED, SIMULATED_LISTS = 256, 64
FEW = 0.02  # a simulation ends when this share of the visitors is left
STEP = 0.01  # of numerical derivatives
LEAST_RATIO = 1e-3  # smaller expected rewards, and negative ones, count as this share of the mean
ROWS = 512  # lists that are planned at once
GPU_ROWS = 4096  # the same on a GPU, where small batches mainly wait for kernel launches


@dataclass(frozen=True)
class Slopes:
    """The linear score of candidates: (1 + zeta · κ) x_i·state + a_i + zeta · q_i + xi · w_i + log ratio_i."""

    zeta: float
    xi: float


class Planner:
    """Plans lists with the current parameters of a user model.

    Args:
        model: The model.
        k: Length of the lists.
        look_ahead: Whether to plan beyond the next pick.
    """

    @torch.no_grad()
    def __init__(self, model: UserModelNetwork, k: int, look_ahead: bool) -> None:
        self.model, self.k, self.look_ahead = model, min(k, model.n_items), look_ahead
        self.a, self.q = model.centred(), model.interest()
        best = int(model.best)
        self.w, self.missing = model.worth()[:, best].clone(), model.leave_missing[best]
        self.weight = model.grid_log_weight[:, best].exp()
        self.base = model.leave_base[best] + model.leave_picks[:, best]  # [STEPS]
        self.idle, self.same = model.leave_idle[best], model.leave_same[best]
        self.impatience = model.impatience()[:, best]  # [V]
        self.x = model.vectors()
        self.unit_x = normalize(self.x, dim=1)
        self.log_prior = model.type_logit.log_softmax(0)
        self.reward, self.later_w, self.none_share = model.statistics.tolist()
        self.has_item_rewards = bool(model.sum_items(model.item_reward.abs().sum()) > 0)
        self.log_ratio = self._log_ratio() if self.has_item_rewards else torch.zeros_like(self.a)
        self.none = model.none if model.has_lists else self._assumed_none()
        self.slopes = Slopes(1.0, 0.0)
        for _ in range(3):  # the slopes depend on the lists, and the lists on the candidates
            self.slopes = self._slopes()

    def _assumed_none(self) -> Tensor:
        """Return u₀ such that nothing is picked from the assumed share of lists of k items sampled as in the log."""
        share, model = self.model.learner.none_share, self.model
        utility = model.types @ self.x.T + self.a + model.shown.clamp(min=1e-12).log()
        total = self._logsumexp((self.log_prior[:, None] + utility).flatten()) + torch.tensor(float(self.k)).log()
        return total + torch.tensor(share / (1 - share)).log()

    def _log_ratio(self) -> Tensor:
        """[A] logarithm of the expected reward with the item's own rewards, divided by that with mean rewards."""
        own, mean = self.model.expected_reward(self.q, self.model.item_reward), self.model.expected_reward(self.q)
        least = self.model.mean_of_items(mean.abs()).clamp(min=1e-12) * LEAST_RATIO
        return (own.clamp(min=least) / mean.clamp(min=least)).log()

    def _expected_reward(self, interest: Tensor, items: Tensor) -> Tensor:
        """[n, C, c] expected reward of picks with z [n, C, c] of items [n, c]."""
        own = self.model.at(self.model.item_reward, items)[:, None] if self.has_item_rewards else None
        return self.model.expected_reward(interest, own)

    def _effects(self, items: Tensor) -> Tensor:
        """Return w of items; padding has the effect of a missing pick."""
        return torch.where(items < self.model.n_items, self.model.at(self.w, items), self.missing)

    def _logsumexp(self, values: Tensor) -> Tensor:
        """Return the logsumexp over all items of values […, A], or of values [n · A]."""
        own, shard = values.logsumexp(-1), self.model.shard
        return own if shard is None else shard.combine(own.clamp(min=MASKED).reshape(-1))[0].reshape(own.shape)

    def start(self, rows: int) -> Tensor:
        """[rows, K] log posterior of new visitors."""
        return self.log_prior.expand(rows, -1).clone()

    def start_patience(self, rows: int) -> Tensor:
        """[rows, V] log posterior of the impatience of new visitors."""
        return self.model.log_share.expand(rows, -1).clone()

    def after_stay(self, memory: Tensor, picked: Tensor, picks: Tensor) -> Tensor:
        """[n, V] log P(stayed|v) after a list. `memory` includes the pick, `picks` does not."""
        effect = (self._effects(memory) * self.weight).sum(1)
        logit = self.base[picks.clamp(max=STEPS - 1)] - effect + self.same * self.model.similarity(memory)
        logit = logit + self.idle * (~picked).to(logit.dtype)
        return logsigmoid(-(logit[:, None] + self.impatience))

    def patience_after_picks(self, recent: Tensor) -> Tensor:
        """[n, V] log posterior of impatience from picks alone, [n, h] most recent first: visitors stayed after each."""
        memory, longest = (
            self.model.learner.memory,
            int((recent < self.model.n_items).sum(1).max()) if len(recent) else 0,
        )
        recent = recent[:, : max(1, longest)]
        windows = pad(recent, (0, memory - 1), value=self.model.n_items).unfold(1, memory, 1)
        is_pick = recent < self.model.n_items
        before = is_pick.flip(1).cumsum(1).flip(1) - 1
        flat = windows.flatten(0, 1), is_pick.new_ones(recent.numel()), before.clamp(min=0).flatten()
        stayed = self.after_stay(*flat).reshape(*recent.shape, -1)
        return self.start_patience(len(recent)) + (stayed * is_pick[..., None]).sum(1)

    def after_list(self, lists: Tensor, memory: Tensor, place: Tensor) -> Tensor:
        """[n, K] log P(place|list, c), by which the posterior changes; place 0 means that nothing was picked."""
        choice = self._log_choice(self._utilities(lists, memory)[0])
        return choice.gather(2, place[:, None, None].expand(-1, choice.shape[1], 1))[..., 0]

    def after_picks(self, recent: Tensor) -> Tensor:
        """[n, K] log posterior from picks alone, [n, h] most recent first; the lists are unknown.

        Each pick is compared with a list of items as they were shown in the log.
        """
        model, memory, totals = self.model, self.model.learner.memory, self._log_totals
        posterior = self.start(len(recent))
        types = torch.arange(len(model.types), device=recent.device).expand(len(recent), -1)
        padded = pad(recent, (0, memory), value=model.n_items)
        for j in range(recent.shape[1]):
            item = padded[:, j]
            if not bool((item < model.n_items).any()):
                break
            before = padded[:, j + 1 : j + 1 + memory]
            utility, _ = model.utility_and_interest(types, before, item[:, None])
            total = totals[(before < model.n_items).sum(1)]
            picked = logsigmoid(utility[..., 0] - self.none) if model.is_cascade else utility[..., 0]
            posterior += torch.where((item < model.n_items)[:, None], picked - total, 0.0)
        return posterior

    @cached_property
    @torch.no_grad()
    def _log_totals(self) -> Tensor:
        """[m + 1, K] log-normalisers of a pick after n = 0, 1, …, m picks, from lists as they were shown in the log.

        They depend on n, because the taste of a type fades. What earlier picks add to it is left out.
        """
        model, shown = self.model, self.model.shown.clamp(min=1e-12).log()
        tastes = model.first_taste_left()[:, None, None] * model.types  # [m + 1, K, d]
        if model.is_cascade:
            passed = (shown + logsigmoid(taste @ self.x.T + self.a - self.none) for taste in tastes)
            return torch.stack([self._logsumexp(values) for values in passed])
        head = Head(tastes.flatten(0, 1), self.x, self.a + shown, shard=model.shard)
        lists = logsumexp(head).reshape(tastes.shape[:2]) + math.log(self.k)
        return torch.logaddexp(self.none, lists)

    @torch.no_grad()
    def plan(
        self,
        posterior: Tensor,
        memory: Tensor,
        picks: Tensor,
        allowed: Tensor | None = None,
        patience: Tensor | None = None,
        excluded: Tensor | None = None,
    ) -> Tensor:
        """Return the lists [n, k] for visitors with a log posterior [n, K], last picks [n, m] and pick counts [n].

        Lists contain only items that `allowed` [A] marks, without those of the row in `excluded` [n, h], padded with
        n_items. If fewer than k items are left, n_items fills empty places. `patience` [n, V] is the log posterior of
        impatience; None: that of new visitors.
        """
        rows = GPU_ROWS if memory.is_cuda else ROWS
        patience = self.start_patience(len(memory)) if patience is None else patience
        parts = [slice(first, first + rows) for first in range(0, len(memory), rows)]
        lists = [
            self._plan(
                posterior[part],
                memory[part],
                picks[part],
                patience[part],
                allowed,
                None if excluded is None else excluded[part],
            )
            for part in parts
        ]
        return torch.cat(lists) if lists else memory.new_zeros(0, self.k)

    def _plan(
        self,
        posterior: Tensor,
        memory: Tensor,
        picks: Tensor,
        patience: Tensor,
        allowed: Tensor | None,
        excluded: Tensor | None,
    ) -> Tensor:
        model, options = self.model, self.model.learner
        share, types = posterior.softmax(1).topk(min(options.planned_types, posterior.shape[1]), 1)
        share = share / share.sum(1, keepdim=True)
        candidates, is_excluded = self._candidates(types[:, : options.candidate_types], memory, allowed, excluded)
        utility, interest = model.utility_and_interest(types, memory, candidates)
        earns = self._expected_reward(interest, candidates)
        if self.look_ahead:
            earns = earns + self.advantage(memory, picks, candidates, patience)[:, None]
        return candidates.gather(1, self._best_list(utility, earns, share, is_excluded))

    def _candidates(
        self, types: Tensor, memory: Tensor, allowed: Tensor | None, excluded: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return candidates [n, M] and whether each repeats another one or cannot be chosen.

        If fewer than k items can be chosen, k further candidates are padding, which leaves a place empty.
        """
        model, zeta = self.model, self.slopes.zeta
        state = model.taste(model.types[types], memory) * (1 + zeta * model.match_conversion)
        head = Head(state.reshape(-1, state.shape[-1]), self.x, self._item_score(), shard=model.shard)
        if allowed is not None:
            head = restrict(head, allowed)
        if excluded is not None:
            head = head.mask(excluded.repeat_interleave(types.shape[1], 0))
        # Lists need k different candidates, even if all types propose the same.
        count = min(model.n_items, model.learner.candidates_per_type + self.k)
        values, items = (part.reshape(len(memory), -1) for part in top_k(head, count))
        items, order = items.sort(1)
        is_excluded = values.gather(1, order) <= ALL_MASKED
        is_excluded[:, 1:] |= items[:, 1:] == items[:, :-1]
        # The types share many candidates. Columns that are repeated in all rows are not worth evaluating.
        least, most = (~is_excluded).sum(1).aminmax() if len(items) else (self.k, self.k)
        order = is_excluded.to(torch.uint8).argsort(dim=1, stable=True)[:, : max(self.k, int(most))]
        items, is_excluded = items.gather(1, order), is_excluded.gather(1, order)
        if int(least) >= self.k:
            return items, is_excluded
        return pad(items, (0, self.k), value=model.n_items), pad(is_excluded, (0, self.k), value=False)

    def _item_score(self) -> Tensor:
        return self.a + self.slopes.zeta * self.q + self.slopes.xi * self.w + self.log_ratio

    def _best_list(self, utility: Tensor, earns: Tensor, share: Tensor, excluded: Tensor) -> Tensor:
        """[n, k] indices of the candidates, chosen one by one. utility, earns: [n, C, M]; share: [n, C]."""
        if self.model.is_cascade:
            effects = self.model.place_effects(self.k).tolist()
            return best_cascade_lists(utility - self.none, earns, share, excluded, effects)
        top = torch.maximum(utility.amax(2, keepdim=True), self.none)
        odds = (utility - top).exp()
        total = (self.none - top)[..., 0].exp()  # [n, C] Σ over the list and nothing
        value = torch.zeros_like(total)
        gain, places, excluded, chosen = odds * earns, self._places(), excluded.clone(), []
        for place in places:
            after = torch.add(value[..., None], gain, alpha=place)
            after /= torch.add(total[..., None], odds, alpha=place)
            mean = (share[:, None] @ after)[:, 0]
            item = mean.masked_fill_(excluded, -torch.inf).argmax(1, keepdim=True)
            chosen.append(item)
            excluded.scatter_(1, item, True)
            index = item[:, None].expand(-1, odds.shape[1], 1)
            value = value + place * gain.gather(2, index)[..., 0]
            total = total + place * odds.gather(2, index)[..., 0]
        return torch.cat(chosen, 1)

    def _places(self) -> list[float]:
        """Return exp(p) for each place of a list."""
        return self.model.place_effects(self.k).exp().tolist() if self.model.has_lists else [1.0] * self.k

    # ---- the value of staying

    def advantage(self, memory: Tensor, picks: Tensor, items: Tensor, patience: Tensor) -> Tensor:
        """[n, c] V after a pick of each of the items [n, c], minus V after no pick."""
        length, n_items = memory.shape[1], self.model.n_items
        w, known = self._effects(memory), self.model.at(self.unit_x, memory)
        similar = (self.model.at(self.unit_x, items) @ known[:, : length - 1].transpose(1, 2)).relu()
        largest = similar.amax(2) if length > 1 else torch.zeros_like(items, dtype=w.dtype)
        older = pad(memory[:, : length - 1], (0, 1), value=n_items)
        same_after_pick = self.model.similarity(older)[:, None] + largest / length
        share = patience.softmax(1)
        picked = self._value(w, picks, same_after_pick, self._effects(items), share)
        return picked - self._value(w, picks, self.model.similarity(memory)[:, None], None, share)

    def _value(self, w: Tensor, picks: Tensor, same: Tensor, new: Tensor | None, share: Tensor) -> Tensor:
        """[n, c] expected reward after the current list. After l more lists, memory has moved back by l places.

        Args:
            w: [n, m] effects of the last picks on leaving.
            picks: [n] number of picks.
            same: [n, c] similarity in memory after the list.
            new: [n, c] effects of picks from the current list; None if nothing is picked.
            share: [n, V] posterior of impatience.
        """
        length, weight, after = w.shape[1], self.weight, 0 if new is None else 1
        logits = []  # of leaving after the current list and each later one, at v = 0
        for ahead in range(length + 1):
            back = min(length, ahead + after)
            effect = (w[:, : length - back] * weight[back:]).sum(1, keepdim=True) + self.later_w * weight[:ahead].sum()
            if new is not None and ahead < length:
                effect = effect + weight[ahead] * new
            none = self.none_share if ahead else 1.0 - after
            base = self.base[(picks + ahead).clamp(max=STEPS - 1)][:, None]
            logits.append(base - effect + self.idle * none + self.same * same * (length - ahead) / length)
        value = torch.zeros_like(same)
        for number, level in enumerate(self.impatience):
            lists, alive = torch.zeros_like(same), torch.ones_like(same)
            for logit in logits:
                leave = (logit + level).sigmoid()
                alive = alive * (1 - leave)
                lists = lists + alive
            lists = lists + alive * (1 - leave) / leave.clamp(min=1e-3)
            value = value + share[:, number : number + 1] * lists
        earned: Tensor = self.reward * value
        return earned

    # ---- calibration

    def _utilities(self, lists: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and z of lists for every type, [n, K, k] each."""
        types = torch.arange(len(self.model.types), device=lists.device).expand(len(lists), -1)
        return self.model.utility_and_interest(types, memory, lists)

    def _outcomes(self, lists: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of picking nothing and each item, and expected rewards, of lists for every type.

        They have the shapes [n, K, 1 + k] and [n, K, k].
        """
        utility, interest = self._utilities(lists, memory)
        return self._log_choice(utility), self._expected_reward(interest, lists)

    def _log_choice(self, utility: Tensor) -> Tensor:
        """[…, 1 + k] log-probabilities of picking nothing and each item of a list with u […, k], without p."""
        if self.model.has_lists:
            return self.model.log_choice(utility)
        return torch.cat([self.none.expand_as(utility[..., :1]), utility], -1).log_softmax(-1)

    def _slopes(self) -> Slopes:
        """Linearise log(e − λ) around the lists for visitors of known type, weighted by how often items are picked."""
        model = self.model
        count = len(model.types)
        memory = torch.full((count, model.learner.memory), model.n_items, device=model.x.device)
        picks = torch.zeros(count, dtype=torch.long, device=model.x.device)
        known = torch.full((count, count), -50.0, device=model.x.device).fill_diagonal_(0.0)
        lists = self.plan(known, memory, picks)
        own = torch.arange(count, device=model.x.device)[:, None]
        utility, interest = model.utility_and_interest(own, memory, lists)
        reward, shifted = (self._expected_reward(z, lists)[:, 0] for z in (interest, interest + STEP))
        utility, reward_slope = utility[:, 0], (shifted - reward) / STEP
        earns, stay_slope = reward, torch.zeros_like(reward)
        if self.look_ahead:
            patience = self.start_patience(count)
            now = self.advantage(memory, picks, lists, patience)
            self.w += STEP
            stay_slope = (self.advantage(memory, picks, lists, patience) - now) / STEP
            self.w -= STEP
            earns = reward + now
        probability = self._log_choice(utility).exp()[:, 1:]
        value = (probability * earns).sum(1, keepdim=True)
        share = self.log_prior.exp()[:, None] * probability
        share = share / share.sum().clamp(min=1e-12)
        excess = (share * (earns - value)).sum().clamp(min=1e-3)
        return Slopes(float((share * reward_slope).sum() / excess), float((share * stay_slope).sum() / excess))

    @torch.no_grad()
    def simulate(self, generator: torch.Generator) -> tuple[Tensor, float]:
        """Let visitors of the model meet the planner.

        Returns:
            Mean reward per list, mean effect of picks on leaving and share of lists without a pick, and the expected
            reward per session.
        """
        model, n = self.model, SIMULATED
        prior = self.log_prior.exp().cpu()
        types = torch.multinomial(prior, n, replacement=True, generator=generator).to(model.x.device)
        posterior, picks = self.start(n), torch.zeros(n, dtype=torch.long, device=types.device)
        memory = torch.full((n, model.learner.memory), model.n_items, device=types.device)
        stayed, rows = self.start_patience(n), torch.arange(n, device=types.device)  # log P(v, still there)
        sums = torch.zeros(4, device=types.device)  # reward, effect of picks, no picks, lists
        for _ in range(SIMULATED_LISTS):
            alive = stayed.exp().sum(1)
            if float(alive.mean()) < FEW:
                break
            lists = self.plan(posterior, memory, picks, patience=stayed)
            choice, rewards = self._outcomes(lists, memory)
            chosen = choice[rows, types].exp()
            reward = (chosen[:, 1:] * rewards[rows, types]).sum(1)
            place = torch.multinomial(chosen.cpu(), 1, generator=generator)[:, 0].to(types.device)
            picked = place > 0
            item = torch.where(picked, lists.gather(1, (place - 1).clamp(min=0)[:, None])[:, 0], model.n_items)
            parts = (reward, torch.where(picked, self._effects(item), 0.0), chosen[:, 0], torch.ones_like(reward))
            sums += torch.stack([(alive * part).sum() for part in parts])
            posterior = posterior + choice[rows, :, place]
            memory = torch.where(picked[:, None], torch.cat([item[:, None], memory[:, :-1]], 1), memory)
            stayed = stayed + self.after_stay(memory, picked, picks)
            picks = picks + picked
        reward_sum, effect, none, lists_seen = sums.tolist()
        mean = torch.tensor(
            [reward_sum / lists_seen, effect / max(1e-6, lists_seen - none), none / lists_seen], device=types.device
        )
        return mean, reward_sum / n
