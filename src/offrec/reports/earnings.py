"""Tables of what policies earn: true reward in the simulated shop, and value estimated from the log."""

from collections.abc import Sequence
from statistics import mean

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison, has_fewer_visitors
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.sharpe_ratios import sharpe_note
from offrec.reports.tables import Cell, Row, Table, column_ranks, gain_cell, metric_cell, policy_summary
from offrec.reports.yardsticks import best_simple, informed_note, seeds_note, skipped_note, yardstick_columns

SHOP_NOTE = (
    "True reward per session: each policy's top-k lists serve the same {visitors:,} new visitors until they leave. "
    "Shop policies use knowledge that no log contains; they are not ranked and not tested. Simple policies are the "
    "baselines, SL and the logging policy; the best one is known from these visitors."
)
VALUE_NOTE = "Estimated value per session: fitted Q evaluation on test sessions. The verdict says how far to trust it."


def earnings_tables(results: StudyResults, comparer: Comparer) -> list[Table]:
    """Build one table per log that has true rewards or estimated values."""
    tables = []
    for log in results.logs:
        of_log = [policy for policy in results.played if policy.group.log == log]
        policies = [policy for policy in of_log if policy.values("", "reward") or has_value(policy)]
        if policies:
            tables.append(_table(results, comparer, log, policies))
    return tables


def has_value(policy: PolicyResults) -> bool:
    """Return whether the value of a policy was estimated (it may be withheld)."""
    return any(result.facts.get("value") for result in policy.results)


def verdicts(policy: PolicyResults) -> list[str]:
    """Return the different verdicts on a policy's value, over seeds."""
    values = (result.facts.get("value") or {} for result in policy.results)
    return list(dict.fromkeys(verdict for value in values if (verdict := str(value.get("verdict") or ""))))


def _table(results: StudyResults, comparer: Comparer, log: str, policies: list[PolicyResults]) -> Table:
    columns: list[tuple[str, list[Cell]]] = []
    notes = []
    if any(policy.values("", "reward") for policy in policies):
        notes.append(SHOP_NOTE.format(visitors=max(policy.study.visitors for policy in policies)))
        notes += [text for text in (seeds_note(policies), informed_note(results, log), skipped_note(policies)) if text]
        columns += _reward_columns(results, comparer, log, policies)
    if any(map(has_value, policies)):
        notes += [text for text in (VALUE_NOTE, sharpe_note(policies, results.find(log, "logging"))) if text]
        columns += _value_columns(policies)
    sections: dict[str, list[Row]] = {}
    for index, policy in enumerate(policies):
        row = Row(labels.policy_label(policy), [cells[index] for _, cells in columns])
        sections.setdefault(labels.section_label(policy), []).append(row)
    heads = [head for head, _ in columns]
    return Table(f"earned-{log}", f"Earnings: {log}", " ".join(notes), [], heads, list(sections.items()))


def _reward_columns(
    results: StudyResults, comparer: Comparer, log: str, policies: list[PolicyResults]
) -> list[tuple[str, list[Cell]]]:
    summaries = [policy_summary(policy, "", "reward") for policy in policies]
    ranked = [s.mean if s and p.group.kind != "shop" else None for p, s in zip(policies, summaries, strict=True)]
    decimals = formatting.reward_decimals(*(summary.mean for summary in summaries if summary))
    versus_logging = _compare(comparer, policies, [results.find(log, "logging")] * len(policies))
    reward = [
        metric_cell(summary, None, rank, lambda value: formatting.format_reward(value, decimals))
        for summary, rank in zip(summaries, column_ranks(ranked), strict=True)
    ]
    columns = [("true reward per session", reward)]
    columns += yardstick_columns(results, comparer, policies, best_simple(results, log), decimals)
    if any(versus_logging):
        cells = [gain_cell(comparison, decimals) for comparison in versus_logging]
        columns.append(("compared with the logging policy", cells))
    columns.append(("picks", [_shop_mean(policy, "length", 1) for policy in policies]))
    columns.append(("purchases", [_shop_mean(policy, "purchases", 2) for policy in policies]))
    return columns


def _compare(
    comparer: Comparer, policies: list[PolicyResults], others: Sequence[PolicyResults | None]
) -> list[Comparison | None]:
    """Compare rewards. Shop policies are compared without a test, so they do not enlarge the family.

    Policies that served only some of the visitors are not compared.
    """
    others = [None if any(map(has_fewer_visitors, p.results)) else o for p, o in zip(policies, others, strict=True)]
    tested = [None if p.group.kind == "shop" else other for p, other in zip(policies, others, strict=True)]
    comparisons = comparer.compare_family(policies, tested, "", "reward")
    return [
        comparer.compare(policy, other, "", "reward")
        if policy.group.kind == "shop" and other is not None and other is not policy
        else comparison
        for policy, other, comparison in zip(policies, others, comparisons, strict=True)
    ]


def _shop_mean(policy: PolicyResults, name: str, digits: int) -> Cell:
    values = [result.facts["shop"][name]["mean"] for result in policy.results if result.facts.get("shop")]
    return Cell(f"{mean(values):.{digits}f}", sort=mean(values)) if values else Cell()


def _value_columns(policies: list[PolicyResults]) -> list[tuple[str, list[Cell]]]:
    decimals = formatting.reward_decimals(*(policy.mean("", "value") for policy in policies))
    values = [_value_cell(policy, decimals) for policy in policies]
    return [
        ("estimated value per session", values),
        ("verdict", [Cell("; ".join(verdicts(policy)) or formatting.MISSING) for policy in policies]),
    ]


def _value_cell(policy: PolicyResults, decimals: int) -> Cell:
    """Show the deviation over seeds, or with one seed the interval over test sessions."""
    known = [result.facts["value"] for result in policy.results if result.facts.get("value")]

    def formatter(value: float | None) -> str:
        return formatting.format_reward(value, decimals)

    summary = policy_summary(policy, "", "value")
    if summary is None:
        return Cell("withheld") if known else Cell()
    cell = metric_cell(summary, formatter=formatter)
    if len(known) > 1:
        return cell
    interval = formatting.format_interval(known[0]["low"], known[0]["high"], formatter)
    return Cell(cell.text, interval, sort=summary.mean)
