"""Several processes on one queue: each works as if alone, and what one has claimed the others leave to it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from offrec.console import Console
from offrec.studies.progress import Progress
from offrec.studies.study import Study
from offrec.studies.worker import RunCounts, WorkerOptions, stopped

LOOK_SECONDS = 0.5


@dataclass
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    begun: RunCounts  # how the study stood then


def work(study: Study, how: WorkerOptions, console: Console) -> RunCounts:
    """`how.jobs` processes until the queue is empty. One that dies is replaced as long as the study comes forward."""
    devices, started = how.device.split(","), time.monotonic()

    def begin(number: int) -> _Worker:
        left = how.limit - (time.monotonic() - started)
        return _Worker(number, _process(study, how, devices[number % len(devices)], number, left), RunCounts.of(study))

    workers = [begin(number) for number in range(how.jobs)]
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        console.line(f"{how.jobs} processes side by side; {_log(study, '*')} say what each is at")
        with Progress(study, console) as progress:
            while workers:
                time.sleep(LOOK_SECONDS)
                progress.show()
                for worker in [worker for worker in workers if worker.process.poll() is not None]:
                    workers.remove(worker)
                    code, now = worker.process.returncode, RunCounts.of(study)
                    if code and now.waiting:
                        console.line(
                            f"process {worker.number} ended with {code}; {_log(study, worker.number)} says why"
                        )
                    if code and now.waiting and now != worker.begun:
                        workers.append(begin(worker.number))
    except KeyboardInterrupt as error:
        raise stopped(study) from error
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.wait()
        signal.signal(signal.SIGTERM, before)
    return RunCounts.of(study)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _log(study: Study, number: int | str) -> str:
    return str(study.folder / f"process-{number}.log")


def _process(study: Study, how: WorkerOptions, device: str, number: int, limit: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "offrec.studies", str(study.folder), "--device", device, "--limit", str(limit)]
    command += ["--parent", str(os.getpid()), "--data", *(log.path for log in study.logs)]
    command += ["--together", str(how.together)] if how.together else []
    environment: dict[str, Any] = dict(os.environ)
    threads = max(1, (os.cpu_count() or 1) // how.jobs)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    with open(_log(study, number), "ab") as log:
        # In a session of its own: a Ctrl-C reaches the parent alone, which asks each to stop, once.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
