"""The tables: the paper's three, what the shop paid, diagnostics, sweeps; as cells, for whatever prints them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

from offrec.errors import InputError
from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.statistics import Summary, summary

Against = Literal["sl", "baseline"]
ReferenceFigures = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    text: str = "–"
    spread: str = ""  # ± over seeds, or an interval
    stars: str = ""
    rank: Literal["", "best", "second"] = ""
    reference: str = ""  # the paper's figure
    sort: float | None = None


@dataclass(frozen=True)
class Row:
    label: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    note: str
    spans: list[tuple[str, int]]  # labels over several columns
    heads: list[str]
    sections: list[tuple[str, list[Row]]]

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.sections for row in rows]


STARS = (
    "* and **: above {other} at p ≤ .05 and p ≤ .01; ▾: below at p ≤ .05. Both tests have to agree, the paired t-test "
    "over seeds and the paired bootstrap over test sessions (where there is one seed, the bootstrap decides alone); "
    "p by Holm within a column, so it depends on who stands in this table. Best in bold, second best underlined."
)


def paper_figures() -> ReferenceFigures:
    """The paper's own figures."""
    found: ReferenceFigures = json.loads(files("offrec.reports").joinpath("paper.json").read_text(encoding="utf-8"))
    return found


def reference_figures(name: str | None) -> ReferenceFigures | None:
    if name is None:
        return None
    if name != "paper":
        raise InputError(f"--reference {name} is not known; only the figures of the paper are: --reference paper.")
    return paper_figures()


def ranking_tables(
    reading: StudyResults,
    comparer: Comparer,
    ks: Sequence[int] = (5, 10),
    against: Against = "sl",
    reference: ReferenceFigures | None = None,
) -> list[Table]:
    """Clicks by RNN, clicks by CNN and Transformer, purchases, and behaviours that are neither."""
    figures = [f"{name}@{k}" for k in ks for name in ("HR", "NDCG")]

    def rnn(entry: PolicyResults) -> bool:
        return labels.backbone_family(entry.group.backbone) == "recurrent"

    kinds: list[tuple[str, str, str, Callable[[PolicyResults], bool], Callable[[str], bool]]] = [
        ("clicks_rnn", "Clicks", "recurrent backbones", rnn, lambda b: b in labels.CLICKS),
        ("clicks_cnn", "Clicks", "other backbones", lambda e: not rnn(e), lambda b: b in labels.CLICKS),
        ("purchases_rnn", "Purchases", "every backbone", lambda e: True, lambda b: b in labels.PURCHASES),
        ("others", "Other behaviours", "every backbone", lambda e: True,
         lambda b: b not in labels.CLICKS + labels.PURCHASES),
    ]  # fmt: skip
    tables = []
    for key, title, what, mine, wanted in kinds:
        entries = [e for e in reading.compared if e.group.kind == "learner" and mine(e)]
        found = _ranking(reading, comparer, key, entries, wanted, figures, against, reference) if entries else None
        if found is not None:
            tables.append(replace(found, title=f"{title}, {what}"))
    return tables


def _ranking(
    reading: StudyResults,
    comparer: Comparer,
    key: str,
    learners: list[PolicyResults],
    wanted: Callable[[str], bool],
    figures: list[str],
    against: Against,
    reference: ReferenceFigures | None,
) -> Table | None:
    columns = [
        (log, behaviour, figure)
        for log in reading.logs
        for behaviour in reading.behaviours(log)
        for figure in figures
        if wanted(behaviour) and any(e.group.log == log and e.values(behaviour, figure) for e in learners)
    ]
    if not columns:
        return None
    baselines = [e for e in reading.compared if e.group.kind == "baseline"]
    shown = {(log, behaviour) for log, behaviour, _ in columns}
    figured = [
        e for e in (*baselines, *learners) if any(e.values(b, figures[0]) for log, b in shown if log == e.group.log)
    ]
    lines = _lines(figured)
    rows: dict[object, list[Cell]] = {line: [] for line in lines}
    for log, behaviour, figure in columns:
        here = {line: entry for line, entries in lines.items() if (entry := entries.get(log))}
        others = [opponent(reading, entry, behaviour, figure, against) for entry in here.values()]
        compared = comparer.family(list(here.values()), others, behaviour, figure)
        column = _column(list(here.values()), compared, behaviour, figure)
        cells = dict(zip(here, column, strict=True))
        for line in lines:
            cell = cells.get(line, Cell())
            rows[line].append(
                replace(cell, reference=_paper_figure(reference, key, reading, line, (log, behaviour, figure)))
            )
    heads = [figure for _, _, figure in columns]
    spans = _spans([f"{log}, {behaviour}" for log, behaviour, _ in columns])
    note = STARS.format(other=_against(reading, figured, against))
    note += " Small figures: the paper's." if reference and any(c.reference for r in rows.values() for c in r) else ""
    return Table(key, "", note, spans, heads, _sections(lines, rows))


Line = tuple[str, str]  # section and label: one row, whatever the log


