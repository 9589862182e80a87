"""Agent: builds a learner's networks, computes the quantities in its loss, and updates state outside the optimiser."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from offrec import losses
from offrec.algorithms import ABSENT, Learner, LossTerms, NeighbourMasses, Symbols, diagnostics
from offrec.backbones.gru import GRU
from offrec.catalogue import Head
from offrec.catalogue.shard import Shard
from offrec.catalogue.streams import SideStreams, StreamScheduler
from offrec.data.neighbours import NeighbourCounts
from offrec.errors import InputError
from offrec.models.critic import (
    CriticOptions,
    Target,
    product,
    random_noise,
    sample_unlogged,
    sample_unlogged_by_count,
    sample_unlogged_from,
    within_support,
)
from offrec.models.item_features import ItemFeatures
from offrec.models.neighbours import NeighbourTerm
from offrec.models.network import Network, NetworkOptions, Second, detached_head, eval_mode, precompute_shared
from offrec.types import Batch


@dataclass(frozen=True)
class LogFacts:
    """Facts about the log and its MDP that an agent needs."""

    discount_if_ignored: float = 0.0
    """Discount after an ignored item: γ, even at the last step of a session, because the state is unchanged."""
    unit: float = 1.0
    """Divisor of rewards, so that temperatures do not depend on the unit of rewards."""
    shift: float = 0.0
    """Constant that the MDP adds to every reward, including the reward of an ignored item."""
    counts: Tensor | None = None
    """[A] count of each item in the log, for ground_draw = popular."""
    log_b: Tensor | None = None
    """[E] log π̂_b of each event's item, from `first_event` on; cross-fitted by session."""
    neighbours: NeighbourCounts | None = None
    """The neighbours of each item, for learners that add them to the policy."""
    first_event: int = 0
    """The `Batch.event` to which the first numbers of `log_b` and of the neighbours' events belong."""


def return_spread(return_to_go: Tensor) -> float:
    """Return a unit for rewards: the standard deviation of the returns or, if they are all equal, their magnitude."""
    spread, size = float(return_to_go.double().std(correction=0)), float(return_to_go.double().abs().mean())
    return spread if spread > 1e-6 * size else size or 1.0


