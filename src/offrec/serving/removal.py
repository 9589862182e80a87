"""Remove old files of a decision log in a thread of its own, so that no failure or delay of it affects the log."""

import threading
from pathlib import Path

from offrec.errors import first_line
from offrec.serving.decision_log_segment import Print
from offrec.serving.erasure import remove_old_files

SECONDS = 600.0  # between two searches for old files
CLOSING_SECONDS = 5.0  # a slow file system must not prevent the end of the server


class Removal:
    """Search for old files at a fixed interval, from now on.

    Args:
        folder: The folder of the log.
        keep_days: Remove closed files whose last record is older.
        print_line: Prints a sentence for the operator.
    """

    def __init__(self, folder: Path, keep_days: float, print_line: Print) -> None:
        self.folder, self.keep_days, self.print_line = folder.resolve(), keep_days, print_line
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offrec-log-removal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                remove_old_files(self.folder, self.keep_days, self.print_line)
            except Exception as error:  # the next search may succeed
                self.print_line(f"old files of the decision log were not removed: {first_line(error)}")
            self._closing.wait(SECONDS)
