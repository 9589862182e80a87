"""Build a report: everything about one or several studies, independent of the format it is written in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offrec.console import format_duration
from offrec.errors import InputError
from offrec.reports import figures, run_tables
from offrec.reports.answers import Answer, build_answers
from offrec.reports.comparison import CUTOFFS, Comparer
from offrec.reports.diagnostics import collapse_notes, diagnostics_tables
from offrec.reports.earnings import earnings_tables
from offrec.reports.figures import Figure
from offrec.reports.ranking import ReferenceFigures, ranking_tables, reference_figures
from offrec.reports.reading import StudyResults, read_studies
from offrec.reports.sweeps import sweep_notes, sweep_tables
from offrec.reports.tables import LEGEND, Against, Table

RANKING, EARNINGS, SWEEPS, TUNING = "Ranking metrics", "Earnings", "Sweeps", "Tuning"
UNFINISHED = "Failed and waiting runs"
CURVES_NOTE = "Means over seeds, up to the epoch at which the first seed stopped."


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes:
        title: Heading.
        notes: Paragraphs.
        tables: Tables.
        figures: Figures.
        family_legend: Whether the marks of the families are explained.
        figures_first: Whether the figures come before the tables.
    """

    title: str
    notes: list[str]
    tables: list[Table]
    figures: list[Figure]
    family_legend: bool = False
    figures_first: bool = False


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        title: Heading.
        summary: One sentence: runs, logs, time and machines.
        results: The results that it reports.
        answers: The answers to "Is the RL doing anything here?".
        overview: Predictions compared with earnings, one figure per log and backbone with rewards; with one log, also
            the true rewards of all policies.
        legend: The marks of the tables and their meanings.
        sections: Tables and figures.
    """

    title: str
    summary: str
    results: StudyResults
    answers: list[Answer]
    overview: list[Figure]
    legend: list[tuple[str, str]]
    sections: list[Section]

    @property
    def every_table(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]


def build_report(
    folders: Sequence[Path],
    *,
    cutoffs: Sequence[int] = (5, 10),
    against: Against = "sl",
    reference: str | None = None,
    title: str | None = None,
) -> Report:
    """Build the report of one or several studies.

    Args:
        folders: Study folders.
        cutoffs: List lengths k of HR@k and NDCG@k.
        against: The opponent of the tests in the ranking tables.
        reference: "paper" shows the paper's figures next to ours.
        title: Heading; by default the names of the folders.

    Raises:
        InputError: If an argument is invalid or the studies cannot be read.
    """
    unknown = [k for k in cutoffs if k not in CUTOFFS]
    if unknown or not cutoffs:
        got = ", ".join(map(str, cutoffs)) or "none"
        raise InputError(f"--cutoffs must be among {', '.join(map(str, CUTOFFS))}; got {got}.")
    paper = reference_figures(reference)
    results = read_studies(folders)
    comparer = Comparer(results)
    overview, ladders = figures.overview(results), figures.earnings(results)
    if overview and len(ladders) == 1:  # next to the first figure
        overview, ladders = [overview[0], *ladders, *overview[1:]], []
    sections = [
        Section(
            RANKING,
            _paper_answers(paper, "RQ1", "RQ2"),
            ranking_tables(results, comparer, cutoffs, against, paper),
            [],
        ),
        Section(EARNINGS, [], earnings_tables(results, comparer), ladders, family_legend=True),
        Section("Trade-offs", [], [], figures.trade_offs(results), family_legend=True),
        Section(
            SWEEPS,
            [*_paper_answers(paper, "RQ3", "RQ4"), *sweep_notes(results)],
            sweep_tables(results),
            figures.sweep_figures(results),
            figures_first=True,
        ),
        Section(TUNING, [], run_tables.trial_tables(results), []),
        Section("Learning curves", [CURVES_NOTE], [], figures.learning_curves(results), family_legend=True),
        Section(
            "Diagnostics",
            collapse_notes(results),
            diagnostics_tables(results),
            figures.diagnostic_curves(results),
            family_legend=True,
        ),
        Section(UNFINISHED, _waiting_note(results), run_tables.failures_table(results), []),
        Section(
            "Setup",
            _left_out_notes(results),
            [
                run_tables.logs_table(results),
                *run_tables.settings_tables(results),
                run_tables.machines_table(results),
            ],
            [],
        ),
    ]
    shown = [s for s in sections if s.tables or s.figures or (s.title == UNFINISHED and s.notes)]
    names = ", ".join(study.folder.resolve().name for study in results.studies)
    return Report(
        title or f"Study: {names}",
        _summary(results),
        results,
        build_answers(results, comparer),
        overview,
        _legend(against),
        shown,
    )


def _legend(against: Against) -> list[tuple[str, str]]:
    opponent = {
        "sl": "SL with the same backbone; for baselines, the first SL of the log",
        "baseline": "the best baseline of the column",
    }[against]
    return [*LEGEND, ("compared with", f"in ranking tables: {opponent}; elsewhere as the column says")]


def _summary(results: StudyResults) -> str:
    done = list(results.results())
    machines = dict.fromkeys(_device(result.facts["machine"]) for result in done)
    groups = [result.study.group(result.run) for result in done]
    policies = len({(group.policy, group.backbone) for group in groups})
    logs = len(results.logs)
    text = f"{len(done)} runs of {policies} policies on {logs} log{'' if logs == 1 else 's'}"
    if machines:
        seconds = sum(result.facts["seconds"] for result in done)
        text += f", {format_duration(seconds)} of computing time on {' and '.join(machines)}"
    text += f"; {len(results.failures)} failed" if results.failures else ""
    return text + (f"; {results.waiting} waiting." if results.waiting else ".")


def _device(machine: dict[str, Any]) -> str:
    return str(machine["processor"] if machine["device"] == "cpu" else machine["device"])


def _paper_answers(paper: ReferenceFigures | None, *questions: str) -> list[str]:
    """Return the paper's answers to its research questions, if the report shows the paper's figures."""
    return [f"The paper's answer to {name}: {paper['answers'][name]}" for name in questions] if paper else []


def _left_out_notes(results: StudyResults) -> list[str]:
    """Name the baselines that `--baselines all` left out, and why."""
    sentences = (text for study in results.studies for text in study.request.get("left_out", ()))
    return list(dict.fromkeys(sentences))


def _waiting_note(results: StudyResults) -> list[str]:
    if not results.waiting:
        return []
    runs = "1 run is" if results.waiting == 1 else f"{results.waiting} runs are"
    return [f"{runs} waiting; the tables contain the finished runs."]