class Agent(nn.Module):
    """The networks of a learner as one module.

    Args:
        n_items: Size of the catalogue.
        learner: The learner; its `needs` determine the networks to build.
        network: The shape of the actor.
        critic: Options of the critic.
        facts: Facts about the log.
        prior: π̂_b, for learners that need it.
        restored: Whether a checkpoint will be loaded. It contains π̂_b, so `prior` is not required.
        bfloat16_products: Whether the learner's heads use bfloat16 in products over the catalogue.
        features: The features of the items, or None.
        shard: The range of items that this process stores; None: all.
    """

    multiplier: Tensor
    updates: Tensor
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
        features: ItemFeatures | None = None,
        shard: Shard | None = None,
    ) -> None:
        super().__init__()
        self.shard = shard
        self.n_items, self.learner, self.needs, self.features = n_items, learner, learner.needs, features
        self.bfloat16_products = bfloat16_products
        self.options, self.critic_options, self.facts = network, critic or CriticOptions(), facts or LogFacts()
        needs = self.needs
        second: Second | None = "critic" if needs.critic == "shared" else "policy" if needs.logging == "own" else None
        self.actor = Network(n_items, network, second=second, features=features, shard=shard) if needs.actor else None
        own = needs.critic == "own"
        shape = self.critic_options.network(network)
        self.critic = Network(n_items, shape, value=True, features=features, shard=shard) if own else None
        self._set_prior(prior, restored)
        online = self.critic if own else self.actor if needs.critic == "shared" else None
        self.target = None if online is None else Target(freeze(deepcopy(online)), self.critic_options)
        self._register(
            "multiplier", None if needs.multiplier is None else torch.tensor(float(needs.multiplier.init)), True
        )
        self._register("updates", torch.zeros((), dtype=torch.long) if needs.updates else None, True)
        counts = self.facts.counts if self._samples_unlogged("popular") else None
        self._register("cumulative", None if counts is None else counts.double().cumsum(0), False)
        self._register("log_b", self.facts.log_b if needs.logging in ("values", "logged") else None, False)
        recurrent = [one for one in self.modules() if isinstance(one, GRU)]
        for one in recurrent:
            one.networks = len(recurrent)
        self.constraint: Tensor | None = None  # mean of the term that the multiplier bounds, in the current update
        n, counts_near = needs.neighbours, self.facts.neighbours
        self.neighbours = NeighbourTerm(n_items, network.width, n, counts_near, shard) if n else None
        self._check(restored)

    def _set_prior(self, prior: Network | None, restored: bool) -> None:
        needs = self.needs
        has_prior = needs.logging in ("here", "next") or needs.min_probability > 0 or self._samples_unlogged("logging")
        if (has_prior or needs.start) and prior is None and not restored:
            raise ValueError("the learner needs π̂_b; prior is None")
        if needs.logging in ("values", "logged") and self.facts.log_b is None and not restored:
            raise ValueError("the learner needs log π̂_b of the events; facts.log_b is None")
        if needs.start and prior is not None and self.actor is not None:
            if prior.options != self.options:
                raise InputError(
                    "algorithm.start=supervised needs a π̂_b with the policy's network options; fit π̂_b with them."
                )
            self.actor.load_state_dict(prior.state_dict(), strict=self.actor.second is None)
        if needs.critic_start and prior is not None and self.critic is not None:
            self.critic.copy_scores(prior, needs.critic_start)
        if has_prior and prior is None:
            prior = Network(self.n_items, self.options, features=self.features, shard=self.shard)
        self.prior = freeze(deepcopy(prior)) if has_prior and prior is not None else None

    def _register(self, name: str, tensor: Tensor | None, persistent: bool) -> None:
        self.register_buffer(name, None if tensor is None else tensor.clone(), persistent=persistent)

    def _check(self, restored: bool) -> None:
        ground = self.target is not None and self.critic_options.ground > 0
        if ground and self.facts.discount_if_ignored >= 1:
            raise InputError(
                "With gamma = 1, an ignored item would be worth as much as its state; lower gamma or set "
                "critic.ground=0."
            )
        if self.needs.unlogged and self.critic_options.ground == 0:
            raise InputError("critic.ground is 0, but the learner compares logged items with others; set at least 1.")
        if ground and self.n_items < 2:
            raise InputError(
                "critic.ground needs unlogged items, but the catalogue has only one item; set critic.ground=0."
            )
        if self.needs.ranks == "critic" and self.needs.critic != "own":
            raise ValueError("Needs(ranks='critic') needs critic='own'")
        if self.needs.ranks == "actor" and not self.needs.actor:
            raise ValueError("Needs(ranks='actor') needs actor=True")
        if self.needs.neighbours and self.facts.neighbours is None and not restored:
            raise ValueError("the learner adds neighbours; facts.neighbours is None")
        if self._samples_unlogged("popular") and self.facts.counts is None and not restored:
            raise ValueError("critic.ground_draw=popular needs counts; facts.counts is None")

    def _samples_unlogged(self, how: str) -> bool:
        """Return whether unlogged items are sampled by the method `how`."""
        return self.needs.critic != "none" and self.critic_options.ground > 0 and self.critic_options.ground_draw == how

    def train(self, mode: bool = True) -> "Agent":
        """Set the training mode of all networks except the frozen ones."""
        super().train(mode)
        for network in (self.target, self.prior):
            if network is not None:
                network.eval()
        return self

    def loss(self, batch: Batch) -> LossTerms:
        """Return the learner's loss terms on a batch."""
        terms = self.learner.loss(self.symbols(batch))
        for name, term in terms.items():
            if term.shape != batch.action.shape:  # [B, 1] would broadcast against the weights [B]
                raise ValueError(f"loss term {name!r} has shape {tuple(term.shape)}; expected ({len(batch)},)")
        if self.needs.multiplier is not None:
            self.constraint = losses.batch_mean(terms[self.needs.multiplier.term].detach(), batch.weight)
            terms["~multiplier"] = self.multiplier.expand(len(batch)).clone()  # before this update changes it
        return terms

    def after_update(self) -> None:
        """Update the target network, the multiplier and the number of updates after the optimiser's step."""
        if self.target is not None:
            online = self.critic if self.critic is not None else self.actor
            assert online is not None
            self.target.follow(online)
        if self.needs.multiplier is not None and self.constraint is not None:
            rule = self.needs.multiplier
            self.multiplier.copy_(losses.dual_step(self.multiplier, self.constraint, rule.bound, rule.rate))
        if self.needs.updates:
            self.updates += 1

    def symbols(self, batch: Batch) -> Symbols:
        """Compute the symbols that the learner declared in its needs."""
        if self.target is not None or self.prior is not None:
            precompute_shared(batch, self.n_items)
        sides = SideStreams(batch.action.device)
        heads = self._as_bfloat16(self._actor_heads(batch))
        with sides(0):
            prior = self._prior_heads(batch)
            heads |= self._as_bfloat16(prior)
        with sides(0 if self._samples_unlogged("logging") else 3):
            columns = self._columns(batch, prior.get("b"))
        if self.target is not None:
            with sides(1):
                heads |= self._as_bfloat16(self._critic_heads(batch))
            with sides(2):
                heads |= self._as_bfloat16(self._target_heads(batch, self.target.network))
        sides.join(retain=(columns, heads))
        if self.needs.noise:
            heads |= {name: random_noise(batch.action.device) for name in ("noise", "next_noise")}
        if self.needs.logging in ("values", "logged"):
            heads["log_b"] = self.log_b[self._event_index(batch)]
        return Symbols(
            **columns,
            **heads,
            weight=batch.weight,
            multiplier=self.multiplier,
            updates=self.updates,
            ground_weight=self.critic_options.ground_weight,
            returns=self.critic_options.returns,
            scheduler=StreamScheduler(batch.action.device),
        )

    def _event_index(self, batch: Batch) -> Tensor:
        first = self.facts.first_event
        return batch.event - first if first else batch.event

    def _as_bfloat16(self, heads: dict[str, Any]) -> dict[str, Any]:
        tables: dict[int, Tensor] = {}  # each table is converted once
        return {
            name: part.as_bfloat16(tables) if self.bfloat16_products and isinstance(part, Head) else part
            for name, part in heads.items()
        }

    def _actor_heads(self, batch: Batch) -> dict[str, Any]:
        actor, needs = self.actor, self.needs
        if actor is None:
            return {"pi": ABSENT}
        # The weights come before the states, so that the backward pass, where they are slowest, reaches them last.
        (inputs, weights), second = actor.tables(), None if actor.second is None else actor.second.weights
        if needs.critic == "own" or needs.online_next:
            states, next_states = actor.states_and_next(batch, inputs)
        else:
            states = next_states = actor.states(batch, inputs)
        heads: dict[str, Any] = {"pi": actor.head(states, batch.recent, weights)}
        if self.neighbours is not None:
            heads["neighbours"] = NeighbourMasses(*self.neighbours.logged_and_total(states, self._event_index(batch)))
        if needs.critic == "own":
            heads["next_pi"] = detached_head(actor.head, next_states, batch.next_recent, weights)
        if needs.critic == "shared" and actor.second is not None:
            heads["q"] = actor.second.head(states, batch.recent, second)
            if needs.online_next:
                heads["next_online_q"] = detached_head(actor.second.head, next_states, batch.next_recent, second)
        if needs.logging == "own" and actor.second is not None:
            # Training this head must not change the policy's state.
            heads["b"] = actor.second.head(states.detach(), batch.recent, second)
        return heads

    @torch.no_grad()
    def _prior_heads(self, batch: Batch) -> dict[str, Any]:
        prior, needs = self.prior, self.needs
        if prior is None or not (needs.logging in ("here", "next") or self._samples_unlogged("logging")):
            return {}
        if needs.logging != "next":
            return {"b": prior(batch)}
        inputs, weights = prior.tables()
        states, next_states = prior.states_and_next(batch, inputs)
        next_b = prior.head(next_states, batch.next_recent, weights)
        return {"b": prior.head(states, batch.recent, weights), "next_b": next_b}

    def _critic_heads(self, batch: Batch) -> dict[str, Any]:
        critic = self.critic
        if critic is None:
            return {}
        if not self.needs.online_next:
            return {"q": critic(batch)}
        inputs, weights = critic.tables()
        states, next_states = critic.states_and_next(batch, inputs)
        next_online_q = detached_head(critic.head, next_states, batch.next_recent, weights)
        return {"q": critic.head(states, batch.recent, weights), "next_online_q": next_online_q}

    @torch.no_grad()
    def _target_heads(self, batch: Batch, target: Network) -> dict[str, Any]:
        values = target if target.second is None else target.second
        inputs, weights = target.tables()
        states, next_states = target.states_and_next(batch, inputs)
        weights = weights if target.second is None else target.second.weights
        heads = {"next_q": values.head(next_states, batch.next_recent, weights)}
        return heads | {"target_q": values.head(states, batch.recent, weights)} if self.critic_options.ground else heads

    @torch.no_grad()
    def _columns(self, batch: Batch, b: Head | None) -> dict[str, Any]:
        """Return actions, rewards and discounts of the logged items, followed by unlogged items as if ignored."""
        n, how, facts = self.critic_options.ground, self.critic_options.ground_draw, self.facts
        action, reward, discount = batch.action[:, None], batch.reward[:, None] / facts.unit, batch.discount[:, None]
        returns = {
            "return_to_go": batch.return_to_go / facts.unit,
            "next_return_to_go": batch.next_return_to_go / facts.unit,
        }
        if self.target is None or n == 0:
            return {"actions": action, "rewards": reward, "discounts": discount, **returns}
        if how == "popular":
            items = sample_unlogged_by_count(batch.action, n, self.cumulative)
        elif how == "logging" and b is not None:
            items = sample_unlogged_from(b, batch.action, n)
        else:
            items = sample_unlogged(batch.action, n, self.n_items)
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
        """Whether softmax(head) is a distribution to sample from."""
        return self.needs.ranks == "actor" or self.needs.temperature is not None

    def forward(self, batch: Batch, add_neighbours: bool = True) -> Head:
        """Return the head to rank by and to sample from, with or without the neighbours of recent items."""
        if self.needs.ranks == "actor":
            assert self.actor is not None
            head: Head = self.actor(batch)
            if self.features is not None and head.bias is not None:
                head = replace(head, bias=head.bias + self.options.new_item_bonus * self.features.unseen)
            if self.neighbours is not None and add_neighbours:
                head = self.neighbours.mix(head, batch.recent)
        else:
            assert self.critic is not None
            # Unlike the paper: it prints exp(Q) / Σ exp(Q/α); here numerator and denominator use Q/α.
            head = self.critic(batch).scale(1.0 / (self.needs.temperature or 1.0))
        if self.prior is None:
            return head
        if self.needs.ranks == "critic" and self.needs.with_prior:
            head = product(self.prior(batch), head)
        return (
            within_support(head, self.prior(batch), self.needs.min_probability)
            if self.needs.min_probability > 0
            else head
        )

    @torch.no_grad()
    def diagnostics(self, batch: Batch, prior: Network | None = None) -> LossTerms:
        """Return diagnostics per transition, in units of reward. Computing them takes passes over the catalogue.

        Args:
            batch: The transitions.
            prior: π̂_b, for agents without their own.
        """
        prior = self.prior if self.prior is not None else prior
        with eval_mode(self):
            b = None if prior is None else prior(batch)
            terms: LossTerms = diagnostics.policy_diagnostics(self(batch), b) if self.stochastic else {}
            if not self.stochastic and b is not None:
                terms = diagnostics.ranking_diagnostics(self(batch), b)
            if self.target is not None:
                heads = self._critic_heads(batch) or self._actor_heads(batch)
                others = torch.randint(self.n_items, (len(batch), 8), device=batch.action.device)
                values = diagnostics.critic_diagnostics(heads["q"], batch.action[:, None], others)
                terms |= {name: value * self.facts.unit for name, value in values.items()} | {
                    "~return_to_go": batch.return_to_go
                }
        return terms


def freeze(network: Network) -> Network:
    """Freeze a network: evaluation mode, no gradients. Return it."""
    return network.requires_grad_(False).eval()
