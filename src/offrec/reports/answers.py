""" "Is the RL doing anything here?", answered from the results, in words that are right for whatever came out."""

from collections.abc import Sequence
from dataclasses import dataclass

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.statistics import holm, summary
from offrec.reports.value_tables import own

FIGURE = "NDCG@10"
IMITATES = ("sl",)  # the rest reads rewards
DISTRUSTED = "do not trust"
FEW_SEEDS, LEVEL = 2, 0.05
UNSURE = "by sessions alone, with too few seeds to be sure"

Named = list[tuple[str, Comparison]]


@dataclass(frozen=True)
class Answer:
    """For one log and backbone."""

    about: str
    short: str  # yes, no or cannot be told, and why, in a sentence
    sentences: list[str]


@dataclass(frozen=True)
class Sides:
    """Learners by how they compare with another policy: (name, comparison)."""

    more: Named
    less: Named
    maybe_more: Named  # the bootstrap is clear, and the t-test has too few seeds to be
    maybe_less: Named
    unclear: Named

    @property
    def undecided(self) -> Named:
        return [*self.maybe_more, *self.unclear, *self.maybe_less]

    @property
    def every(self) -> Named:
        return [*self.more, *self.less, *self.undecided]

    def __len__(self) -> int:
        return len(self.every)

    @property
    def tested(self) -> bool:
        """One seed's estimates of value cannot be."""
        return any(one.corrected is not None for _, one in self.every)


def answers(reading: StudyResults, comparer: Comparer) -> list[Answer]:
    found = []
    keys = dict.fromkeys(
        (e.group.log, e.group.backbone, e.group.preset) for e in reading.compared if e.group.kind == "learner"
    )
    for key in keys:
        here = [e for e in reading.compared if (e.group.log, e.group.backbone, e.group.preset) == key]
        sl = next((e for e in here if e.group.policy in IMITATES), None)
        learners = [e for e in here if e.group.policy not in IMITATES]
        about = f"{key[0]}, {labels.backbone_label(here[0])}"
        if sl is None or not learners:
            missing = "SL, which imitates, was not run" if sl is None else "no learner that reads rewards was run"
            found.append(Answer(about, f"It cannot be told: {missing}.", []))
        else:
            found.append(_answer(reading, comparer, about, sl, learners))
    return found


def _answer(
    reading: StudyResults, comparer: Comparer, about: str, sl: PolicyResults, learners: list[PolicyResults]
) -> Answer:
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


def _sides(
    comparer: Comparer, learners: Sequence[PolicyResults], other: PolicyResults, behaviour: str, figure: str
) -> Sides:
    compared = comparer.family(learners, [other] * len(learners), behaviour, figure)
    sessions = holm([one.p_sessions if one else None for one in compared])
    sides: dict[str, Named] = {"more": [], "less": [], "maybe more": [], "maybe less": [], "unclear": []}
    for entry, one, p in zip(learners, compared, sessions, strict=True):
        if one is not None:
            sides[_side(one, p)].append((labels.policy_label(entry), one))
    for key, side in sides.items():
        side.sort(key=lambda pair: pair[1].gain, reverse="less" not in key)
    return Sides(*sides.values())


def _side(one: Comparison, p_sessions: float | None) -> str:
    """`p_sessions`: the bootstrap's, corrected."""
    clear = p_sessions is not None and p_sessions <= LEVEL
    if one.verdict(LEVEL) == "unclear" and clear and one.seeds <= FEW_SEEDS:
        return "maybe more" if one.gain > 0 else "maybe less"
    return one.verdict(LEVEL)


def _distrusted(entry: PolicyResults) -> bool:
    """Has its value a verdict, of any seed, that forbids to count on it?"""
    return any((result.facts.get("value") or {}).get("verdict") == DISTRUSTED for result in entry.results)


def _short(ranked: Sides, worth: Sides, paid: Sides) -> str:
    """What is known best decides: true reward, then estimates that are trusted and tested, then next-item figures."""
    if len(paid):
        return _earns("truly earn", "truly earns", "a session of the shop", paid, ranked)
    if worth.tested:
        return _earns("are estimated to earn", "is estimated to earn", "a session", worth, ranked)
    if ranked.more:
        verb = "is" if len(ranked.more) == 1 else "are"
        return (
            f"It ranks better: {_shares(ranked.more)} {verb} above SL in {FIGURE}, all events. Whether anything more "
            "is earned, this log does not show."
        )
    undecided = "none of them is clearly above SL" if len(ranked) > 1 else "it is not clearly above SL"
    maybe = f" Above it {UNSURE}: {_shares(ranked.maybe_more)}." if ranked.maybe_more else ""
    return (
        f"Not in next-item figures: {undecided} in {FIGURE} over all test events (other figures, and each behaviour, "
        f"have their stars in the tables).{maybe} Such figures reward imitation, so whether anything more is "
        "earned they do not show."
    )


def _earns(several: str, one: str, where: str, money: Sides, ranked: Sides) -> str:
    if not money.more:
        if len(money.less) == len(money):
            return f"No: every learner that reads rewards {one} less than SL."
        best, gain = max(money.undecided, key=lambda pair: pair[1].gain)
        least = (
            f"; {best} has {formatting.format_gain(gain.gain)}, {formatting.format_p_value(gain.corrected)}"
            if gain.gain > 0
            else ""
        )
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
    by = formatting.format_gain(gain.gain)
    return f"Yes: {formatting.join_names(names_)} {verb} more than SL{most} by {by} {where}.{tail}"


