"""Write a report as Markdown, CSV and LaTeX."""

import csv as csv_
import io

from offrec.reports.answers import QUESTION
from offrec.reports.reading import StudyResults
from offrec.reports.report import Report, Section
from offrec.reports.tables import Cell, Table
from offrec.studies.stored_results import SAMPLED


def markdown(report: Report) -> str:
    """Return the answers, the legend and all tables as Markdown."""
    lines = [f"# {report.title}", "", report.summary, ""]
    lines += [f"## {QUESTION}", ""] if report.answers else []
    for answer in report.answers:
        lines += [f"**{answer.about}.** {answer.short}", ""]
        lines += [*_markdown_table(answer.table), ""] if answer.table else []
        lines += [answer.table.note, ""] if answer.table and answer.table.note else []
    lines += ["## How to read the tables", ""]
    lines += [f"- **{_escape_stars(mark)}**: {_escape_stars(meaning)}" for mark, meaning in report.legend]
    lines += [""]
    for section in report.sections:
        lines += _section(section)
    lines += ["The HTML report contains the figures.", ""]
    return "\n".join(lines)


def _escape_stars(text: str) -> str:
    return text.replace("*", "\\*")


def _section(section: Section) -> list[str]:
    if not section.tables and not section.notes:
        return []
    lines = [f"## {section.title}", ""]
    for note in section.notes:
        lines += [note, ""]
    for table in section.tables:
        lines += [f"### {table.title}", "", *_markdown_table(table), ""]
        lines += [_escape_stars(table.note), ""] if table.note else []
    return lines


def _markdown_table(table: Table) -> list[str]:
    spans = [label for label, count in table.spans for _ in range(count)]
    heads = [f"{span}: {head}" for span, head in zip(spans, table.heads, strict=True)] if spans else table.heads
    rows = [["", *heads], ["---"] * (len(heads) + 1)]
    for title, members in table.sections:
        rows += [[f"*{title}*", *[""] * len(heads)]] if title else []
        rows += [[row.label, *(_markdown_cell(cell) for cell in row.cells)] for row in members]
    return ["| " + " | ".join(part.replace("|", "\\|") for part in row) + " |" for row in rows]


def _markdown_cell(cell: Cell) -> str:
    text = {"best": f"**{cell.text}**", "second": f"<u>{cell.text}</u>"}.get(cell.rank, cell.text)
    text += _escape_stars(cell.stars) + (f" {cell.spread}" if cell.spread else "")
    return text + (f" (paper {cell.reference})" if cell.reference else "")


COLUMNS = ("study", "log", "dataset", "fingerprint", "policy", "backbone", "preset", "seed", "varied", "split",
           "behaviour", "metric", "value", "text")  # fmt: skip


def csv(report: Report) -> str:
    """Return every metric of every run, one per row. `value` contains numbers, `text` contains verdicts."""
    out = io.StringIO()
    writer = csv_.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_csv_rows(report.results))
    return out.getvalue()


def _csv_rows(results: StudyResults) -> list[list[object]]:
    rows: list[list[object]] = []
    for result in results.results():
        run, group, facts = result.run, result.study.group(result.run), result.facts
        varied = group.compare_with or ", ".join(f"{key}={value}" for key, value in group.varied.items())
        varied = "twin without look-ahead" if group.is_twin else varied
        dataset = result.study.dataset(run.dataset)
        seed = run.seed if group.kind == "learner" else ""
        about: list[object] = [result.study.folder.name, group.log, run.dataset, dataset.fingerprint, group.policy]
        about += [group.backbone or "", group.preset or "", seed, varied]
        for split in ("validation", "test"):
            for behaviour, metrics in facts.get(split, {}).items():
                rows += [[*about, split, behaviour, name, value, ""] for name, value in metrics.items()]
        for split in ("shop", f"shop{SAMPLED}"):
            if facts.get(split):
                means = ("reward", "length", "purchases")
                rows += [[*about, split, "all", name, facts[split][name]["mean"], ""] for name in means]
        if facts.get("value"):
            names = {"value": "value", "low": "value low", "high": "value high"}
            rows += [[*about, "test", "all", name, facts["value"].get(key), ""] for key, name in names.items()]
            rows.append([*about, "test", "all", "value verdict", "", facts["value"].get("verdict")])
    return rows


def latex(report: Report) -> str:
    r"""Return the tables of results for \usepackage{booktabs, amssymb}."""
    tables = [table for section in report.sections[:-1] for table in section.tables if table.key != "failed"]
    return "\n\n".join(_latex_table(table) for table in tables) + "\n"


def _latex_table(table: Table) -> str:
    columns = len(table.heads)
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{@{{}}l{'r' * columns}@{{}}}}", r"\toprule"]
    if table.spans:
        spans = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_tex(label)}}}" for label, count in table.spans)
        lines.append(rf" & {spans} \\")
    lines.append(" & " + " & ".join(_tex(head) for head in table.heads) + r" \\")
    for title, rows in table.sections:
        lines.append(r"\midrule")
        lines += [rf"\multicolumn{{{columns + 1}}}{{@{{}}l}}{{\emph{{{_tex(title)}}}}} \\"] if title else []
        lines += [_tex(row.label) + " & " + " & ".join(map(_latex_cell, row.cells)) + r" \\" for row in rows]
    caption = _tex(f"{table.title}. {table.note}")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{table.key}}}"]
    return "\n".join([*lines, r"\end{table}"])


def _latex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    text = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}"}.get(cell.rank, text)
    if cell.stars:
        marks = cell.stars.replace("*", r"\ast").replace("▾", r"\triangledown")
        text += f"$^{{{marks}}}$"
    text += rf" {{\scriptsize {_tex(cell.spread)}}}" if cell.spread else ""
    return text + (rf" {{\scriptsize [{cell.reference}]}}" if cell.reference else "")


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "≤": r"$\leq$", "–": "--",
    "…": r"\ldots{}", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\varepsilon$",
    "π": r"$\pi$", "\u0302": r"\^{}", "‖": r"$\|$", "⁻": "$^{-}$", "⁴": "$^{4}$", "▾": r"$\triangledown$",
    "<": "$<$", ">": "$>$", "*": r"$\ast$", "é": r"\'e",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text.replace("π̂_b", "π_b"))
