"""Write a report as one self-contained HTML page. It works without scripts, on phones and in print."""

from html import escape
from importlib.resources import files

from offrec.reports.answers import QUESTION, Answer
from offrec.reports.figures import Figure, family_legend
from offrec.reports.report import Report, Section
from offrec.reports.tables import Cell, Row, Table

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
FEW = 4  # up to this many answers are shown in full
STAR_TITLES = {"*": "better, p ≤ .05", "**": "better, p ≤ .01", "▾": "worse, p ≤ .05"}


def html(report: Report) -> str:
    """Return the page."""
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
{_answers(report)}
{_legend(report)}
{sections}
</main>
<footer>Written by offrec.</footer>
<script>
{_file("page.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return files("offrec.reports").joinpath(name).read_text(encoding="utf-8")


def _answers(report: Report) -> str:
    """Show a few answers in full. Group many answers by equal text and fold their tables."""
    if not report.answers:
        return ""
    many = len(report.answers) > FEW
    groups: dict[str, list[Answer]] = {}
    for number, answer in enumerate(report.answers):
        groups.setdefault(answer.short if many else str(number), []).append(answer)
    articles = []
    for group in groups.values():
        details = "".join(_folded(answer) if many else _answer_table(answer) for answer in group)
        about = group[0].about if len(group) == 1 else f"{len(group)} of {len(report.answers)}, listed below"
        short = f'<p class="short">{escape(group[0].short)}</p>'
        articles.append(f"<article><h3>{escape(about)}</h3>{short}{details}</article>")
    overview = _figures(report.overview[:FEW], with_legend=True)
    return f'<section class="answers"><h2>{QUESTION}</h2>{overview}{"".join(articles)}</section>'


def _answer_table(answer: Answer) -> str:
    return _table(answer.table) if answer.table else ""


def _folded(answer: Answer) -> str:
    table = _answer_table(answer)
    return f"<details><summary>{escape(answer.about)}</summary>{table}</details>" if table else ""


def _legend(report: Report) -> str:
    entries = "".join(f"<dt>{escape(mark)}</dt><dd>{escape(meaning)}</dd>" for mark, meaning in report.legend)
    return f'<section class="legend"><h2>How to read the tables</h2><dl>{entries}</dl></section>'


def _section(section: Section, name: str) -> str:
    notes = "".join(f"<p>{escape(text)}</p>" for text in section.notes)
    figures = _figures(section.figures, section.family_legend)
    tables = "".join(_table(table) for table in section.tables)
    body = figures + tables if section.figures_first else tables + figures
    return f'<section id="{name}"><h2>{escape(section.title)}</h2>{notes}{body}</section>'


def _figures(figures: list[Figure], with_legend: bool) -> str:
    if not figures:
        return ""
    keys = f'<p class="keys">{family_legend(figures)}</p>' if with_legend else ""
    return f'{keys}<div class="figures">{"".join(map(_figure, figures))}</div>'


def _figure(figure: Figure) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    return f'<figure id="{escape(figure.key)}">{figure.svg}{caption}</figure>'


def _table(table: Table) -> str:
    spans = "".join(f'<th colspan="{count}" scope="colgroup">{escape(label)}</th>' for label, count in table.spans)
    over = f"<tr><td></td>{spans}</tr>" if spans else ""
    starts = {sum(count for _, count in table.spans[:n]) for n in range(len(table.spans))} - {0}
    heads = "".join(f'<th scope="col"{_start(n, starts)}>{escape(head)}</th>' for n, head in enumerate(table.heads))
    bodies = "".join(_body(title, rows, len(table.heads), starts) for title, rows in table.sections)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = f'<h3 id="{escape(table.key)}">{escape(table.title)}</h3>' if table.title else ""
    name = f'aria-labelledby="{escape(table.key)}"' if table.title else 'aria-label="Policies compared"'
    return (
        f'{title}<div class="wide" role="region" {name} tabindex="0"><table class="sortable">'
        f'<thead>{over}<tr><th scope="col"><span class="hidden">policy</span></th>{heads}</tr></thead>{bodies}</table>'
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
    """Return the class of the first column of a group, which has a line on its left."""
    return ' class="start"' if column in starts else ""


def _cell(cell: Cell, start: str) -> str:
    text = escape(cell.text)
    text = {"best": f"<b>{text}</b>", "second": f"<u>{text}</u>"}.get(cell.rank, text)
    stars = f'<sup title="{STAR_TITLES[cell.stars]}">{cell.stars}</sup>' if cell.stars else ""
    spread = f"<small>{escape(cell.spread)}</small>" if cell.spread else ""
    reference = f'<small class="reference">paper {escape(cell.reference)}</small>' if cell.reference else ""
    sort = f' data-sort="{cell.sort:.12g}"' if cell.sort is not None else ""
    kind = ' class="long"' if len(cell.text) > 24 and not start else start
    return f"<td{kind}{sort}>{text}{stars}{spread}{reference}</td>"
