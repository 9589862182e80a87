"""A report as files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from offrec.data.files import publish_text
from offrec.errors import InputError
from offrec.reports import html as page
from offrec.reports import text_formats as plain
from offrec.reports.report import Report

MAKERS: dict[str, Callable[[Report], str]] = {
    ".html": page.html,
    ".md": plain.markdown,
    ".csv": plain.csv,
    ".tex": plain.latex,
}


def write_report(found: Report, outs: Sequence[Path]) -> list[Path]:
    """Each file in the format its ending says; a folder gets all of them."""
    paths: list[Path] = []
    for out in outs:
        paths += [out] if out.suffix else [out / f"report{suffix}" for suffix in MAKERS]
    for path in paths:
        if path.suffix not in MAKERS:
            raise InputError(f"{path} ends in {path.suffix}; a report ends in {', '.join(MAKERS)}.")
    texts = {path: MAKERS[path.suffix](found) for path in paths}
    for path, text in texts.items():
        publish_text(path, text, advice="choose another --out")
    return paths
