"""The networks a learner declares, as one module: what it reads of a batch, and what moves besides the optimiser."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offrec import losses
from offrec.algorithms import ABSENT, Learner, LossTerms, Symbols, diagnostics
from offrec.catalogue import Head
from offrec.catalogue.streams import SideStreams, StreamScheduler
from offrec.errors import InputError
from offrec.models.critic import (
    CriticOptions,
    Target,
    product,
    random_noise,
    unlogged,
    unlogged_from,
    unlogged_popular,
    within_support,
)
from offrec.models.network import Network, NetworkOptions, Second, detached_head, evaluating, next_recent, prepared
from offrec.types import Batch


@dataclass(frozen=True)
class LogFacts:
    """What an agent must know of its log and MDP as a whole."""

    discount_if_ignored: float = 0.0
    """γ: an ignored item leaves the visitor where they are, also at a session's last step."""
    unit: float = 1.0
    """Rewards are divided by it, so that temperatures do not hang on what a reward is counted in."""
    shift: float = 0.0
    """What the MDP has added to every reward; an ignored item's is shifted like the others."""
    counts: Tensor | None = None
    """[A] how often the log has each item, for ground_draw = popular."""
    log_b: Tensor | None = None
    """[E] log π̂_b of each event's item (by `Batch.event`), best fitted without the event's session."""


def return_spread(return_to_go: Tensor) -> float:
    """A unit for rewards: the standard deviation of the log's returns or, where they are all alike, their size."""
    spread, size = float(return_to_go.double().std(correction=0)), float(return_to_go.double().abs().mean())
    return spread if spread > 1e-6 * size else size or 1.0


