"""WorkerOptions policies, backbones, behaviours and figures are called on paper."""

from collections.abc import Callable

from offrec.reports.reading import Entry
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


def policy(entry: Entry) -> str:
    name = entry.group.policy
    known = {"baseline": BASELINES, "shop": OWN}.get(entry.group.kind, {})
    label = known.get(name, name.upper())
    missing = entry.asked - len(entry.results)
    return f"{label} ({len(entry.results)} of {entry.asked} seeds)" if missing else label


def brief(entry: Entry) -> str:
    """For pictures, where there is little room."""
    short = {"recent": "Recent", "popular": "Popular", "logging": "Logging", "random": "Random", "greedy": "Greedy"}
    name = entry.group.policy
    known = {**BASELINES, "oracle": "Oracle", **short}
    return known[name] if entry.group.kind != "learner" else name.upper()


def backbone(entry: Entry) -> str:
    """ "GRU", or with its preset where that is not the usual one."""
    name = BACKBONES.get(str(entry.group.backbone), str(entry.group.backbone))
    return name if entry.group.preset in (None, "strong") else f"{name}, preset {entry.group.preset}"


def whole(entry: Entry) -> str:
    """Policy and backbone in one."""
    return f"{policy(entry)}, {backbone(entry)}" if entry.group.backbone else policy(entry)


def whole_of(group: Group) -> str:
    """The same of what is asked."""
    return f"{group.policy.upper()}, {BACKBONES.get(str(group.backbone), group.backbone)}"


def option(key: str) -> str:
    return OPTIONS.get(key, key)


def setting(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def level(text: str) -> str:
    """What values of a sweep are set beside: "adaptive, ε = 1", "SL"."""
    parts = []
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        known = OPTIONS.get(key, key.removeprefix("algorithm."))
        parts.append(value.upper() if key == "algorithm.name" else known if value == "true" else f"{known} = {value}")
    return ", ".join(parts)


def figure(value: float | None, digits: int = 4) -> str:
    """.3174, as the paper prints it."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def money(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


def interval(low: float | None, high: float | None, spoken: Callable[[float], str]) -> str:
    """In brackets, so that it is not read as more figures."""
    return "" if low is None or high is None else f"[{spoken(low)} … {spoken(high)}]"


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %".replace("-", "−")


def p_value(p: float | None) -> str:
    if p is None:
        return "not tested"
    return "p < .001" if p < 0.001 else f"p = {figure(p, 3)}"


def listed(names: list[str]) -> str:
    """ "A, B and C\""""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"
