"""Tables of ranking metrics, optionally with the paper's figures next to ours."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from offrec.data.json_files import parse_json
from offrec.errors import InputError
from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.tables import (
    Against,
    Cell,
    Row,
    Table,
    column_ranks,
    find_sl,
    metric_cell,
    opponent,
    policy_summary,
)

ReferenceFigures = dict[str, Any]  # the content of paper.json
RowKey = tuple[str, str]  # section and label
Column = tuple[str, str, str]  # log, behaviour and metric


def paper_figures() -> ReferenceFigures:
    """Load the figures that the paper prints."""
    content: ReferenceFigures = parse_json(files("offrec.reports").joinpath("paper.json").read_bytes())
    return content


def reference_figures(name: str | None) -> ReferenceFigures | None:
    """Load reference figures by name.

    Raises:
        InputError: If the name is not "paper".
    """
    if name is None:
        return None
    if name != "paper":
        raise InputError(f"--reference must be paper; got {name}.")
    return paper_figures()


def ranking_tables(
    results: StudyResults,
    comparer: Comparer,
    cutoffs: Sequence[int] = (5, 10),
    against: Against = "sl",
    reference: ReferenceFigures | None = None,
) -> list[Table]:
    """Build the tables of HR and NDCG: clicks by kind of backbone, purchases, and other behaviours."""
    metrics = [f"{name}@{k}" for k in cutoffs for name in ("HR", "NDCG")]

    def is_recurrent(policy: PolicyResults) -> bool:
        return labels.backbone_family(policy.group) == "recurrent"

    kinds: list[tuple[str, str, Callable[[PolicyResults], bool], Callable[[str], bool]]] = [
        ("clicks_rnn", "{}, recurrent backbones", is_recurrent, lambda b: b in labels.CLICKS),
        ("clicks_cnn", "{}, other backbones", lambda p: not is_recurrent(p), lambda b: b in labels.CLICKS),
        ("purchases_rnn", "{}", lambda p: True, lambda b: b in labels.PURCHASES),
        ("others", "Other behaviours", lambda p: True, lambda b: b not in labels.CLICKS + labels.PURCHASES),
    ]
    tables = []
    for key, title, has_backbone, has_behaviour in kinds:
        learners = [p for p in results.compared if p.group.kind == "learner" and has_backbone(p)]
        columns = [
            (log, behaviour, metric)
            for log in results.logs
            for behaviour in results.behaviours(log)
            for metric in metrics
            if has_behaviour(behaviour) and any(p.group.log == log and p.values(behaviour, metric) for p in learners)
        ]
        if columns:
            table = _table(results, comparer, key, learners, columns, against, reference)
            tables.append(replace(table, title=title.format(_heading(columns))))
    return tables


def _heading(columns: list[Column]) -> str:
    """Return the names of the columns' behaviours: "View", "Cart, buy"."""
    names = list(dict.fromkeys(behaviour for _, behaviour, _ in columns))
    return ", ".join(names).capitalize()


def _table(
    results: StudyResults,
    comparer: Comparer,
    key: str,
    learners: list[PolicyResults],
    columns: list[Column],
    against: Against,
    reference: ReferenceFigures | None,
) -> Table:
    baselines = [policy for policy in results.compared if policy.group.kind == "baseline"]
    shown = {(log, behaviour): metric for log, behaviour, metric in columns}
    measured = [
        policy
        for policy in (*baselines, *learners)
        if any(policy.values(b, metric) for (log, b), metric in shown.items() if log == policy.group.log)
    ]
    by_row = _rows(measured, _baseline_heading(results, measured, against))
    cells: dict[RowKey, list[Cell]] = {row: [] for row in by_row}
    for column in columns:
        for row, cell in _column(results, comparer, by_row, column, against).items():
            figure = _reference(reference, key, results, by_row[row], column)
            cells[row].append(replace(cell, reference=figure))
    sections: dict[str, list[Row]] = {}
    for section, label in by_row:
        sections.setdefault(section, []).append(Row(label, cells[section, label]))
    has_reference = any(cell.reference for row in cells.values() for cell in row)
    note = "In italics: the paper's figures." if has_reference else ""
    spans: dict[str, int] = {}
    for log, behaviour, _ in columns:
        spans[f"{log}, {behaviour}"] = spans.get(f"{log}, {behaviour}", 0) + 1
    return Table(key, "", note, list(spans.items()), [metric for _, _, metric in columns], list(sections.items()))