def _lines(entries: Sequence[PolicyResults]) -> dict[Line, dict[str, PolicyResults]]:
    """Rows of a table: the same policy on several logs is one row. Two of the same name differ in their options."""
    lines: dict[Line, dict[str, PolicyResults]] = {}
    for entry in entries:
        section = "Without training" if entry.group.kind == "baseline" else labels.backbone_label(entry)
        label = labels.policy_label(entry)
        if entry.group.log in lines.get((section, label), {}):
            label = f"{label} ({entry.study.folder.name})"
        lines.setdefault((section, label), {})[entry.group.log] = entry
    order = list(dict.fromkeys(section for section, _ in lines))
    return dict(sorted(lines.items(), key=lambda line: order.index(line[0][0])))


def _sections(lines: dict[Line, dict[str, PolicyResults]], rows: dict[Any, list[Cell]]) -> list[tuple[str, list[Row]]]:
    sections: dict[str, list[Row]] = {}
    for line in lines:
        sections.setdefault(line[0], []).append(Row(line[1], rows[line]))
    return list(sections.items())


def _column(entries: list[PolicyResults], compared: list[Comparison | None], behaviour: str, figure: str) -> list[Cell]:
    found = [summary(list(entry.values(behaviour, figure).values())) for entry in entries]
    order = sorted({one.mean for one in found if one}, reverse=True)
    return [
        figure_cell(one, comparison, "best" if one and one.mean == order[0] else
                    "second" if one and len(order) > 1 and one.mean == order[1] else "")
        for one, comparison in zip(found, compared, strict=True)
    ]  # fmt: skip


def figure_cell(
    found: Summary | None,
    comparison: Comparison | None,
    rank: Literal["", "best", "second"],
    spoken: Callable[[float | None], str] = formatting.format_figure,
) -> Cell:
    if found is None:
        return Cell()
    spread = f"± {spoken(found.sd)}" if found.sd is not None else ""
    return Cell(spoken(found.mean), spread, stars(comparison), rank, sort=found.mean)


def stars(comparison: Comparison | None) -> str:
    if comparison is None or comparison.verdict() == "unclear":
        return ""
    if comparison.verdict() == "less":
        return "▾"
    return "**" if comparison.verdict(0.01) == "more" else "*"


def opponent(
    reading: StudyResults, entry: PolicyResults, behaviour: str, figure: str, against: Against = "sl"
) -> PolicyResults | None:
    """Whom an entry is tested against."""
    same_log = [other for other in reading.compared if other.group.log == entry.group.log]
    if against == "baseline":
        known = [e for e in same_log if e.group.kind == "baseline" and e.values(behaviour, figure)]
        return max(known, key=lambda e: next(iter(e.values(behaviour, figure).values())), default=None)
    sl = [e for e in same_log if e.group.policy == "sl" and e.group.kind == "learner"]
    if entry.group.kind == "learner":
        sl = [e for e in sl if (e.group.backbone, e.group.preset) == (entry.group.backbone, entry.group.preset)]
    return sl[0] if sl and entry not in sl else None


def _against(reading: StudyResults, entries: Sequence[PolicyResults], against: Against) -> str:
    """`opponent` in words."""
    if against == "baseline":
        return "the policy without training that is best in the column"
    firsts: dict[str, list[str]] = {}
    for log, entry in {e.group.log: e for e in entries if e.group.kind == "baseline"}.items():
        sl = opponent(reading, entry, "all", "")
        if sl is not None:
            firsts.setdefault(labels.backbone_label(sl), []).append(log)
    which = [f"{name} on {formatting.join_names(logs)}" if len(firsts) > 1 else name for name, logs in firsts.items()]
    others = f" (policies without training: SL with {formatting.join_names(which)})" if which else ""
    return f"SL with the same backbone{others}"


def _paper_figure(
    reference: ReferenceFigures | None, key: str, reading: StudyResults, line: Line, column: tuple[str, str, str]
) -> str:
    """Return the paper's figure for a cell: its RNN tables match recurrent backbones, its CNN table matches Caser."""
    log, behaviour, figure = column
    known = reference and reference["tables"].get(key, {}).get(line[1].lower().split(" (")[0])
    fits = {"clicks_rnn": ("GRU", "CFN"), "clicks_cnn": ("Caser",), "purchases_rnn": ("GRU", "CFN")}
    theirs = paper_log(reading, log)
    if not known or theirs is None or not line[0].startswith(fits.get(key, ())):
        return ""
    if key == "purchases_rnn" and (behaviour == "cart") != (theirs == "Kaggle"):
        return ""
    value = known[theirs].get(figure)
    return "" if value is None else formatting.format_figure(value)


def paper_log(reading: StudyResults, log: str) -> str | None:
    """Which of the paper's two data sets a log is a piece of, by its name or its format."""
    words = f"{log} {reading.logs[log][0].protocol['format']}".lower()
    if "yoochoose" in words or "recsys" in words:
        return "RecSys"
    return "Kaggle" if "retailrocket" in words or "kaggle" in words else None


def _spans(labels: list[str]) -> list[tuple[str, int]]:
    counted: dict[str, int] = {}
    for label in labels:
        counted[label] = counted.get(label, 0) + 1
    return list(counted.items())
