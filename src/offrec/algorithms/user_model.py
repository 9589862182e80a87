"""User model: how visitors choose, convert and leave, fitted to served lists; the policy plans its lists in this model.

Each visitor has one of K latent types c. For a list ℓ shown after the picks m:

    utility     u(i|c,m) = a_i + x_i·(φⁿ U_c + Σ_l g_l x_{m_l}) + s[times i is in m] + p[place of i]
    choice      P(i|ℓ,c,m) = exp u(i|c,m) / (exp u₀ + Σ_{j∈ℓ} exp u(j|c,m)),  u₀ for picking nothing (logit), or
                P(ℓ_j|ℓ,c,m) = σ(u(ℓ_j|c,m) − u₀) Π_{l<j} (1 − σ(u(ℓ_l|c,m) − u₀)), place by place (cascade)
    conversion  P(b|i,c,m) ∝ exp(α_b + β_b z),  z = κ x_i·(φⁿ U_c + …) + q_i + s′[times i is in m]
    exposure    P(i shown|c) ∝ exp(e_i + x_i·Y_c)
    leaving     logit P(leave|m,v) = v + h₀ + h[picks] − Σ_l ω_l w_{m_l} + idle·1[no pick] + same·similarity(m)

n is the number of picks in m, and φⁿ the share of the visitor's first taste that is left after them, with φ in (0, 1).
v is the impatience of the visitor, with the distribution N(0, σ²) over visitors. The loss of a session is
−log Σ_c π_c Π_t P(choice_t) P(conversion_t) P(exposure_t) − log E_v[Π_t P(left or stayed_t|v)], plus Gaussian priors.
Exposure is part of the likelihood because the policy that wrote the log may know the visitor: without it, an item that
is shown mainly to visitors who like it seems attractive to everybody. If that policy knows only the picks and lists of
the log, P(i shown|c) is the same for all c given the log, and the term is left out. Impatience is part of it because
those who stay for long are patient, whatever they picked.

Item effects share knowledge: q_i = ε_i + ρ a_i and w_i = ε′_i + ρ₁ a_i + ρ₂ q_i, with a, ε and ε′ shrunk towards 0.
How strongly a and ε are shrunk is estimated from the log after each epoch (`offrec.models.item_prior`). How strongly ε′
is shrunk and how fast picks are forgotten (ω_l ∝ decay^l) is selected on validation sessions, and so is the form of
choice. After the last update, a, q and w are shrunk towards their joint distribution (`offrec.models.joint_prior`). The
slopes β have mean square 1.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from offrec.algorithms.record import LearnerRecord
from offrec.algorithms.symbols import LossTerms, Needs
from offrec.plugins import Range, option


@dataclass(frozen=True)
class UserSymbols:
    """The symbols of the user model's loss, for a batch of S sessions with D lists."""

    log_prior: Tensor  # [K] log π_c
    utility: Tensor  # [D, K, k] u, detached: the loss reads `choice`, which depends on it
    choice: Tensor  # [D, K] log P(choice|list, c)
    conversion: Tensor  # [D, K] log P(behaviour|pick, c); 0 without a pick
    exposure: Tensor  # [D, K] log P(list|c), up to a constant; 0 for logs without lists
    leave_logit: Tensor  # [D, G] at v = 0, for each of G candidates of shrinkage and decay
    impatience: Tensor  # [V, G] levels of v
    log_share: Tensor  # [V] logarithm of the share of visitors with each level
    leaves: Tensor  # [D] whether the visitor left after the list
    session: Tensor  # [D] index of the list's session in the batch
    penalty: Tensor  # [] negative log density of the priors, per list of the log
    lists_per_session: Tensor  # [] mean number of lists in the batch's sessions

    def log_likelihood(self) -> Tensor:
        """[S, K] log-likelihood of each session for visitors of each type."""
        sessions = int(self.session[-1]) + 1
        zeros = torch.zeros(sessions, self.choice.shape[1], dtype=self.choice.dtype, device=self.choice.device)
        return zeros.index_add(0, self.session, self.choice + self.conversion + self.exposure)

    def type_posterior(self) -> Tensor:
        """[S, K] probability of each type, given the session."""
        return (self.log_prior + self.log_likelihood()).softmax(1)


def leaving_log_likelihood(
    leave_logit: Tensor, impatience: Tensor, log_share: Tensor, leaves: Tensor, session: Tensor
) -> Tensor:
    """[S, G] log E_v[Π_t P(left or stayed_t|v)] of each session; the arguments are those of `UserSymbols`."""
    logit = leave_logit + impatience[:, None]  # [V, D, G]
    outcome = logsigmoid(torch.where(leaves[:, None], logit, -logit))
    by_level = outcome.new_zeros(len(outcome), int(session[-1]) + 1, outcome.shape[2])
    by_level = by_level.index_add(1, session, outcome)
    return (by_level + log_share[:, None, None]).logsumexp(0)


