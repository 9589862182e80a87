"""Claim runs: the process that has locked a run's file executes the run."""

import fcntl
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from offrec.errors import InputError
from offrec.studies.study import Run, Study


class Claim:
    """Context manager that reserves runs, so that no other process executes them.

    The operating system frees the locks of a process that dies. The lock files are not deleted; an unlocked file
    has no meaning.

    Attributes:
        runs: The claimed runs.
    """

    def __init__(self, study: Study, candidates: Sequence[Run], limit: int) -> None:
        """Lock up to `limit` of the candidates that are free and still waiting."""
        self._files: list[TextIO] = []
        self.runs: list[Run] = []
        for run in candidates:
            if len(self.runs) == limit:
                break
            file = self._try_lock(study, run)
            if file is None:
                continue
            if not study.is_waiting(run):  # another process finished it before the lock was taken
                file.close()
                continue
            self._files.append(file)
            self.runs.append(run)

    def _try_lock(self, study: Study, run: Run) -> TextIO | None:
        path = study.path("locks", f"{run.name}.lock")
        try:
            file = path.open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return None
        except OSError as error:
            raise InputError(
                f"{path} cannot be locked ({error.strerror}); store the study on a disk that this machine can write to."
            ) from error
        return file

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let other processes claim the runs."""
        for file in self._files:
            file.close()
