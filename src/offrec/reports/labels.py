"""How policies, backbones, behaviours and figures are called on paper."""

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.baselines import BASELINES
from offrec.reports.reading import PolicyResults
from offrec.studies.study import RunGroup

OWN = {
    "random": "Random lists",
    "logging": "The logging policy",
    "greedy": "Greedy, knowing tastes",
    "oracle": "The oracle",
}
OWN_BRIEF = {"random": "Random", "logging": "Logging", "greedy": "Greedy", "oracle": "Oracle"}
CLICKS = ("view", "click")
PURCHASES = ("cart", "buy", "purchase")
OPTIONS = {
    "algorithm.alpha": "α",
    "algorithm.beta": "β",
    "algorithm.delta": "δ",
    "algorithm.epsilon": "ε",
    "gamma": "γ",
}


def policy_label(entry: PolicyResults) -> str:
    """The label of a policy in tables, with the number of finished seeds if some are missing."""
    label = _label(entry.group)
    missing = entry.asked - len(entry.results)
    return f"{label} ({len(entry.results)} of {entry.asked} seeds)" if missing else label


def short_label(entry: PolicyResults) -> str:
    """The label of a policy in figures, where space is scarce."""
    name = entry.group.policy
    if entry.group.kind == "baseline" and name in BASELINES:
        return BASELINES[name].short_label or BASELINES[name].label
    return OWN_BRIEF.get(name, name) if entry.group.kind == "shop" else _label(entry.group)


def _label(group: RunGroup) -> str:
    """The label from the record, or the name in capitals if its plug-in is not installed."""
    name = group.policy
    if group.kind == "shop":
        return OWN.get(name, name)
    if group.kind == "baseline":
        return BASELINES[name].label if name in BASELINES else name
    return LEARNERS[name].label if name in LEARNERS else name.upper()


def learner_family(name: str) -> str:
    return LEARNERS[name].family if name in LEARNERS else "unconstrained"


def backbone_family(name: str | None) -> str:
    return BACKBONES[name].family if name is not None and name in BACKBONES else "other"


def _backbone_label(name: str | None) -> str:
    return BACKBONES[name].label if name is not None and name in BACKBONES else str(name)


def backbone_label(entry: PolicyResults) -> str:
    """ "GRU", or with its preset where that is not the usual one."""
    name = _backbone_label(entry.group.backbone)
    return name if entry.group.preset in (None, "strong") else f"{name}, preset {entry.group.preset}"


def full_label(entry: PolicyResults) -> str:
    """Policy and backbone in one."""
    return f"{policy_label(entry)}, {backbone_label(entry)}" if entry.group.backbone else policy_label(entry)


def learner_label(group: RunGroup) -> str:
    """The same of what is asked."""
    return f"{_label(group)}, {_backbone_label(group.backbone)}"


def option_label(key: str) -> str:
    return OPTIONS.get(key, key)


def comparison_label(text: str) -> str:
    """What values of a sweep are set beside: "adaptive, ε = 1", "SL"."""
    parts = []
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        known = OPTIONS.get(key, key.removeprefix("algorithm."))
        if key == "algorithm.name":
            parts.append(LEARNERS[value].label)
        else:
            parts.append(known if value == "true" else f"{known} = {value}")
    return ", ".join(parts)
