"""Answer "Is the RL doing anything here?" for each log and backbone.

An answer uses the best measure of earnings that the study has: true reward in the shop, else estimated values that are
trusted and tested. Ranking metrics reward imitation, so they do not answer the question.

In the shop, the best RL learner is compared with the best simple policy and with its twin without look-ahead
(`shop_answers`). Elsewhere it is compared with the learner `sl` and with the best baseline. Other imitation learners
are listed in the table. Without SL the question is not answered, and the best RL learner is compared with the best
baseline only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.earnings import has_value, verdicts
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.shop_answers import ShopComparison, compare_in_shop
from offrec.reports.tables import Cell, Row, Table, column_ranks, metric_cell, policy_summary, stars
from offrec.reports.yardsticks import best_simple, yardstick_columns

QUESTION = "Is the RL doing anything here?"
METRIC: Final = "NDCG@10"
DISTRUST = "do not trust"
FEW_SEEDS = 2
NO_SL = "Not answered: SL was not run."
Measure = Literal["reward", "value", "NDCG@10"]
BEHAVIOUR = {"reward": "", "value": "", METRIC: "all"}
VERB = {"reward": "earns", "value": "is estimated to earn"}
HEADS = {
    "reward": "true reward per session",
    "value": "estimated value per session",
    METRIC: f"{METRIC}, all test events",
}
NOTES = {
    1: "One seed: the tests cover test sessions and visitors, not the variation over seeds.",
    2: "Two seeds: the t-test over seeds has little power, so the p-value over sessions alone is shown as well.",
}


@dataclass(frozen=True)
class _Learners:
    """The learners of one answer. Only RL learners are candidates; others and twins are listed in the table."""

    sl: PolicyResults | None
    other_imitation: list[PolicyResults]
    rl: list[PolicyResults]
    listed: list[PolicyResults]  # all of them, with sampled SL and the twins, in the order of the table

    @property
    def all(self) -> list[PolicyResults]:
        return [*([self.sl] if self.sl is not None else []), *self.other_imitation, *self.rl]

    @property
    def log(self) -> str:
        return self.rl[0].group.log


@dataclass(frozen=True)
class Answer:
    """The answer for one log and backbone.

    Attributes:
        about: Log and backbone.
        short: The answer in a sentence or two.
        measure: The measure that the answer is based on.
        best: Label of the best RL learner by that measure.
        versus_sl: The best RL learner compared with SL.
        baseline: Label of the best baseline by that measure.
        versus_baseline: The best RL learner compared with the best baseline.
        table: All policies of the answer.
        in_shop: In the shop: the best RL learner compared with the best simple policy and with its twin.
    """

    about: str
    short: str
    measure: Measure = METRIC
    best: str | None = None
    versus_sl: Comparison | None = None
    baseline: str | None = None
    versus_baseline: Comparison | None = None
    table: Table | None = None
    in_shop: ShopComparison | None = None

    @property
    def one_seed_note(self) -> str:
        """A note for readers who do not see the table, if the answer comes from one seed."""
        return self.table.note if self.table is not None and self.table.note == NOTES[1] else ""

    def text(self) -> str:
        """Return the answer and the note about one seed, for a terminal."""
        return f"{self.short} {self.one_seed_note}".rstrip()


@dataclass(frozen=True)
class _Compared:
    """The learners by one measure, each compared with SL, if it was run, and with the best baseline."""

    measure: Measure
    learners: list[PolicyResults]
    versus_sl: list[Comparison | None]
    baseline: PolicyResults | None
    versus_baseline: list[Comparison | None]

    @property
    def is_tested(self) -> bool:
        return any(one is not None and one.corrected is not None for one in self.versus_reference)

    @property
    def versus_reference(self) -> list[Comparison | None]:
        """The comparisons with SL; without SL, those with the best baseline."""
        return self.versus_sl if any(self.versus_sl) else self.versus_baseline

    def best(self) -> int:
        """Return the index of the best learner; learners significantly above SL take precedence."""

        def key(index: int) -> tuple[bool, float]:
            comparison = self.versus_reference[index]
            return (comparison is not None and comparison.sign() == "more", comparison.gain if comparison else -1e30)

        return max(range(len(self.learners)), key=key)


def learner_groups(results: StudyResults) -> list[tuple[str, str, list[PolicyResults]]]:
    """Return (title, key, learners) for each log, backbone and preset."""
    groups: dict[tuple[object, ...], list[PolicyResults]] = {}
    for policy in results.compared:
        if policy.group.kind == "learner":
            groups.setdefault((policy.group.log, policy.group.backbone, policy.group.preset), []).append(policy)
    return [
        (f"{learners[0].group.log}, {labels.backbone_label(learners[0])}", "-".join(map(str, key)), learners)
        for key, learners in groups.items()
    ]


def build_answers(results: StudyResults, comparer: Comparer) -> list[Answer]:
    """Build one answer for each log, backbone and preset."""
    answers = []
    for about, key, learners in learner_groups(results):
        sl = next((policy for policy in learners if labels.is_sl(policy)), None)
        rl = [policy for policy in learners if not labels.is_imitation(policy) and not policy.group.is_twin]
        has_baseline = any(
            p.group.kind == "baseline" and p.group.log == learners[0].group.log for p in results.compared
        )
        if not rl:
            answers.append(Answer(about, "Not answered: no learner that uses rewards was run."))
        elif sl is None and not has_baseline:
            answers.append(Answer(about, f"{NO_SL} There is no baseline to compare with either."))
        else:
            others = [policy for policy in learners if labels.is_imitation(policy) and policy is not sl]
            sampled = [policy for policy in results.sampled if sl is not None and _plays(policy, sl)]
            with_twins = [one for policy in rl for one in (policy, results.twin(policy)) if one is not None]
            listed = [*([sl] if sl is not None else []), *sampled, *others, *with_twins]
            answers.append(_answer(results, comparer, about, key, _Learners(sl, others, rl, listed)))
    return answers


def _plays(sampled: PolicyResults, sl: PolicyResults) -> bool:
    return (sampled.study.folder, sampled.group.name) == (sl.study.folder, sl.group.name)


def earnings_measure(policies: Sequence[PolicyResults]) -> Measure | None:
    """Return the best measure of earnings that at least some policies have."""
    if any(policy.values("", "reward") for policy in policies):
        return "reward"
    return "value" if any(policy.values("", "value") for policy in policies) else None


def _answer(results: StudyResults, comparer: Comparer, about: str, key: str, learners: _Learners) -> Answer:
    sl, rl = learners.sl, learners.rl
    ranking = _compare(results, comparer, METRIC, sl, rl)
    earning = earnings_measure(learners.all)
    compared, reason = ranking, "no reward was measured"
    in_shop = None
    if earning == "reward":
        compared = _compare(results, comparer, "reward", sl, rl)
        in_shop = compare_in_shop(results, comparer, rl, learners.listed) if sl is not None else None
    elif earning == "value":
        trusted = [policy for policy in rl if not _is_distrusted(policy)]
        if sl is not None and _is_distrusted(sl):
            reason = "the estimated value of SL is not reliable"
        elif not trusted:
            reason = "no RL learner has a reliable estimated value"
        else:
            by_value = _compare(results, comparer, "value", sl, trusted)
            compared = by_value if by_value.is_tested else ranking
            reason = "testing estimated values needs several seeds"
    best = compared.best()
    versus_sl, versus_baseline = compared.versus_sl[best], compared.versus_baseline[best]
    name, baseline = labels.policy_label(compared.learners[best]), compared.baseline
    if in_shop is not None:
        best = compared.learners.index(in_shop.best)
        name, short = labels.policy_label(in_shop.best), in_shop.sentence()
        versus_sl, versus_baseline = compared.versus_sl[best], compared.versus_baseline[best]
    elif sl is None:
        short = _sentence_without_sl(compared)
    else:
        short = _ranking_sentence(ranking, reason) if compared.measure == METRIC else _earnings_sentence(compared)
    return Answer(
        about,
        short,
        compared.measure,
        name,
        versus_sl,
        labels.policy_label(baseline) if baseline else None,
        versus_baseline,
        _table(results, comparer, key, learners, ranking, earning),
        in_shop,
    )


def _compare(
    results: StudyResults, comparer: Comparer, measure: Measure, sl: PolicyResults | None, learners: list[PolicyResults]
) -> _Compared:
    behaviour = BEHAVIOUR[measure]
    baselines = [p for p in results.compared if p.group.kind == "baseline" and p.group.log == learners[0].group.log]
    usable = [p for p in baselines if p.values(behaviour, measure) and not (measure == "value" and _is_distrusted(p))]
    baseline = max(usable, key=lambda p: p.mean(behaviour, measure) or 0.0, default=None)
    versus_sl = comparer.compare_family(learners, [sl] * len(learners), behaviour, measure)
    versus_baseline = comparer.compare_family(learners, [baseline] * len(learners), behaviour, measure)
    return _Compared(measure, learners, versus_sl, baseline, versus_baseline)


def _is_distrusted(policy: PolicyResults) -> bool:
    return DISTRUST in verdicts(policy)


def _earnings_sentence(compared: _Compared) -> str:
    index, verb = compared.best(), VERB[compared.measure]
    name = labels.policy_label(compared.learners[index])
    versus_sl, versus_baseline = compared.versus_sl[index], compared.versus_baseline[index]
    decimals = formatting.reward_decimals(*(p.mean("", compared.measure) for p in compared.learners))
    baseline = f"the best baseline, {labels.policy_label(compared.baseline)}" if compared.baseline else ""
    gain = _gain(versus_baseline, decimals)
    if versus_sl is not None and versus_sl.sign() == "more":
        more = f"{name} {verb} more than SL ({_gain(versus_sl, decimals)} per session)"
        if versus_baseline is None:
            return f"Partly: {more}, but there is no baseline to compare with."
        ending = {
            "more": f" and more than {baseline} ({gain})",
            "less": f", but less than {baseline} ({gain})",
            "unclear": f", but not clearly more than {baseline} ({gain})",
        }[versus_baseline.sign()]
        return f"{'Yes' if versus_baseline.sign() == 'more' else 'Partly'}: {more}{ending}."
    if all(one is not None and one.sign() == "less" for one in compared.versus_sl):
        text = (
            f"No: every RL learner {verb} less than SL; the best is {name} ({_gain(versus_sl, decimals)} per session)."
        )
    else:
        text = (
            f"Not shown: no RL learner {verb} clearly more than SL; the best is {name} ({_gain(versus_sl, decimals)})."
        )
    return f"{text} Compared with {baseline}, {name} has {gain}." if versus_baseline else text


def _sentence_without_sl(compared: _Compared) -> str:
    index = compared.best()
    name, versus = labels.policy_label(compared.learners[index]), compared.versus_baseline[index]
    if compared.baseline is None or versus is None:
        return f"{NO_SL} No baseline has the same measurement as the RL learners."
    is_less = versus.sign() == "less"
    if compared.measure == METRIC:
        claim, gain = f"ranks {'below' if is_less else 'above'}", formatting.format_share(versus.relative)
    else:
        claim = f"{VERB[compared.measure]} {'less' if is_less else 'more'} than"
        decimals = formatting.reward_decimals(*(p.mean("", compared.measure) for p in compared.learners))
        gain = f"{_gain(versus, decimals)} per session"
    baseline = f"the best baseline, {labels.policy_label(compared.baseline)}"
    metric = f", in {METRIC}" if compared.measure == METRIC else ""
    start = f"It is unclear whether {name}" if versus.sign() == "unclear" else name
    return f"{NO_SL} {start} {claim} {baseline}{metric} ({gain})."


def _gain(comparison: Comparison | None, decimals: int) -> str:
    if comparison is None:
        return "not measured"
    gain = formatting.format_gain(comparison.gain, decimals)
    return gain if comparison.sign() != "unclear" else f"{gain}, {formatting.format_p_value(comparison.corrected)}"


def _ranking_sentence(ranking: _Compared, reason: str) -> str:
    pairs = zip(ranking.learners, ranking.versus_sl, strict=True)
    above = [(policy, one) for policy, one in pairs if one is not None and one.sign() == "more"]
    above.sort(key=lambda pair: -pair[1].gain)
    if not above:
        return f"Not answered: {reason}. No RL learner ranks clearly above SL in {METRIC}."
    names = [f"{labels.policy_label(policy)} ({formatting.format_share(one.relative)})" for policy, one in above]
    verb = "ranks" if len(above) == 1 else "rank"
    return f"Not answered: {reason}. {formatting.join_names(names)} {verb} above SL in {METRIC}."


def _table(
    results: StudyResults,
    comparer: Comparer,
    key: str,
    learners: _Learners,
    ranking: _Compared,
    earning: Measure | None,
) -> Table:
    """Show all learners and the best baselines; in a shop, also the shop's policies."""
    log, sl = learners.log, learners.sl
    best = [ranking.baseline, results.best_baseline(log, "", earning) if earning else None]
    shop = [results.find(log, name) for name in ("logging", "informed", "oracle")] if earning == "reward" else []
    listed = learners.listed if earning == "reward" else learners.all
    rows = list({id(policy): policy for policy in (*listed, *best, *shop) if policy is not None}.values())
    if earning == "reward":
        columns = _columns(comparer, rows, None, "reward", None)
        simple = best_simple(results, log, learners.rl[0].group.backbone)
        columns += yardstick_columns(results, comparer, rows, simple, _decimals(rows, "reward"))
    else:
        columns = _columns(comparer, rows, sl, earning, best[1]) if earning is not None else []
    if any(map(has_value, rows)):
        columns.append(("verdict", [Cell("; ".join(verdicts(policy)) or formatting.MISSING) for policy in rows]))
    columns += _columns(comparer, rows, sl, METRIC, None if earning == "reward" else ranking.baseline)
    sections: dict[str, list[Row]] = {}
    for index, policy in enumerate(rows):
        section = "Best baseline" if policy.group.kind == "baseline" else labels.section_label(policy)
        row = Row(labels.policy_label(policy), [cells[index] for _, cells in columns])
        sections.setdefault(section, []).append(row)
    note = NOTES.get(min(len(policy.results) for policy in learners.all), "")
    return Table(f"answer-{key}", "", note, [], [head for head, _ in columns], list(sections.items()))


