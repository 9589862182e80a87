"""The table of an answer: all learners and the best baselines."""

from offrec.reports import formatting, labels
from offrec.reports.compared_learners import BEHAVIOUR, METRIC, AnswerLearners, ComparedLearners, Measure
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.earnings import has_value, verdicts
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.tables import Cell, Row, Table, column_ranks, metric_cell, policy_summary, stars
from offrec.reports.yardsticks import best_simple, yardstick_columns

FEW_SEEDS = 2
HEADS = {
    "reward": "true reward per session",
    "value": "estimated value per session",
    METRIC: f"{METRIC}, all test events",
}
NOTES = {
    1: "One seed: the tests cover test sessions and visitors, not the variation over seeds.",
    2: "Two seeds: the t-test over seeds has little power, so the p-value over sessions alone is shown as well.",
}


def answer_table(
    results: StudyResults,
    comparer: Comparer,
    key: str,
    learners: AnswerLearners,
    ranking: ComparedLearners,
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