class Agent(nn.Module):
    multiplier: Tensor
    cumulative: Tensor
    log_b: Tensor

    def __init__(
        self,
        n_items: int,
        learner: Learner,
        network: NetworkOptions,
        critic: CriticOptions | None = None,
        facts: LogFacts | None = None,
        prior: Network | None = None,
        *,
        restored: bool = False,
        bfloat16_products: bool = False,
    ) -> None:
        """`prior`: π̂_b, for learners that need one. `restored`: weights will be loaded, π̂_b's too, so it may be left
        out. `bfloat16_products`: the learner's heads are bfloat16 in products over the catalogue.
        """
        super().__init__()
        self.n_items, self.learner, self.needs, self.bfloat16_products = (
            n_items,
            learner,
            learner.needs,
            bfloat16_products,
        )
        self.options, self.critic_options, self.facts = network, critic or CriticOptions(), facts or LogFacts()
        needs = self.needs
        second: Second | None = "critic" if needs.critic == "shared" else "policy" if needs.logging == "own" else None
        self.actor = Network(n_items, network, second=second) if needs.actor else None
        own = needs.critic == "own"
        self.critic = Network(n_items, self.critic_options.network(network), value=True) if own else None
        self._take_prior(prior, restored)
        online = self.critic if own else self.actor if needs.critic == "shared" else None
        self.target = None if online is None else Target(frozen(deepcopy(online)), self.critic_options)
        self._keep("multiplier", None if needs.multiplier is None else torch.tensor(float(needs.multiplier.init)), True)
        counts = self.facts.counts if self._drawn_by("popular") else None
        self._keep("cumulative", None if counts is None else counts.double().cumsum(0), False)
        self._keep("log_b", self.facts.log_b if needs.logging == "values" else None, False)
        self.constraint: Tensor | None = None  # the mean of what the multiplier watches, in the update under way
        self._check(restored)

    def _take_prior(self, prior: Network | None, restored: bool) -> None:
        needs = self.needs
        kept = needs.logging in ("here", "next") or needs.within > 0 or self._drawn_by("logging")
        if (kept or needs.start) and prior is None and not restored:
            raise ValueError("this learner needs π̂_b and was given none")
        if needs.logging == "values" and self.facts.log_b is None and not restored:
            raise ValueError("this learner needs log π̂_b of the log's events and was given none")
        if needs.start and prior is not None and self.actor is not None:
            if prior.options != self.options:
                raise InputError("To start from it, π̂_b must have the policy's shape: fit it with the same network.")
            self.actor.load_state_dict(prior.state_dict(), strict=self.actor.second is None)
        if needs.critic_start and prior is not None and self.critic is not None:
            self.critic.take_scores(prior, needs.critic_start)
        if kept and prior is None:
            prior = Network(self.n_items, self.options)
        self.prior = frozen(deepcopy(prior)) if kept and prior is not None else None

    def _keep(self, name: str, tensor: Tensor | None, persistent: bool) -> None:
        self.register_buffer(name, None if tensor is None else tensor.clone(), persistent=persistent)

    def _check(self, restored: bool) -> None:
        ground = self.target is not None and self.critic_options.ground > 0
        if ground and self.facts.discount_if_ignored >= 1:
            raise InputError(
                "gamma is 1, so an ignored item would be worth what its state is; lower gamma or set critic.ground=0."
            )
        if ground and self.n_items < 2:
            raise InputError("The catalogue has one item, so none is unlogged; set critic.ground=0.")
        if self._drawn_by("popular") and self.facts.counts is None and not restored:
            raise ValueError("popular items are drawn by counts, and none were given")

    def _drawn_by(self, how: str) -> bool:
        """Are unlogged items drawn, and so?"""
        return self.needs.critic != "none" and self.critic_options.ground > 0 and self.critic_options.ground_draw == how

    def train(self, mode: bool = True) -> "Agent":
        super().train(mode)
        for fixed in (self.target, self.prior):
            if fixed is not None:
                fixed.eval()
        return self

    def loss(self, batch: Batch) -> LossTerms:
        terms = self.learner.loss(self.symbols(batch))
        if self.needs.multiplier is not None:
            self.constraint = losses.batch_mean(terms[self.needs.multiplier.of].detach(), batch.weight)
            terms["~multiplier"] = self.multiplier.expand(len(batch)).clone()  # as it was in this update
        return terms

    def after(self) -> None:
        """What an update does besides the optimiser's step."""
        if self.target is not None:
            online = self.critic if self.critic is not None else self.actor
            assert online is not None
            self.target.follow(online)
        if self.needs.multiplier is not None and self.constraint is not None:
            rule = self.needs.multiplier
            self.multiplier.copy_(losses.dual_step(self.multiplier, self.constraint, rule.bound, rule.rate))

    def symbols(self, batch: Batch) -> Symbols:
        """What the learner reads; what it did not declare is not computed."""
        if self.target is not None or self.prior is not None:
            prepared(batch, self.n_items)
        sides = SideStreams(batch.action.device)
        found = self._as_bfloat16(self._actor_heads(batch))
        with sides(0):
            prior = self._prior_heads(batch)
            found |= self._as_bfloat16(prior)
        with sides(0 if self._drawn_by("logging") else 3):
            columns = self._columns(batch, prior.get("b"))
        if self.target is not None:
            with sides(1):
                found |= self._as_bfloat16(self._critic_heads(batch))
            with sides(2):
                found |= self._as_bfloat16(self._target_heads(batch, self.target.network))
        sides.join(retain=(columns, found))
        if self.needs.noise:
            found |= {name: random_noise(batch.action.device) for name in ("noise", "next_noise")}
        if self.needs.logging == "values":
            found["log_b"] = self.log_b[batch.event]
        return Symbols(
            **columns,
            **found,
            weight=batch.weight,
            multiplier=self.multiplier,
            ground_weight=self.critic_options.ground_weight,
            returns=self.critic_options.returns,
            scheduler=StreamScheduler(batch.action.device),
        )

    def _as_bfloat16(self, found: dict[str, Any]) -> dict[str, Any]:
        tables: dict[int, Tensor] = {}  # each table is converted once
        return {
            name: part.as_bfloat16(tables) if self.bfloat16_products and isinstance(part, Head) else part
            for name, part in found.items()
        }

    def _actor_heads(self, batch: Batch) -> dict[str, Any]:
        actor, needs = self.actor, self.needs
        if actor is None:
            return {"pi": ABSENT}
        # Taken before the states are made, weights come after them in the backward pass, where they take longest.
        (inputs, weights), second = actor.tables(), None if actor.second is None else actor.second.weights
        if needs.critic == "own" or needs.online_next:
            states, next_states = actor.states_and_next(batch, inputs)
        else:
            states = next_states = actor.states(batch, inputs)
        found: dict[str, Any] = {"pi": actor.head(states, batch.recent, weights)}
        if needs.critic == "own":
            found["next_pi"] = detached_head(actor.head, next_states, next_recent(batch), weights)
        if needs.critic == "shared" and actor.second is not None:
            found["q"] = actor.second.head(states, batch.recent, second)
            if needs.online_next:
                found["next_online_q"] = detached_head(actor.second.head, next_states, next_recent(batch), second)
        if needs.logging == "own" and actor.second is not None:
            # it learns from the policy's state, not the state
            found["b"] = actor.second.head(states.detach(), batch.recent, second)
        return found

    @torch.no_grad()
    def _prior_heads(self, batch: Batch) -> dict[str, Any]:
        prior, needs = self.prior, self.needs
        if prior is None or not (needs.logging in ("here", "next") or self._drawn_by("logging")):
            return {}
        if needs.logging != "next":
            return {"b": prior(batch)}
        states, next_states = prior.states_and_next(batch)
        return {"b": prior.head(states, batch.recent), "next_b": prior.head(next_states, next_recent(batch))}

    def _critic_heads(self, batch: Batch) -> dict[str, Any]:
        critic = self.critic
        if critic is None:
            return {}
        if not self.needs.online_next:
            return {"q": critic(batch)}
        inputs, weights = critic.tables()
        states, next_states = critic.states_and_next(batch, inputs)
        following = detached_head(critic.head, next_states, next_recent(batch), weights)
        return {"q": critic.head(states, batch.recent, weights), "next_online_q": following}

    @torch.no_grad()
    def _target_heads(self, batch: Batch, target: Network) -> dict[str, Any]:
        values = target if target.second is None else target.second
        states, next_states = target.states_and_next(batch)
        weights = values.weights
        found = {"next_q": values.head(next_states, next_recent(batch), weights)}
        return (
            found | {"q_if_ignored": values.head(states, batch.recent, weights)}
            if self.critic_options.ground
            else found
        )

    @torch.no_grad()
    def _columns(self, batch: Batch, b: Head | None) -> dict[str, Any]:
        """Actions, rewards and discounts: the logged item's, then those of unlogged ones, taken to be ignored."""
        n, how, facts = self.critic_options.ground, self.critic_options.ground_draw, self.facts
        action, reward, discount = batch.action[:, None], batch.reward[:, None] / facts.unit, batch.discount[:, None]
        returns = {
            "return_to_go": batch.return_to_go / facts.unit,
            "next_return_to_go": batch.next_return_to_go / facts.unit,
        }
        if self.target is None or n == 0:
            return {"actions": action, "rewards": reward, "discounts": discount, **returns}
        if how == "popular":
            items = unlogged_popular(batch.action, n, self.cumulative)
        elif how == "logging" and b is not None:
            items = unlogged_from(b, batch.action, n)
        else:
            items = unlogged(batch.action, n, self.n_items)
        ignored = (self.critic_options.ground_reward + facts.shift) / facts.unit
        like = reward.expand(-1, n)
        return {
            **returns,
            "actions": torch.cat([action, items], 1),
            "rewards": torch.cat([reward, torch.full_like(like, ignored)], 1),
            "discounts": torch.cat([discount, torch.full_like(like, facts.discount_if_ignored)], 1),
        }

    @property
    def stochastic(self) -> bool:
        """Is softmax(head) a distribution worth reading?"""
        return self.needs.ranks == "actor" or self.needs.temperature is not None

    def forward(self, batch: Batch) -> Head:
        """The head to rank by and to sample from."""
        if self.needs.ranks == "actor":
            assert self.actor is not None
            head: Head = self.actor(batch)
        else:
            assert self.critic is not None
            # Unlike the paper, which prints exp(Q) / Σ exp(Q/α): both take Q/α.
            head = self.critic(batch).scale(1.0 / (self.needs.temperature or 1.0))
        if self.prior is None:
            return head
        if self.needs.ranks == "critic" and self.needs.with_prior:
            head = product(self.prior(batch), head)
        return within_support(head, self.prior(batch), self.needs.within) if self.needs.within > 0 else head

    @torch.no_grad()
    def diagnostics(self, batch: Batch, prior: Network | None = None) -> LossTerms:
        """What to watch, in units of reward; not for every step: it costs passes over the catalogue. `prior`: π̂_b, for
        learners that hold none.
        """
        prior = self.prior if self.prior is not None else prior
        with evaluating(self):
            b = None if prior is None else prior(batch)
            found: LossTerms = diagnostics.of_policy(self(batch), b) if self.stochastic else {}
            if not self.stochastic and b is not None:
                found = diagnostics.of_ranking(self(batch), b)
            if self.target is not None:
                heads = self._critic_heads(batch) or self._actor_heads(batch)
                others = torch.randint(self.n_items, (len(batch), 8), device=batch.action.device)
                values = diagnostics.of_critic(heads["q"], batch.action[:, None], others)
                found |= {name: value * self.facts.unit for name, value in values.items()} | {
                    "~return_to_go": batch.return_to_go
                }
        return found


def frozen(network: Network) -> Network:
    return network.requires_grad_(False).eval()
