""" "Is the RL doing anything here?", answered from the results, in words that are right for whatever came out."""

from collections.abc import Sequence
from dataclasses import dataclass

from offrec.studies import names
from offrec.studies.comparing import Comparer, Comparison
from offrec.studies.earnings import own
from offrec.studies.reading import Entry, Reading
from offrec.studies.statistics import summary

FIGURE = "NDCG@10"
IMITATES = ("sl",)  # the rest reads rewards
DISTRUSTED = "do not trust"


@dataclass(frozen=True)
class Answer:
    """For one log and backbone."""

    about: str
    short: str  # yes, no or cannot be told, and why, in a sentence
    sentences: list[str]


@dataclass(frozen=True)
class Sides:
    """Learners by how they compare with another policy: (name, comparison)."""

    more: list[tuple[str, Comparison]]
    less: list[tuple[str, Comparison]]
    unclear: list[tuple[str, Comparison]]

    def __len__(self) -> int:
        return len(self.more) + len(self.less) + len(self.unclear)

    @property
    def tested(self) -> bool:
        """One seed's estimates of value cannot be."""
        return any(one.corrected is not None for _, one in (*self.more, *self.less, *self.unclear))


def answers(reading: Reading, comparer: Comparer) -> list[Answer]:
    found = []
    keys = dict.fromkeys(
        (e.group.log, e.group.backbone, e.group.preset) for e in reading.compared if e.group.kind == "learner"
    )
    for key in keys:
        here = [e for e in reading.compared if (e.group.log, e.group.backbone, e.group.preset) == key]
        sl = next((e for e in here if e.group.policy in IMITATES), None)
        learners = [e for e in here if e.group.policy not in IMITATES]
        about = f"{key[0]}, {names.backbone(here[0])}"
        if sl is None or not learners:
            missing = "SL, which imitates, was not run" if sl is None else "no learner that reads rewards was run"
            found.append(Answer(about, f"It cannot be told: {missing}.", []))
        else:
            found.append(_answer(reading, comparer, about, sl, learners))
    return found


def _answer(reading: Reading, comparer: Comparer, about: str, sl: Entry, learners: list[Entry]) -> Answer:
    ranked = _sides(comparer, learners, sl, "all", FIGURE)
    paid = _sides(comparer, learners, sl, "", "reward")
    trusted = [entry for entry in learners if not _distrusted(sl) and not _distrusted(entry)]
    worth = _sides(comparer, trusted, sl, "", "value")
    sentences = [_ranking_sentence(sl, ranked)]
    recent = own(reading, sl.group.log, "recent")
    if recent is not None:
        sentences.append(_recent_sentence(comparer, sl, learners, recent))
    if sl.values("", "value"):
        sentences.append(_worth_sentence(sl, [entry for entry in learners if entry not in trusted], worth))
    if len(paid):
        sentences.append(_money_sentence("In the shop itself", "SL earns", sl, paid, "reward"))
        sentences += _own_sentences(reading, comparer, sl, learners)
    sentences.append(_how_sure(sl, learners, bool(len(paid))))
    return Answer(about, _short(ranked, worth, paid), sentences)


def _sides(comparer: Comparer, learners: Sequence[Entry], other: Entry, behaviour: str, figure: str) -> Sides:
    compared = comparer.family(learners, [other] * len(learners), behaviour, figure)
    named = [(names.policy(entry), one) for entry, one in zip(learners, compared, strict=True) if one is not None]
    named.sort(key=lambda pair: -pair[1].gain)

    def those(verdict: str) -> list[tuple[str, Comparison]]:
        return [pair for pair in named if pair[1].verdict() == verdict]

    return Sides(those("more"), those("less")[::-1], those("unclear"))


def _distrusted(entry: Entry) -> bool:
    """Has its value a verdict, of any seed, that forbids to count on it?"""
    return any((result.facts.get("value") or {}).get("verdict") == DISTRUSTED for result in entry.results)


def _short(ranked: Sides, worth: Sides, paid: Sides) -> str:
    """What is known best decides: true reward, then estimates that are trusted and tested, then next-item figures."""
    if len(paid):
        return _earns("truly earn", "truly earns", "a session of the shop", paid, ranked)
    if worth.tested:
        return _earns("are estimated to earn", "is estimated to earn", "a session", worth, ranked)
    if ranked.more:
        return (
            f"It ranks better: {_best(ranked.more)} is above SL in {FIGURE} ({_shares(ranked.more[:1])}). Whether "
            "anything more is earned, this log does not show."
        )
    undecided = "none of them is clearly above SL" if len(ranked) > 1 else "it is not clearly above SL"
    return (
        f"Not in next-item figures: {undecided}. They reward imitation, so whether anything more is earned they do not "
        "show."
    )


