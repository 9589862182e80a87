"""A report: everything that is said of one or several studies, before it becomes a page, text, a table or LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from offrec.errors import InputError
from offrec.reports import answers as verdict
from offrec.reports import figures as pictures
from offrec.reports import formatting, labels, tables
from offrec.reports import value_tables as earnings
from offrec.reports.answers import Answer
from offrec.reports.comparison import KS, Comparer
from offrec.reports.figures import Picture
from offrec.reports.reading import StudyResults, read_studies
from offrec.reports.statistics import summary
from offrec.reports.tables import Against, Cell, ReferenceFigures, Row, Table
from offrec.studies.progress import format_duration


@dataclass(frozen=True)
class Section:
    title: str
    words: list[str]
    tables: list[Table]
    pictures: list[Picture]
    legend: bool = False
    drawn_first: bool = False


@dataclass(frozen=True)
class Report:
    title: str
    summary: str
    reading: StudyResults
    answers: list[Answer]
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
    wrong = [k for k in cutoffs if k not in KS]
    if wrong or not cutoffs:
        raise InputError(f"Figures at {list(cutoffs)} are not kept; there are figures at {', '.join(map(str, KS))}.")
    theirs = tables.reference_figures(reference)
    reading = read_studies(folders)
    comparer = Comparer(reading)
    sections = [
        Section(
            "Next-item figures",
            _asked(theirs, "RQ1", "RQ2"),
            tables.ranking_tables(reading, comparer, cutoffs, against, theirs),
            [],
        ),
        Section(
            "What is earned", [], earnings.earning_tables(reading, comparer), pictures.earned(reading), legend=True
        ),
        Section("Trade-offs", [], [], pictures.trade_offs(reading), legend=True),
        Section(
            "Sweeps",
            [*_asked(theirs, "RQ3", "RQ4"), *earnings.sweep_words(reading)],
            earnings.sweep_tables(reading),
            pictures.swept(reading),
            drawn_first=True,
        ),
        Section("Tuning", [], trial_tables(reading), []),
        Section("Learning curves", [CURVES], [], pictures.curves(reading), legend=True),
        Section("Diagnostics", [], earnings.diagnostics_tables(reading), pictures.critics(reading), legend=True),
        Section("What failed, and what is still to do", _unfinished(reading), _failures(reading), []),
        Section("What was run", [], [_logs(reading), *_settings(reading), _made(reading)], []),
    ]
    kept = [section for section in sections if section.tables or section.pictures or _needed(section)]
    answers = verdict.answers(reading, comparer)
    return Report(title or _title(reading), _summary(reading), reading, answers, kept)


CURVES = "Means over seeds, up to the epoch at which the first of them stopped."


def _needed(section: Section) -> bool:
    return section.title.startswith("What failed") and bool(section.words)


def _title(reading: StudyResults) -> str:
    return f"Study: {', '.join(study.folder.resolve().name for study in reading.studies)}"


def _summary(reading: StudyResults) -> str:
    done = list(reading.results())
    whole = sum(r.facts["seconds"] for r in done)
    machines = dict.fromkeys(_device(r.facts["machine"]) for r in done)
    policies = {(r.study.group(r.run).policy, r.study.group(r.run).backbone) for r in done}
    text = f"{len(done)} runs of {len(policies)} policies on {len(reading.logs)} "
    text += "log" if len(reading.logs) == 1 else "logs"
    text += f", {format_duration(whole)} of computing on {' and '.join(machines)}" if machines else ""
    text += f"; {len(reading.failures)} failed" if reading.failures else ""
    return text + (f"; {reading.waiting} still to do." if reading.waiting else ".")


def _device(machine: dict[str, Any]) -> str:
    return str(machine["processor"] if machine["device"] == "cpu" else machine["device"])


def _asked(theirs: ReferenceFigures | None, *questions: str) -> list[str]:
    """The paper's own answers, where they are to stand reference ours."""
    return [f"The paper's answer to {name}: {theirs['answers'][name]}" for name in questions] if theirs else []


def _unfinished(reading: StudyResults) -> list[str]:
    return [f"{reading.waiting} runs are still to do; the tables hold what is there."] if reading.waiting else []


def _failures(reading: StudyResults) -> list[Table]:
    rows = [Row(one.run.name, [Cell(one.reason), Cell(str(one.study.folder))]) for one in reading.failures]
    return [Table("failed", "Runs that failed", "", [], ["reason", "study"], [("", rows)])] if rows else []


