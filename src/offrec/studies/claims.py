"""Who works on what: a run belongs to the process that holds the lock of its file."""

import fcntl
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from offrec.errors import InputError
from offrec.studies.study import Run, Study


class Claim:
    """Runs that nobody else works on as long as the block lasts. The system frees the locks of a process that dies, at
    whatever moment; the files stay, being only names.
    """

    def __init__(self, study: Study, wanted: Sequence[Run], most: int) -> None:
        """Up to `most` of `wanted`: those that are free and still to be done."""
        self._files: list[TextIO] = []
        self.runs: list[Run] = []
        for run in wanted:
            if len(self.runs) == most:
                break
            file = self._locked(study, run)
            if file is None:
                continue
            if study.done(run) or study.failed(run):  # finished by another between a look and the lock
                file.close()
                continue
            self._files.append(file)
            self.runs.append(run)

    def _locked(self, study: Study, run: Run) -> TextIO | None:
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
                f"{path} cannot be locked ({error.strerror}); keep the study on a disk that this machine may write."
            ) from error
        return file

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()