@dataclass(frozen=True)
class UserModel:
    types: int = option(48, minimum=1, maximum=4096)
    """K: number of latent types of visitors."""
    width: int = option(16, minimum=1, maximum=1024)
    """Width of item and type vectors."""
    memory: int = option(8, minimum=1, maximum=64)
    """Number of last picks that choice, conversion and leaving depend on."""
    choice: Literal["auto", "logit", "cascade"] = "auto"
    """How visitors choose from a list: by comparing all its items (logit), or place by place until they pick (cascade).
    auto: the form with the higher likelihood of validation sessions."""
    horizon: int = option(-1, minimum=-1, maximum=0)
    """-1: plan for the whole session. 0: plan for the next pick alone."""
    list_length: int = option(0, minimum=0, maximum=1000)
    """Length of the planned lists; 0: that of the log's lists, or 10 if the log has no lists. Items after the planned
    list are ranked by a linear score."""
    candidate_types: int = option(4, minimum=1)
    """Number of likeliest types that propose candidates for a list."""
    candidates_per_type: int = option(30, minimum=1)
    """Number of candidates that each of them proposes."""
    planned_types: int = option(16, minimum=1)
    """Number of likeliest types over which the value of a list is averaged."""
    vector_precision: float = option(20.0, minimum=0.0)
    """Precision of the Gaussian prior of item vectors."""
    effect_precision: float = option(1.0, minimum=0.0)
    """Precision of the Gaussian prior of type vectors."""
    attractiveness_precision: float | None = option(None, minimum=0.0)
    """Precision of the Gaussian prior of attractiveness. None: estimated from the log."""
    conversion_precision: float | None = option(None, minimum=0.0)
    """Precision of the Gaussian prior of an item's own effect on conversion. None: estimated from the log."""
    item_prior: Literal["joint", "separate"] = "joint"
    """How the effects of items are shrunk after the last epoch. joint: towards their joint distribution, a mixture of
    normal distributions that is estimated from the log, unless one of the precisions above is given or at most three
    items have data. separate: as in training."""
    exposure: Literal["auto", "on", "off"] = "auto"
    """Whether the likelihood includes which items are shown to whom. `off` suits logs of policies that know a visitor
    only from the picks and lists in the log. `auto`: off for decision logs of `offrec serve` and for logs that only
    trained policies wrote in a simulated shop."""
    none_share: float = option(0.5, above=0.0, maximum=0.99)
    """For logs without lists: the assumed share of lists from which nothing is picked."""
    negatives: int = option(15, minimum=1, maximum=10_000)
    """For logs without lists: number of sampled items that are compared with each pick."""

    @property
    def needs(self) -> Needs:
        """None of the agent's networks: `offrec.models.user_model` has its own parameters."""
        return Needs(actor=False)

    @property
    def needs_reward(self) -> bool:
        """Whether the policy reads rewards."""
        return True

    def loss(self, x: Any) -> LossTerms:
        """Return the loss terms, one number per session."""
        assert isinstance(x, UserSymbols)
        log_likelihood = x.log_likelihood()
        return {
            "likelihood": -(x.log_prior + log_likelihood).logsumexp(1),
            "leaving": -leaving_log_likelihood(x.leave_logit, x.impatience, x.log_share, x.leaves, x.session).sum(1),
            "prior": (x.penalty * x.lists_per_session).expand(len(log_likelihood)),
        }


NO_NETWORK = "the user model has its own parameters instead of a network"
RECORD = LearnerRecord(
    name="user-model",
    label="User model",
    learner=UserModel,
    help="Fit how visitors choose, convert and leave, and plan lists in this model.",
    family="planner",
    presets={
        name: {
            "select": "last",
            "training.epochs": 8,
            "training.learning_rate": 0.02,
            "training.schedule": "linear",
            "training.capture": "off",
        }
        for name in ("strong", "paper")
    },
    search={"training.learning_rate": Range(3e-3, 1e-1)},
    myopic={"algorithm.horizon": 0},
    ignored={
        **{
            f"network.{name}": NO_NETWORK
            for name in (
                *("backbone", "width", "layers", "dropout", "tied", "repeat", "repeat_state", "heads", "window"),
                *("free_dropout", "new_item_bonus"),
            )
        },
        "gamma": "it plans until the visitor leaves",
        "training.encode": NO_NETWORK,
    },
)
