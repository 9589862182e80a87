"""A report as one self-contained page: no outside request, readable without scripts, on a phone and on paper."""

from html import escape
from importlib.resources import files

from offrec.reports.answers import Answer
from offrec.reports.figures import Picture, legend
from offrec.reports.report import Report, Section
from offrec.reports.tables import Cell, Row, Table

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
FEW = 4  # answers that are told in full


def html(report: Report) -> str:
    sections = "\n".join(_section(section, f"s{number}") for number, section in enumerate(report.sections))
    links = "".join(
        f'<a href="#s{number}">{escape(section.title)}</a>' for number, section in enumerate(report.sections)
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(report.title)}</title>
<style>
{_file("page.css")}</style>
</head>
<body>
<header>
<h1>{escape(report.title)}</h1>
<p class="summary">{escape(report.summary)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{_answers(report.answers)}
{sections}
</main>
<footer>Made by offrec.</footer>
<script>
{_file("page.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return files("offrec.reports").joinpath(name).read_text(encoding="utf-8")


def _answers(answers: list[Answer]) -> str:
    """Few are told in full. Of many, those that say the same are told once, and why can be opened."""
    if not answers:
        return ""
    same: dict[str, list[Answer]] = {}
    for number, answer in enumerate(answers):
        same.setdefault(answer.short if len(answers) > FEW else str(number), []).append(answer)
    parts = []
    for alike in same.values():
        told = "".join(_folded(answer) if len(answers) > FEW else _why(answer) for answer in alike)
        about = alike[0].about if len(alike) == 1 else f"{len(alike)} of {len(answers)}, named below"
        parts.append(f"<article><h3>{escape(about)}</h3><p class='short'>{escape(alike[0].short)}</p>{told}</article>")
    return f'<section class="answers"><h2>Is the RL doing anything here?</h2>{"".join(parts)}</section>'


def _why(answer: Answer) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in answer.sentences)
    return f"<ul>{sentences}</ul>" if sentences else ""


def _folded(answer: Answer) -> str:
    why = _why(answer)
    return f"<details><summary>Why: {escape(answer.about)}</summary>{why}</details>" if why else ""


def _section(section: Section, name: str) -> str:
    words = "".join(f"<p>{escape(text)}</p>" for text in section.words)
    drawn = "".join(_picture(picture) for picture in section.pictures)
    if drawn:
        keys = f'<p class="keys">{legend(section.pictures)}</p>' if section.legend else ""
        drawn = f'{keys}<div class="pictures">{drawn}</div>'
    tables = "".join(_table(table) for table in section.tables)
    body = drawn + tables if section.drawn_first else tables + drawn
    return f'<section id="{name}"><h2>{escape(section.title)}</h2>{words}{body}</section>'


def _picture(picture: Picture) -> str:
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    return f'<figure id="{escape(picture.key)}">{picture.svg}{caption}</figure>'


def _table(table: Table) -> str:
    spans = "".join(f'<th colspan="{count}" scope="colgroup">{escape(label)}</th>' for label, count in table.spans)
    over = f"<tr><td></td>{spans}</tr>" if spans else ""
    starts = {sum(count for _, count in table.spans[:n]) for n in range(len(table.spans))} - {0}
    heads = "".join(f'<th scope="col"{_start(n, starts)}>{escape(head)}</th>' for n, head in enumerate(table.heads))
    bodies = "".join(_body(title, rows, len(table.heads), starts) for title, rows in table.sections)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h3 id="{escape(table.key)}">{escape(table.title)}</h3>'
        f'<div class="wide" role="region" aria-labelledby="{escape(table.key)}" tabindex="0"><table class="sortable">'
        f'<thead>{over}<tr><th scope="col"><span class="unseen">policy</span></th>{heads}</tr></thead>{bodies}</table>'
        f"</div>{note}"
    )


def _body(title: str, rows: list[Row], columns: int, starts: set[int]) -> str:
    head = f'<tr class="kind"><th colspan="{columns + 1}" scope="rowgroup">{escape(title)}</th></tr>' if title else ""
    lines = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th>'
        + "".join(_cell(cell, _start(n, starts)) for n, cell in enumerate(row.cells))
        + "</tr>"
        for row in rows
    )
    return f"<tbody>{head}{lines}</tbody>"


def _start(column: int, starts: set[int]) -> str:
    """The first column of a log stands a little apart."""
    return ' class="start"' if column in starts else ""


def _cell(cell: Cell, start: str) -> str:
    text = escape(cell.text)
    text = {"best": f"<b>{text}</b>", "second": f"<u>{text}</u>"}.get(cell.rank, text)
    words = {"*": "above, p ≤ .05", "**": "above, p ≤ .01", "▾": "below, p ≤ .05"}
    stars = f'<sup title="{words[cell.stars]}">{cell.stars}</sup>' if cell.stars else ""
    spread = f"<small>{escape(cell.spread)}</small>" if cell.spread else ""
    reference = f'<small class="reference">paper {escape(cell.reference)}</small>' if cell.reference else ""
    sort = f' data-sort="{cell.sort:.12g}"' if cell.sort is not None else ""
    kind = ' class="long"' if len(cell.text) > 24 and not start else start
    return f"<td{kind}{sort}>{text}{stars}{spread}{reference}</td>"
