"""Labels of policies, backbones and options.

Labels and families of learners, backbones and baselines are stored in the study. Groups without them are labelled from
the records.
"""

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.baselines import BASELINES
from offrec.reports.reading import PolicyResults
from offrec.studies.study import RunGroup

SHOP_POLICIES = {
    "random": "Random lists",
    "logging": "Logging policy",
    "greedy": "Greedy (knows all preferences)",
    "informed": "Informed (knows the items)",
    "oracle": "Oracle (knows everything)",
}
SHORT_SHOP_POLICIES = {
    "random": "Random",
    "logging": "Logging",
    "greedy": "Greedy",
    "informed": "Informed",
    "oracle": "Oracle",
}
CLICKS = ("view", "click")
PURCHASES = ("cart", "buy", "purchase")
OPTIONS = {
    "algorithm.alpha": "α",
    "algorithm.beta": "β",
    "algorithm.delta": "δ",
    "algorithm.epsilon": "ε",
    "gamma": "γ",
}


def policy_label(policy: PolicyResults) -> str:
    """Return the label of a policy in tables, with the number of finished seeds if some are missing."""
    label, done = _label(policy.group), len(policy.results)
    shop = policy.results[0].facts.get("shop") or {} if policy.results else {}
    if policy.group.policy == "informed" and shop.get("sessions", 0) < shop.get("population", 0):
        return f"Informed (knows the items; first {shop['sessions']:,} visitors)"
    return f"{label} ({done} of {policy.expected} seeds)" if done < policy.expected else label


def short_label(policy: PolicyResults) -> str:
    """Return the label of a policy in figures, where space is scarce."""
    group, name = policy.group, policy.group.policy
    if group.short_label is not None:
        return group.short_label
    if group.kind == "baseline" and name in BASELINES:
        return BASELINES[name].short_label or BASELINES[name].label
    return SHORT_SHOP_POLICIES.get(name, name) if group.kind == "shop" else _label(group)


def group_label(group: RunGroup) -> str:
    """Return the label of a policy without its backbone and seeds."""
    return _label(group)


def learner_label(group: RunGroup) -> str:
    """Return the labels of a learner and its backbone; a planner has none."""
    return _label(group) if learner_family(group) == "planner" else f"{_label(group)}, {_backbone_label(group)}"


def backbone_label(policy: PolicyResults) -> str:
    """Return the label of the backbone, with the preset if it is not the default."""
    label = _backbone_label(policy.group)
    return label if policy.group.preset in (None, "strong") else f"{label}, preset {policy.group.preset}"


def section_label(policy: PolicyResults) -> str:
    """Return the heading of the rows that a policy belongs to."""
    return {"shop": "Shop policies", "baseline": "Baselines"}.get(policy.group.kind) or backbone_label(policy)


def learner_family(group: RunGroup) -> str:
    """Return the family of a learner; "unconstrained" if it is not stored and its plug-in is not installed."""
    name = group.policy
    return group.family or (LEARNERS[name].family if name in LEARNERS else "unconstrained")


def is_sl(policy: PolicyResults) -> bool:
    """Return whether a policy is SL, with which other policies are compared."""
    return policy.group.kind == "learner" and policy.group.policy == "sl" and not policy.group.is_sampled


def is_imitation(policy: PolicyResults) -> bool:
    """Return whether a policy is SL or another learner that imitates the log."""
    return policy.group.kind == "learner" and learner_family(policy.group) == "imitation"


def backbone_family(group: RunGroup) -> str:
    """Return the family of a backbone; "other" if it is not stored and its plug-in is not installed."""
    name = group.backbone
    return group.backbone_family or (BACKBONES[name].family if name is not None and name in BACKBONES else "other")


def option_label(key: str) -> str:
    """Return the paper's symbol of an option, or its dotted key."""
    return OPTIONS.get(key, key)


def comparison_label(group: RunGroup) -> str:
    """Return the label of a run that a sweep is compared with, for example "adaptive, ε = 1" or "SL"."""
    parts = []
    for pair in str(group.compare_with).split(","):
        key, _, value = pair.partition("=")
        label = OPTIONS.get(key, key.removeprefix("algorithm."))
        if key == "algorithm.name":
            parts.append(_label(group))
        else:
            parts.append(label if value == "true" else f"{label} = {value}")
    return ", ".join(parts)


def _label(group: RunGroup) -> str:
    return f"{_plain_label(group)}, sampled" if group.is_sampled else _plain_label(group)


def _plain_label(group: RunGroup) -> str:
    """Return the stored label if there is one, otherwise the registered label.

    If the plug-in is not installed, return the name.
    """
    name = group.policy
    if group.policy_label is not None:
        return group.policy_label
    if group.kind == "shop":
        return SHOP_POLICIES.get(name, name)
    if group.kind == "baseline":
        return BASELINES[name].label if name in BASELINES else name
    return LEARNERS[name].label if name in LEARNERS else name.upper()


def _backbone_label(group: RunGroup) -> str:
    name = group.backbone
    return group.backbone_label or (BACKBONES[name].label if name is not None and name in BACKBONES else str(name))