def _logs(reading: StudyResults) -> Table:
    kinds = ["fingerprint", "sessions", "events", "items", "split", "first events", "unseen items", "scored", "filters"]
    rows = []
    for log in (log for several in reading.logs.values() for log in several):
        protocol = log.protocol
        parts = ":".join(f"{part:g}" for part in protocol["split_parts"])
        cells = [
            log.fingerprint,
            *(f"{log.counts[name]:,}" for name in ("sessions", "events", "items")),
            f"{protocol['split']} {parts}, seed {protocol['split_seed']}",
            "scored" if protocol["score_first"] else "not scored",
            "kept" if protocol["unseen"] == "keep" else "dropped",
            f"last {protocol['score_last']}" if protocol["score_last"] else "all events",
            ", ".join(protocol["filters"]) or "none",
        ]
        rows.append(Row(log.name, [Cell(text) for text in cells]))
    note = (
        "Every logged item of a test session is ranked in the full catalogue; repeats allowed, ties against the policy."
    )
    return Table("logs", "Logs and protocol", note, [], kinds, [("", rows)])


SHOWN = ("gamma", "select", "network.width", "training.epochs", "training.batch_size", "training.learning_rate")


def _settings(reading: StudyResults) -> list[Table]:
    """What each learner was run with: its own options but for what is varied, and those that most depend on it."""
    rows: dict[tuple[str, str], set[str]] = {}
    for entry in (
        e for e in (*reading.compared, *reading.swept) if e.group.kind == "learner" and not e.group.compare_with
    ):
        options = {key: value for key, value in entry.group.options.items() if key not in entry.group.varied}
        own = [key for key in options if key.startswith("algorithm.") and key != "algorithm.name"]
        said = [f"{key.removeprefix('algorithm.')} {options[key]}" for key in [*own, *SHOWN] if key in options]
        rows.setdefault((labels.backbone_label(entry), entry.group.policy.upper()), set()).add(", ".join(said))
    sections: dict[str, list[Row]] = {}
    for (backbone, learner), texts in rows.items():
        sections.setdefault(backbone, []).append(Row(learner, [Cell(" · ".join(sorted(texts)))]))
    note = "Every option of every run stands in study.json. A batch size of None is chosen by the log's size."
    return [Table("settings", "Settings", note, [], ["options"], list(sections.items()))] if sections else []


def _made(reading: StudyResults) -> Table:
    """With what, where and when: once for each that differs."""
    kinds = ["offrec", "commit", "torch", "python", "processor", "device"]
    found: dict[tuple[str, ...], list[str]] = {}
    for result in reading.results():
        machine = result.facts["machine"]
        key = tuple(str(machine.get(kind) or "unknown") for kind in kinds)
        found.setdefault(key, []).append(result.facts["finished_at"])
    rows = [
        Row(f"{len(times)} runs", [*(Cell(text) for text in key), Cell(f"{_day(min(times))} to {_day(max(times))}")])
        for key, times in found.items()
    ]
    note = "Commit with +: the source had changes that were not committed." if _changed(found) else ""
    return Table("made", "Made with", note, [], [*kinds, "finished (UTC)"], [("", rows)])


def _changed(found: dict[tuple[str, ...], list[str]]) -> bool:
    return any(key[1].endswith("+") for key in found)


def _day(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M")


def trial_tables(reading: StudyResults) -> list[Table]:
    """Trials by what they were tuned for, on validation; the best ten."""
    found = []
    for study in reading.studies:
        trials = [e for e in reading.trials if e.study is study and e.results]
        if not trials:
            continue
        figure = str(study.request["objective"])
        trials.sort(key=lambda e: -_validated(e.values("all", figure, "validation")))
        options = list(dict.fromkeys(key for e in trials for key in e.group.varied))
        rows = [
            Row(
                f"trial {entry.group.trial}",
                [
                    tables.figure_cell(
                        summary(list(entry.values("all", figure, "validation").values())),
                        None,
                        "best" if place == 0 else "second" if place == 1 else "",
                    ),
                    *(Cell(formatting.format_setting(entry.group.varied.get(key))) for key in options),
                ],
            )
            for place, entry in enumerate(trials[:10])
        ]
        title = (
            f"{study.groups[0].label} on {study.datasets[0].name}: {min(10, len(trials))} best of {len(trials)} trials"
        )
        note = "Chosen on validation alone: test sessions were not looked at."
        heads = [f"{figure} on validation", *options]
        found.append(Table(f"trials-{study.folder.name}", title, note, [], heads, [("", rows)]))
    return found


def _validated(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else float("-inf")
