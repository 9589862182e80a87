"""List which files in results/ are current, stale or unstamped, and which pages quote them.

    python benchmarks/list_evidence.py [--strict]        # also: make evidence

A stamp (`evidence.py`) contains the options that made the figures. They are resolved again with the current code. A
file is stale if a value differs, for example because a default has changed. Other changes of the code are not detected;
the list counts later commits to src/ instead.

With --strict the exit code is 1 if a page of the documentation quotes a stale or damaged file.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import git, option_changes, read_stamps

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("README.md", "paper.json", "*-plan.json")  # files in results/ that are not measured
INDEX_PAGES = ("docs/evidence/index.md", "results/README.md")  # they list files and quote no figures


@dataclass(frozen=True)
class FileStatus:
    """The status of one file in results/."""

    name: str
    status: str  # "current", "stale", "unstamped" or "damaged"
    note: str
    changes: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the lines of the list."""
        quoted = f"; quoted by {', '.join(self.pages)}" if self.pages else ""
        return [f"{self.status:10s} {self.name:28s} {self.note}{quoted}", *(f"{'':11s}{one}" for one in self.changes)]


def list_results(root: Path = ROOT) -> list[FileStatus]:
    """Return the status of every measured file in results/, by name."""
    files = sorted(path for path in (root / "results").iterdir() if not path.name.endswith(".stamp.json"))
    pages = {
        name: page.read_text()
        for page in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
        if (name := page.relative_to(root).as_posix()) not in INDEX_PAGES
    }
    return [_status(root, path, pages) for path in files if not any(path.match(pattern) for pattern in INPUTS)]


def _status(root: Path, path: Path, pages: Mapping[str, str]) -> FileStatus:
    pattern = re.compile(rf"(?<![\w.-]){re.escape(path.name)}(?![\w-])")
    quoting = tuple(name for name, text in pages.items() if pattern.search(text))
    try:
        stamps = read_stamps(path)
    except (OSError, ValueError) as error:
        return FileStatus(path.name, "damaged", f"cannot be read ({error})", (), quoting)
    if not stamps:
        return FileStatus(path.name, "unstamped", _origin(root, path), (), quoting)
    note = ", ".join(dict.fromkeys(_commit_note(root, one) for one in stamps))
    changes = tuple(dict.fromkeys(change for stamp in stamps for change in option_changes(stamp)))
    return FileStatus(path.name, "stale" if changes else "current", note, changes, quoting)


def _commit_note(root: Path, stamp: Mapping[str, Any]) -> str:
    if stamp["hash"] is None:
        return "some rows unstamped"
    commit = stamp["commit"]
    if not commit:
        return "commit unknown"
    later = git(root, "rev-list", "--count", f"{commit.rstrip('+')}..HEAD", "--", "src")
    behind = f", {later} later commits to src/" if later not in ("", "0") else ""
    return f"commit {commit}{behind}"


def _origin(root: Path, path: Path) -> str:
    """Return what is known about a file without a stamp: its commits, and the version that made it."""
    recorded = list(dict.fromkeys(re.findall(r'"commit": "([0-9a-f]{7,40}\+?)"', _text(path))))
    where = "in the file"
    if not recorded:
        readme = root / "results/README.md"
        row = re.search(rf"^\| `{re.escape(path.name)}` \|([^|]*)\|", _text(readme), re.MULTILINE)
        recorded, where = (re.findall(r"[0-9a-f]{7,40}", row[1]) if row else []), "in results/README.md"
    source = recorded[0].rstrip("+") if recorded else git(root, "log", "-1", "--format=%h", "--", str(path))
    version = re.search(r'^version = "(\d+\.\d+)', git(root, "show", f"{source}:pyproject.toml"), re.MULTILINE)
    made_by = f"made by {version[1]}" if source and version else "made by an unknown version"
    return f"({made_by}); " + (f"commit {', '.join(recorded)} {where}" if recorded else "commit not recorded")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):  # a compressed file
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a page quotes a stale file")
    options = parser.parse_args()
    files = list_results()
    for file in files:
        print("\n".join(file.lines()))
    counts = [f"{sum(one.status == kind for one in files)} {kind}" for kind in ("current", "stale", "unstamped")]
    print(f"\n{len(files)} files: {', '.join(counts)}.")
    quoted = [one.name for one in files if one.status in ("stale", "damaged") and one.pages]
    if options.strict and quoted:
        print(f"Stale and quoted: {', '.join(quoted)}; repeat their commands or remove the figures.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