def _shares(side: Named) -> str:
    return formatting.join_names([f"{name} ({formatting.format_share(one.relative)})" for name, one in side])


def _detailed(side: Named) -> str:
    return formatting.join_names(
        [
            f"{name} ({formatting.format_share(one.relative)}, {formatting.format_p_value(one.corrected)})"
            for name, one in side
        ]
    )


def _ranking_sentence(sl: PolicyResults, sides: Sides) -> str:
    found = summary(list(sl.values("all", FIGURE).values()))
    at = formatting.format_figure(found.mean if found else None)
    told = (
        ("above it", sides.more, _detailed),
        ("below it", sides.less, _detailed),
        (f"above it {UNSURE}", sides.maybe_more, _shares),
        (f"below it {UNSURE}", sides.maybe_less, _shares),
        ("not told apart from it", sides.unclear, _detailed),
    )
    parts = [f"{words}: {said(side)}" for words, side, said in told if side]
    return f"By the next logged item, all test events, SL has {FIGURE} {at}; {'; '.join(parts)}."


def _recent_sentence(
    comparer: Comparer, sl: PolicyResults, learners: Sequence[PolicyResults], recent: PolicyResults
) -> str:
    sides = _sides(comparer, [sl, *learners], recent, "all", FIGURE)
    at = formatting.format_figure(next(iter(recent.values("all", FIGURE).values()), None))
    above = f"clearly above that: {formatting.join_names([name for name, _ in sides.more])}"
    below = f"clearly below: {formatting.join_names([name for name, _ in sides.less])}"
    return f"Showing the most recent items again has {at}; {above}; {below}."


def _money_sentence(where: str, sl_has: str, sl: PolicyResults, sides: Sides, figure: str) -> str:
    found = summary(list(sl.values("", figure).values()))
    unclear = "not told apart" if sides.tested else "not tested, for that takes several seeds"
    unsure = UNSURE.replace("sessions", "visitors")
    told = (
        ("clearly more", sides.more, sides.tested),
        ("clearly less", sides.less, sides.tested),
        (f"more {unsure}", sides.maybe_more, False),
        (f"less {unsure}", sides.maybe_less, False),
        (unclear, sides.unclear, sides.tested),
    )
    parts = [f"{words}: {_gains(side, with_p)}" for words, side, with_p in told if side]
    return f"{where} {sl_has} {formatting.format_reward(found.mean if found else None)} a session; {'; '.join(parts)}."


def _gains(side: Named, with_p: bool) -> str:
    chances = [f", {formatting.format_p_value(one.corrected)}" if with_p else "" for _, one in side]
    return formatting.join_names(
        [f"{name} ({formatting.format_gain(one.gain)}{p})" for (name, one), p in zip(side, chances, strict=True)]
    )


def _worth_sentence(sl: PolicyResults, others: Sequence[PolicyResults], sides: Sides) -> str:
    """`others`: learners whose estimates, or SL's, are not to be trusted."""
    where = "By the estimate from the log"
    if _distrusted(sl):
        found = summary(list(sl.values("", "value").values()))
        at = formatting.format_reward(found.mean if found else None)
        return f"{where} SL would be worth {at} a session, but that is not to be trusted, so no value is set beside it."
    named = formatting.join_names([labels.policy_label(entry) for entry in others])
    if not len(sides):
        return f"{where} nothing can be said: of no learner that reads rewards is it to be trusted."
    left_out = f" Not to be trusted, so left out: {named}." if others else ""
    return _money_sentence(where, "SL is worth", sl, sides, "value") + left_out


def _own_sentences(
    reading: StudyResults, comparer: Comparer, sl: PolicyResults, learners: Sequence[PolicyResults]
) -> list[str]:
    logging, oracle = (own(reading, sl.group.log, name) for name in ("logging", "oracle"))
    if logging is None:
        return []
    sides = _sides(comparer, [sl, *learners], logging, "", "reward")
    earned = next(iter(logging.values("", "reward").values()))
    text = f"The policy that wrote the log earns {formatting.format_reward(earned)}; clearly more than it: "
    text += f"{formatting.join_names([name for name, _ in sides.more])}"
    text += f"; clearly less: {formatting.join_names([name for name, _ in sides.less])}"
    if oracle is not None:
        text += f"; an oracle {formatting.format_reward(next(iter(oracle.values('', 'reward').values())))}"
    return [f"{text}."]


def _how_sure(sl: PolicyResults, learners: Sequence[PolicyResults], shop: bool) -> str:
    seeds = min(len(entry.results) for entry in (sl, *learners))
    over = "test sessions and visitors" if shop else "test sessions"
    if seeds == 1:
        return (
            f"With one seed nothing is known of the spread over seeds: these verdicts are the bootstrap's over {over} "
            "alone (Holm-corrected, p ≤ .05) and may not repeat."
        )
    few = (
        " Two seeds make a weak t-test: what is not told apart may still differ, and what the bootstrap alone tells "
        "(p ≤ .05 by Holm) stands apart."
        if seeds == FEW_SEEDS
        else ""
    )
    return (
        f"Clearly: p ≤ .05 after Holm's correction by both the paired t-test over {seeds} seeds and the paired "
        f"bootstrap over {over}.{few}"
    )