def _columns(
    comparer: Comparer,
    rows: list[PolicyResults],
    sl: PolicyResults | None,
    measure: Measure,
    baseline: PolicyResults | None,
) -> list[tuple[str, list[Cell]]]:
    behaviour = BEHAVIOUR[measure]
    means = [policy.mean(behaviour, measure) for policy in rows]
    decimals = _decimals(rows, measure)

    def formatter(value: float | None) -> str:
        if measure == METRIC:
            return formatting.format_metric(value)
        return formatting.format_reward(value, decimals)

    ranks = column_ranks([m if p.group.kind != "shop" else None for p, m in zip(rows, means, strict=True)])
    cells = [
        metric_cell(policy_summary(policy, behaviour, measure), None, rank, formatter)
        for policy, rank in zip(rows, ranks, strict=True)
    ]
    columns = [(HEADS[measure], cells)]
    prefix = f"{METRIC} " if measure == METRIC else ""
    opponents = [(f"{prefix}compared with SL", sl)] if sl is not None else []
    opponents += [(f"{prefix}compared with the best baseline", baseline)] if baseline is not None else []
    for head, other in opponents:
        others = [None if policy.group.kind == "shop" else other for policy in rows]
        comparisons = comparer.compare_family(rows, others, behaviour, measure)
        if any(comparisons):
            columns.append((head, [_comparison_cell(one, measure, decimals) for one in comparisons]))
    return columns


def _decimals(rows: list[PolicyResults], measure: Measure) -> int:
    return (
        4 if measure == METRIC else formatting.reward_decimals(*(row.mean(BEHAVIOUR[measure], measure) for row in rows))
    )


def _comparison_cell(comparison: Comparison | None, measure: Measure, decimals: int) -> Cell:
    if comparison is None:
        return Cell()
    if measure == METRIC:
        text = formatting.format_share(comparison.relative)
    else:
        text = formatting.format_gain(comparison.gain, decimals)
    spread = formatting.format_p_value(comparison.corrected)
    few = comparison.seeds == FEW_SEEDS and comparison.sign() == "unclear" and comparison.p_sessions is not None
    spread += f"; sessions {formatting.format_p_value(comparison.p_sessions)}" if few else ""
    return Cell(text, spread, stars(comparison), sort=comparison.gain)
