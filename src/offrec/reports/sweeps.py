"""Tables of sweeps: one row per value of the varied option, and the runs they are compared with."""

from offrec.reports import formatting, labels
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.tables import Cell, Row, Table, metric_cell, policy_summary
from offrec.studies.value import VALUE_AT_5

VALUE_NOTE = (
    f"{VALUE_AT_5}: the mean return that followed the policy's top five items in the log, over test events (γ = 0.9, "
    "default rewards for all runs). It is an estimate from the log, without a verdict."
)
NOTE = "Test sessions, all behaviours unless one is named."
HEADS = {"reward": "true reward per session", VALUE_AT_5: f"estimated {VALUE_AT_5}"}


def sweeps(results: StudyResults) -> dict[tuple[str, str, str], list[PolicyResults]]:
    """Group the policies of sweeps by (log, learner, option): the varied ones, then those they are compared with."""
    by_option: dict[tuple[str, str, str], list[PolicyResults]] = {}
    for policy in results.swept:
        for key in policy.group.varied:
            by_option.setdefault((policy.group.log, labels.learner_label(policy.group), key), []).append(policy)
    for (log, _, _), policies in by_option.items():
        others = [p for p in results.swept if p.group.compare_with and p.group.log == log]
        policies += [p for p in others if any(study in policies[0].studies for study in p.studies)]
    return {key: [policy for policy in policies if policy.results] for key, policies in by_option.items()}


def sweep_columns(results: StudyResults, log: str, policies: list[PolicyResults]) -> list[tuple[str, str, str]]:
    """Return (metric, behaviour, heading) of each metric that the policies of a sweep have."""
    behaviours = results.behaviours(log) if len(results.behaviours(log)) > 1 else []
    columns = [("NDCG@10", "all", "NDCG@10"), ("HR@5", "all", "HR@5")]
    columns += [("NDCG@10", name, f"NDCG@10 of {name}") for name in behaviours]
    columns += [(VALUE_AT_5, "all", HEADS[VALUE_AT_5]), ("reward", "", HEADS["reward"])]
    return [column for column in columns if any(policy.values(column[1], column[0]) for policy in policies)]


def sweep_tables(results: StudyResults) -> list[Table]:
    """Build one table per log, learner and varied option."""
    tables = []
    for (log, learner, key), policies in sweeps(results).items():
        columns = sweep_columns(results, log, policies)
        decimals = formatting.reward_decimals(*(policy.mean("", "reward") for policy in policies))
        sections: dict[str, list[Row]] = {}
        for policy in policies:
            cells = [_cell(policy, metric, behaviour, decimals) for metric, behaviour, _ in columns]
            if policy.group.compare_with:
                section, label = "Compared with", labels.comparison_label(policy.group)
            else:
                value = formatting.format_setting(policy.group.varied[key])
                section, label = "Varied", f"{labels.option_label(key)} = {value}"
            sections.setdefault(section, []).append(Row(label, cells))
        title = f"{learner} over {labels.option_label(key)}: {log}"
        heads = [head for _, _, head in columns]
        tables.append(Table(f"sweep-{log}-{learner}-{key}", title, NOTE, [], heads, list(sections.items())))
    return tables


def _cell(policy: PolicyResults, metric: str, behaviour: str, decimals: int) -> Cell:
    summary = policy_summary(policy, behaviour, metric)
    if metric == "reward":
        return metric_cell(summary, formatter=lambda value: formatting.format_reward(value, decimals))
    return metric_cell(summary)


def sweep_notes(results: StudyResults) -> list[str]:
    """Return the explanation of value@5 if a sweep contains it."""
    return [VALUE_NOTE] if any(policy.values("all", VALUE_AT_5) for policy in results.swept) else []