def _earns(several: str, one: str, where: str, money: Sides, ranked: Sides) -> str:
    if not money.more:
        if len(money.less) == len(money):
            return f"No: every learner that reads rewards {one} less than SL."
        best, gain = money.unclear[0]
        least = f"; {best} has {names.signed(gain.gain)}, {names.p_value(gain.corrected)}" if gain.gain > 0 else ""
        return f"Nothing clear: no learner that reads rewards {one} clearly more than SL{least}."
    names_ = [name for name, _ in money.more]
    best, gain = money.more[0]
    verb = one if len(names_) == 1 else several
    worse, better = ([name for name, _ in side] for side in (ranked.less, ranked.more))
    tail = ""
    if best in worse:
        tail = f" Next-item figures say the opposite of {best}."
    elif best in better:
        tail = " Next-item figures agree."
    elif len(ranked):
        tail = f" Next-item figures do not tell {best} from SL."
    most = "" if len(names_) == 1 else f", {best} most,"
    return f"Yes: {names.listed(names_)} {verb} more than SL{most} by {names.signed(gain.gain)} {where}.{tail}"


def _best(side: list[tuple[str, Comparison]]) -> str:
    return side[0][0]


def _shares(side: list[tuple[str, Comparison]]) -> str:
    return ", ".join(names.share(one.relative) for _, one in side)


def _detailed(side: list[tuple[str, Comparison]]) -> str:
    return names.listed([f"{name} ({names.share(one.relative)}, {names.p_value(one.corrected)})" for name, one in side])


def _ranking_sentence(sl: Entry, sides: Sides) -> str:
    found = summary(list(sl.values("all", FIGURE).values()))
    at = names.figure(found.mean if found else None)
    parts = []
    if sides.more:
        parts.append(f"above it: {_detailed(sides.more)}")
    if sides.less:
        parts.append(f"below it: {_detailed(sides.less)}")
    if sides.unclear:
        parts.append(f"not told apart from it: {_detailed(sides.unclear)}")
    return f"By the next logged item, all test events, SL has {FIGURE} {at}; {'; '.join(parts)}."


def _recent_sentence(comparer: Comparer, sl: Entry, learners: Sequence[Entry], recent: Entry) -> str:
    sides = _sides(comparer, [sl, *learners], recent, "all", FIGURE)
    at = names.figure(next(iter(recent.values("all", FIGURE).values()), None))
    above = f"clearly above that: {names.listed([name for name, _ in sides.more])}"
    below = f"clearly below: {names.listed([name for name, _ in sides.less])}"
    return f"Showing the most recent items again has {at}; {above}; {below}."


def _money_sentence(where: str, sl_has: str, sl: Entry, sides: Sides, figure: str) -> str:
    found = summary(list(sl.values("", figure).values()))
    parts = []
    unclear = "not told apart" if sides.tested else "not tested, for that takes several seeds"
    for words, side in (("clearly more", sides.more), ("clearly less", sides.less), (unclear, sides.unclear)):
        if side:
            chance = [f", {names.p_value(one.corrected)}" if sides.tested else "" for _, one in side]
            gains = [f"{name} ({names.signed(one.gain)}{p})" for (name, one), p in zip(side, chance, strict=True)]
            parts.append(f"{words}: {names.listed(gains)}")
    return f"{where} {sl_has} {names.money(found.mean if found else None)} a session; {'; '.join(parts)}."


def _worth_sentence(sl: Entry, others: Sequence[Entry], sides: Sides) -> str:
    """`others`: learners whose estimates, or SL's, are not to be trusted."""
    where = "By the estimate from the log"
    if _distrusted(sl):
        found = summary(list(sl.values("", "value").values()))
        at = names.money(found.mean if found else None)
        return f"{where} SL would be worth {at} a session, but that is not to be trusted, so no value is set beside it."
    named = names.listed([names.policy(entry) for entry in others])
    if not len(sides):
        return f"{where} nothing can be said: of no learner that reads rewards is it to be trusted."
    left_out = f" Not to be trusted, so left out: {named}." if others else ""
    return _money_sentence(where, "SL is worth", sl, sides, "value") + left_out


def _own_sentences(reading: Reading, comparer: Comparer, sl: Entry, learners: Sequence[Entry]) -> list[str]:
    logging, oracle = (own(reading, sl.group.log, name) for name in ("logging", "oracle"))
    if logging is None:
        return []
    sides = _sides(comparer, [sl, *learners], logging, "", "reward")
    earned = next(iter(logging.values("", "reward").values()))
    text = f"The policy that wrote the log earns {names.money(earned)}; clearly more than it: "
    text += f"{names.listed([name for name, _ in sides.more])}"
    text += f"; clearly less: {names.listed([name for name, _ in sides.less])}"
    if oracle is not None:
        text += f"; an oracle {names.money(next(iter(oracle.values('', 'reward').values())))}"
    return [f"{text}."]


def _how_sure(sl: Entry, learners: Sequence[Entry], shop: bool) -> str:
    seeds = min(len(entry.results) for entry in (sl, *learners))
    over = "test sessions and visitors" if shop else "test sessions"
    if seeds == 1:
        return (
            f"With one seed nothing is known of the spread over seeds: these verdicts are the bootstrap's over {over} "
            "alone (Holm-corrected, p ≤ .05) and may not repeat."
        )
    few = " Two seeds make a weak t-test: what is not told apart may still differ." if seeds == 2 else ""
    return (
        f"Clearly: p ≤ .05 after Holm's correction by both the paired t-test over {seeds} seeds and the paired "
        f"bootstrap over {over}.{few}"
    )
