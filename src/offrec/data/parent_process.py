"""End a worker process soon after its parent process has died."""

import os
import signal
import threading
import time

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0  # for saving a run


def end_with_parent(parent: int) -> None:
    """Watch the parent process in a thread, and end this process soon after the parent has died.

    This process first gets SIGTERM, on which a run is saved. If it still runs after `GRACE_SECONDS`, it is ended.

    Args:
        parent: The process id of the parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="offrec-parent", daemon=True).start()
