"""Write a report to files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from offrec.data.files import publish_text
from offrec.errors import InputError
from offrec.reports import html, text_formats
from offrec.reports.report import Report

FORMATS: dict[str, Callable[[Report], str]] = {
    ".html": html.html,
    ".md": text_formats.markdown,
    ".csv": text_formats.csv,
    ".tex": text_formats.latex,
}


def write_report(report: Report, outs: Sequence[Path]) -> list[Path]:
    """Write a report; the suffix of each path determines the format, and a folder gets all formats.

    Returns:
        The files written.

    Raises:
        InputError: If a suffix is unknown or a file cannot be written.
    """
    paths: list[Path] = []
    for out in outs:
        paths += [out] if out.suffix else [out / f"report{suffix}" for suffix in FORMATS]
    for path in paths:
        if path.suffix not in FORMATS:
            raise InputError(f"{path} ends in {path.suffix}; a report must end in one of {', '.join(FORMATS)}.")
    texts = {path: FORMATS[path.suffix](report) for path in paths}
    for path, text in texts.items():
        publish_text(path, text, advice="choose another --out")
    return paths