def _baseline_heading(results: StudyResults, policies: Sequence[PolicyResults], against: Against) -> str:
    """Return the heading of the baselines; with several backbones it names the SL that they are compared with."""
    if against == "baseline":
        return "Baselines"
    opponents = {
        labels.backbone_label(sl) for p in policies if p.group.kind == "baseline" and (sl := find_sl(results, p))
    }
    return f"Baselines (compared with SL, {opponents.pop()})" if len(opponents) == 1 else "Baselines"


def _rows(policies: Sequence[PolicyResults], baseline_heading: str) -> dict[RowKey, dict[str, PolicyResults]]:
    """Group policies into rows: the same policy on several logs is one row."""
    rows: dict[RowKey, dict[str, PolicyResults]] = {}
    for policy in policies:
        section = baseline_heading if policy.group.kind == "baseline" else labels.backbone_label(policy)
        label = labels.policy_label(policy)
        if policy.group.log in rows.get((section, label), {}):  # the same policy with other options
            label = f"{label} ({policy.study.folder.name})"
        rows.setdefault((section, label), {})[policy.group.log] = policy
    order = list(dict.fromkeys(section for section, _ in rows))
    return dict(sorted(rows.items(), key=lambda row: order.index(row[0][0])))


def _column(
    results: StudyResults,
    comparer: Comparer,
    by_row: dict[RowKey, dict[str, PolicyResults]],
    column: Column,
    against: Against,
) -> dict[RowKey, Cell]:
    log, behaviour, metric = column
    policies = {row: by_log[log] for row, by_log in by_row.items() if log in by_log}
    opponents = [opponent(results, policy, behaviour, metric, against) for policy in policies.values()]
    comparisons = comparer.compare_family(list(policies.values()), opponents, behaviour, metric)
    summaries = [policy_summary(policy, behaviour, metric) for policy in policies.values()]
    ranks = column_ranks([summary.mean if summary else None for summary in summaries])
    cells = {
        row: metric_cell(summary, comparison, rank)
        for row, summary, comparison, rank in zip(policies, summaries, comparisons, ranks, strict=True)
    }
    return {row: cells.get(row, Cell()) for row in by_row}


def _reference(
    reference: ReferenceFigures | None,
    key: str,
    results: StudyResults,
    by_log: dict[str, PolicyResults],
    column: Column,
) -> str:
    """Return the paper's figure for a cell, if its tables have the learner, the kind of backbone and the log."""
    log, behaviour, metric = column
    group = next(iter(by_log.values())).group
    dataset = paper_dataset(results, log)
    if reference is None or dataset is None or group.backbone not in reference["backbones"].get(key, ()):
        return ""
    if key == "purchases_rnn" and (behaviour == "cart") != (dataset == "Kaggle"):  # RecSys: buys; Kaggle: carts
        return ""
    value = reference["tables"].get(key, {}).get(group.policy, {}).get(dataset, {}).get(metric)
    return "" if value is None else formatting.format_metric(value)


def paper_dataset(results: StudyResults, log: str) -> str | None:
    """Return which of the paper's two datasets a log comes from, by its name or format."""
    words = f"{log} {results.logs[log][0].protocol['format']}".lower()
    if "yoochoose" in words or "recsys" in words:
        return "RecSys"
    return "Kaggle" if "retailrocket" in words or "kaggle" in words else None
