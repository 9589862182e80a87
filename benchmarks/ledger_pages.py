"""Write the tables of the pages from the ledger.

A page marks the place of a table by two comments; everything between them is generated:

    <!-- ledger: update -->
    <!-- end of ledger: update -->

`python benchmarks/ledger.py pages` writes all tables. A test compares them with the ledger.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ledger import Ledger
from ledger_tables import TABLES, Row, text

BLOCK = re.compile(r"(<!-- ledger: ([\w-]+) -->\n).*?(<!-- end of ledger: \2 -->)", re.DOTALL)


def write_pages(root: Path) -> list[str]:
    """Write the tables of all pages and return the pages that changed."""
    changed = []
    for page, content in render_pages(root).items():
        if page.read_text() != content:
            page.write_text(content)
            changed.append(page.relative_to(root).as_posix())
    return changed


def render_pages(root: Path) -> dict[Path, str]:
    """Return the text of each page that has a table of the ledger, with current tables."""
    ledgers = [Ledger.read(root / f"results/ledger-{device}.json") for device in ("gpu", "cpu")]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    contents = {page: page.read_text() for page in pages}
    return {
        page: BLOCK.sub(lambda match: f"{match[1]}\n{render_table(ledgers, match[2])}\n\n{match[3]}", content)
        for page, content in contents.items()
        if BLOCK.search(content)
    }


def render_table(ledgers: Sequence[Ledger], name: str) -> str:
    """Return the provenance and the table of a block."""
    section, rows_of, columns = TABLES[name]
    ledger = next((one for one in ledgers if section in one.sections), None)
    if ledger is None:
        return "Not measured yet."
    rows = rows_of(ledger.sections[section])
    lines = ["| " + " | ".join(title for title, _ in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(text(cell(row)) for _, cell in columns) + " |" for row in rows]
    return provenance(ledger.stamps_of(section)) + "\n\n" + "\n".join(lines)


def provenance(stamps: Iterable[Row]) -> str:
    """Return the commands, commits and machines of a section."""
    lines = []
    for stamp in stamps:
        if stamp["command"] is None:
            lines.append(stamp["note"])
            continue
        machine = stamp.get("machine") or {}
        device = machine.get("processor") if machine.get("device") == "cpu" else machine.get("device")
        words = [f"Command: `{stamp['command']}`.", f"Commit: {stamp['commit']} ({stamp.get('date')})."]
        words.append(f"Machine: {device or 'unknown'}, torch {machine.get('torch', 'unknown')}.")
        lines.append(" ".join([*words, *filter(None, [stamp.get("note")])]))
    return "\n".join(lines)
