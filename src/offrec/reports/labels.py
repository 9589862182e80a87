"""How policies, backbones, behaviours and figures are called on paper."""

from offrec.reports.reading import PolicyResults
from offrec.studies.study import Group

BASELINES = {
    "popular": "Popular items",
    "recent": "Most recent items",
    "markov": "Markov",
    "sknn": "SKNN",
    "vsknn": "VSKNN",
}
OWN = {
    "random": "Random lists",
    "logging": "The logging policy",
    "greedy": "Greedy, knowing tastes",
    "oracle": "The oracle",
}
BACKBONES = {"gru": "GRU", "cfn": "CFN", "caser": "Caser", "nextitnet": "NextItNet", "sasrec": "SASRec"}
RNN = ("gru", "cfn")
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
    name = entry.group.policy
    known = {"baseline": BASELINES, "shop": OWN}.get(entry.group.kind, {})
    label = known.get(name, name.upper())
    missing = entry.asked - len(entry.results)
    return f"{label} ({len(entry.results)} of {entry.asked} seeds)" if missing else label


def short_label(entry: PolicyResults) -> str:
    """For pictures, where there is little room."""
    short = {"recent": "Recent", "popular": "Popular", "logging": "Logging", "random": "Random", "greedy": "Greedy"}
    name = entry.group.policy
    known = {**BASELINES, "oracle": "Oracle", **short}
    return known[name] if entry.group.kind != "learner" else name.upper()


def backbone_label(entry: PolicyResults) -> str:
    """ "GRU", or with its preset where that is not the usual one."""
    name = BACKBONES.get(str(entry.group.backbone), str(entry.group.backbone))
    return name if entry.group.preset in (None, "strong") else f"{name}, preset {entry.group.preset}"


def full_label(entry: PolicyResults) -> str:
    """Policy and backbone in one."""
    return f"{policy_label(entry)}, {backbone_label(entry)}" if entry.group.backbone else policy_label(entry)


def learner_label(group: Group) -> str:
    """The same of what is asked."""
    return f"{group.policy.upper()}, {BACKBONES.get(str(group.backbone), group.backbone)}"


def option_label(key: str) -> str:
    return OPTIONS.get(key, key)


def comparison_label(text: str) -> str:
    """What values of a sweep are set beside: "adaptive, ε = 1", "SL"."""
    parts = []
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        known = OPTIONS.get(key, key.removeprefix("algorithm."))
        parts.append(value.upper() if key == "algorithm.name" else known if value == "true" else f"{known} = {value}")
    return ", ".join(parts)
