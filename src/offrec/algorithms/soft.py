"""Options and expectations shared by all learners with a soft critic."""

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
    """Temperature: the cost of one nat of divergence from the prior, in units of reward (see reward_unit)."""
    expectation: Literal["exact", "gumbel"] = "exact"
    """Compute expectations over π exactly, or estimate them by a Gumbel-softmax sample as in the paper."""
    gumbel_temperature: float = option(1.0, above=0.0)
    """Temperature of the actor's Gumbel-softmax sample; lower is closer to one item, with a noisier gradient."""
    straight_through: bool = False
    """Use the value of one sampled item and the gradient of the soft sample."""
    ranks: Literal["actor", "critic"] = "actor"
    """Rank by π, or by the policy that the critic implies: softmax(Q/α), for DC multiplied by the prior."""
    start: Literal["fresh", "supervised"] = "fresh"
    """Start the actor from random weights or from the weights of the fitted π̂_b."""

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

    def relaxed_sample(self, noise: Noise) -> losses.Sample | None:
        """Return the differentiable sample for the actor, or None for exact expectations."""
        if self.expectation == "exact":
            return None
        return losses.Sample(noise, self.gumbel_temperature, self.straight_through)

    def target_sample(self, noise: Noise) -> losses.Sample | None:
        """Return the sample for targets, an item a′ ~ π(·|s′), or None for exact expectations.

        Unlike the paper: it does not say how its a_{t+1} is sampled.
        """
        return None if self.expectation == "exact" else losses.Sample(noise, hard=True)

    def values(self, x: Symbols, prior: losses.Prior) -> tuple[Tensor, Tensor | None]:
        """Return V(s) under Q, which the actor maximises, and under the detached Q̄, for the targets of unlogged items.

        Exact expectations share one pass over the catalogue; Gumbel samples need two passes.
        """
        q = x.q.detach()
        if x.grounded and self.expectation == "exact":
            return losses.soft_values(x.pi, q, x.target_q, self.alpha, prior)
        value = losses.soft_value(x.pi, q, self.alpha, prior, self.relaxed_sample(x.noise))
        if not x.grounded:
            return value, None
        return value, losses.soft_value(x.pi.detach(), x.target_q, self.alpha, prior, self.target_sample(x.noise))

    def td_loss(self, x: Symbols, rewards: Tensor, next_value: Tensor, value_if_ignored: Tensor | None) -> Tensor:
        """Return ½ (Q − sg[r + discount · V])² of the logged item, plus the same loss of any unlogged items: [B].

        V contains the cost α KL(π‖prior) of later steps. The logged return contains none, which is consistent for DC
        and RE: the logging policy does not diverge from itself. With a uniform prior (SDAC, SC, SR) it omits
        α KL(π_b‖uniform); docs/evidence/defaults.md has the measured effect.
        """

        def error() -> Tensor:
            target_value = losses.mix_logged_return(next_value, x.next_return_to_go, x.returns)
            errors = losses.td(x.q.at(x.actions), rewards, x.discounts, target_value, value_if_ignored)
            return 0.5 * losses.grounded(errors, x.ground_weight)

        return x.scheduler.run_independently(error)
