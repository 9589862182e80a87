"""A worker process does not outlive its parent."""

import os
import subprocess
import sys

import pytest

WORKER = """
import os, signal, sys, time; from offrec.data import parent_process
parent_process.POLL_SECONDS, parent_process.GRACE_SECONDS = 0.05, 0.3
if sys.argv[2] == "ignores SIGTERM": signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent_process.end_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]]); time.sleep(60)
"""


@pytest.mark.parametrize("worker", ["obeys", "ignores SIGTERM"])
def test_a_worker_ends_soon_after_its_parent_was_killed(worker: str) -> None:
    command = [sys.executable, "-c", PARENT, WORKER, worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        os.kill(process, 0)
        parent.kill()
        parent.communicate(timeout=30)  # the output ends when the worker has ended too
