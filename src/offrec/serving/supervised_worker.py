"""A worker process, as its supervisor sees it: its messages, its signals, its end."""

import json
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from offrec.data.json_files import parse_json
from offrec.serving.worker import MESSAGE_BYTES

Message = dict[str, Any]


@dataclass
class SupervisedWorker:
    """A worker process, as its supervisor sees it.

    Attributes:
        index: Its number.
        listener: Its listening socket, which the supervisor keeps open, so that clients wait during a restart.
        process: The process id; None while it is not running.
        channel: The supervisor's end of the sockets that connect it with the worker.
        started_at: When the process was started.
        is_ready: Whether it has started to answer requests.
        hung_at: When the supervisor first saw that it does not respond; None while it does.
        is_hung: Whether it was killed because it did not respond.
    """

    index: int
    listener: socket.socket
    process: int | None = None
    channel: socket.socket | None = None
    started_at: float = -math.inf
    is_ready: bool = False
    hung_at: float | None = None
    is_hung: bool = False

    def begin(self) -> None:
        """Reset everything that belongs to the last process."""
        self.started_at, self.is_ready, self.is_hung, self.hung_at = time.monotonic(), False, False, None

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is running."""
        if self.process is not None:
            os.kill(self.process, number)

    def send(self, message: Message) -> None:
        """Send a message to the process."""
        if self.channel is not None:
            with suppress(OSError):  # it ended; SIGCHLD follows
                self.channel.send(json.dumps(message).encode())

    def receive_all(self) -> Iterator[Message]:
        """Yield the messages that have arrived."""
        while self.channel is not None:
            try:
                data = self.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except OSError:
                return
            if not data:
                return
            yield parse_json(data)

    def has_hung(self, seconds: float, patience: float) -> bool:
        """Return whether the worker hangs.

        Args:
            seconds: By how much its last heartbeat is too old; at most 0 if it is not.
            patience: For how long it must have been too old. After all processes were stopped and continued, a worker
                has this time for a heartbeat.
        """
        if seconds <= 0:
            self.hung_at = None
            return False
        self.hung_at = self.hung_at or time.monotonic()
        return time.monotonic() - self.hung_at >= patience

    def exit_code(self) -> int | None:
        """Return the exit code of the process, negative for a signal; None while it is running or not started."""
        if self.process is None:
            return None
        process, status = os.waitpid(self.process, os.WNOHANG)
        return None if process == 0 else os.waitstatus_to_exitcode(status)
