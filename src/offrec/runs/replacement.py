"""Train a new run next to the run that it replaces.

The new run lies in a hidden folder until its training has finished. Then the two folders exchange their names, and the
old run is removed. Therefore a training that fails or is killed leaves the old run, and `--resume` continues the new
one. The new run contains a file that marks it, so that the two can be told apart if the process was killed during the
exchange. All functions expect that the caller has locked the old run's folder.
"""

import shutil
from pathlib import Path

from offrec.data.files import exchange_folders

MARK = ".replacement"  # an empty file in the new run


def replacement_folder(out: Path) -> Path:
    """Return the folder in which a run is trained that replaces the run in `out`."""
    return out.with_name(f".{out.name}.replacement")


def training_folder(out: Path, *, resume: bool, force: bool) -> Path:
    """Return the folder in which a run is trained: `out`, or the folder of a run that replaces the run in `out`.

    Args:
        out: The run's folder.
        resume: Whether the run is continued.
        force: Whether a run in `out` is replaced.
    """
    new = replacement_folder(out)
    _finish_exchange(new, out)
    if resume and (new / MARK).exists():
        return new
    is_resumed = resume and (out / "run.json").exists()
    return new if force and not is_resumed and (out / "run.json").exists() else out


def take_place(new: Path, out: Path) -> None:
    """Put a new run in the place of the old one, and remove the old one."""
    exchange_folders(new, out, advice="free disk space, then resume the run")
    _finish_exchange(new, out)


def _finish_exchange(new: Path, out: Path) -> None:
    """Remove the old run if the new run has taken its place."""
    if new.exists() and not (new / MARK).exists():
        shutil.rmtree(new)
    if not new.exists() and (out / "run.json").exists():
        (out / MARK).unlink(missing_ok=True)
