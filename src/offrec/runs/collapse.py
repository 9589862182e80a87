"""Detect a collapsed policy from the figures of a validation, and say what to do. See docs/explanation/collapse.md."""

import math

from offrec.evaluation.exposure import LIST_LENGTH, RARE_EVENTS, Exposure
from offrec.policy import Policy
from offrec.runs.options import RunOptions

PAGE = "docs/explanation/collapse.md"
# docs/explanation/collapse.md contains the measurements on which these limits are based.
MIN_ENTROPY = 0.02  # nats
MAX_RARE = 3.0  # share of rare items in the lists; 1 is the share that defines rare items in the log
MIN_LIST_LENGTHS = 1.5  # effective items in all lists, in list lengths
MIN_LOG_SHARE = 0.05  # effective items in all lists, as a share of those in the log
MIN_LOG_LENGTHS = 5.0  # effective items in the log, in list lengths; a smaller catalogue has few items to show
GROUND, DELTA = 8, 0.001  # suggested values of critic.ground and algorithm.delta


def find_collapse(
    options: RunOptions, exposure: Exposure, diagnostics: dict[str, float], policy: Policy
) -> dict[str, str]:
    """Return one sentence per condition that holds: "entropy", "rare" and "same".

    Args:
        options: The options of the run, from which the remedy follows.
        exposure: What the policy's lists show.
        diagnostics: The diagnostics of the epoch; the entropy is checked if they contain it.
        policy: The policy.
    """
    findings: dict[str, str] = {}
    entropy = diagnostics.get("entropy") if policy.stochastic else None
    if entropy is not None and entropy < MIN_ENTROPY and policy.n_items > 1:
        findings["entropy"] = (
            f"the entropy of the policy is {entropy:.2g} nats, of at most {math.log(policy.n_items):.1f}: it gives one "
            "item per state a probability of almost 1, so that sampling cannot explore and estimates have no overlap"
        )
    # Item features are evidence about items without events, and network.new_item_bonus shows such items on purpose.
    has_features = getattr(getattr(policy, "agent", None), "features", None) is not None
    if exposure.log_rare_share > 0 and exposure.rare_share > MAX_RARE * RARE_EVENTS and not has_features:
        findings["rare"] = (
            f"{exposure.rare_share:.0%} of the recommended items have fewer than {exposure.rare_below} training events "
            f"({exposure.log_rare_share:.0%} of the log's events): the log contains almost no evidence about them"
        )
    length = min(LIST_LENGTH, policy.n_items)
    is_varied = exposure.log_effective_items >= MIN_LOG_LENGTHS * length
    limit = max(MIN_LIST_LENGTHS * length, MIN_LOG_SHARE * exposure.log_effective_items)
    if is_varied and exposure.effective_items < limit:
        findings["same"] = (
            f"the lists hardly depend on the visitor: {exposure.lists:,} lists of {length} contain "
            f"{exposure.effective_items:.0f} items in effect, the log {exposure.log_effective_items:,.0f}"
        )
    return {name: f"{text}; {remedy(options, name)} ({PAGE})." for name, text in findings.items()}


def remedy(options: RunOptions, condition: str) -> str:
    """Return what to change first, given the options of the run."""
    learner, needs = options.learner, options.learner.needs
    has_critic = needs.critic != "none"
    if has_critic and options.critic.ground == 0:
        return f"set critic.ground={GROUND}"
    if options.algorithm == "pc":  # its actor imitates; a larger β makes it closer to SL
        return f"raise algorithm.beta (it is {options.settings()['algorithm.beta']:g}) by a factor of 3"
    if hasattr(learner, "alpha") and condition != "rare":
        return f"raise algorithm.alpha (it is {learner.alpha:g}) by a factor of 3"
    if condition == "rare" and getattr(learner, "delta", None) == 0:
        return f"set algorithm.delta={DELTA:g}"
    if getattr(learner, "start", None) == "fresh":
        return "set algorithm.start=supervised"
    if hasattr(learner, "beta"):
        return f"raise algorithm.beta (it is {learner.beta:g}) by a factor of 3"
    if has_critic:
        return "raise critic.returns, or train dc instead"
    return "train for more epochs or with a lower training.learning_rate"
