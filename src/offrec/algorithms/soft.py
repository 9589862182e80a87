"""What the learners with a soft critic share: their options, and how they take expectations."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offrec import losses
from offrec.algorithms.symbols import Needs, Symbols
from offrec.catalogue import Noise
from offrec.plugins import option


@dataclass(frozen=True)
class Soft:
    alpha: float = option(0.02, above=0.0)
    """Temperature: what a nat of divergence from the prior costs, in units of reward (see reward_unit)."""
    expectation: Literal["exact", "gumbel"] = "exact"
    """Expectations over π exactly, or by a Gumbel-softmax sample as in the paper."""
    gumbel_temperature: float = option(1.0, above=0.0)
    """Of the actor's Gumbel-softmax sample: the lower, the closer to one item and the noisier its gradient."""
    straight_through: bool = False
    """The Gumbel sample's value is that of one item; only its gradient is that of the soft sample."""
    ranks: Literal["actor", "critic"] = "actor"
    """Recommend by π, or by the policy that the critic implies: softmax(Q/α), for DC with its prior."""
    start: Literal["fresh", "supervised"] = "fresh"
    """The actor starts from random weights or from the fitted π̂_b."""

    needs_reward = True

    @property
    def needs(self) -> Needs:
        return Needs(
            critic="own",
            noise=self.expectation == "gumbel",
            start=self.start == "supervised",
            ranks=self.ranks,
            temperature=self.alpha,
        )

    def relaxed(self, noise: Noise) -> losses.Sample | None:
        """For the actor, who needs a gradient through the sample."""
        if self.expectation == "exact":
            return None
        return losses.Sample(noise, self.gumbel_temperature, self.straight_through)

    def drawn(self, noise: Noise) -> losses.Sample | None:
        """For targets: an item a′ ~ π(·|s′). The paper does not say where its a_{t+1} comes from."""
        return None if self.expectation == "exact" else losses.Sample(noise, hard=True)

    def values(self, x: Symbols, prior: losses.Prior) -> tuple[Tensor, Tensor | None]:
        """V(s) by Q, which the actor climbs, and by Q̄, held fixed, which unlogged items are worth; where there are any.

        Two Gumbel samples are two passes over the catalogue; exact expectations share one.
        """
        q = x.q.detach()
        if x.grounded and self.expectation == "exact":
            return losses.soft_values(x.pi, q, x.q_if_ignored, self.alpha, prior)
        value = losses.soft_value(x.pi, q, self.alpha, prior, self.relaxed(x.noise))
        if not x.grounded:
            return value, None
        return value, losses.soft_value(x.pi.detach(), x.q_if_ignored, self.alpha, prior, self.drawn(x.noise))

    def squared(self, x: Symbols, rewards: Tensor, next_value: Tensor, value_if_ignored: Tensor | None) -> Tensor:
        """½ (Q − sg[r + discount · V])² of the logged item, and of the unlogged ones where there are any."""

        def error() -> Tensor:
            backed_up = losses.part_logged(next_value, x.next_return_to_go, x.returns)
            errors = losses.td(x.q.at(x.actions), rewards, x.discounts, backed_up, value_if_ignored)
            return 0.5 * losses.grounded(errors, x.ground_weight)

        return x.scheduler.run_apart(error)
